"""Texts that stand in the memory: they are answered by the labels of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import ClassificationSpec
from datamodules.classification import targets_of
from datamodules.retrieval import FolderMemory
from datamodules.retrieval.folding import fold_hashes
from zoo.ensemble.new_labels import NEVER, centered

#: Name of the contribution of a text's own rows.
IN_MEMORY = "text is in the memory"

#: Probability of the label of a row that was added or corrected by hand, for the same text.
_TAUGHT = 0.98
#: Rows with this probability that are counted with the duplicates of a memory, which may have none.
_PRIOR_ROWS = 20


class KnownTexts:
    """The rows of a memory whose text is equal to a given one, after folding, and how far their labels are followed.

    A model makes it when it opens a memory, and the network reads it. Rows that joined the memory after its first
    version were taught by hand: the newest of them alone answer, with the probability .98 for their labels. For other
    rows, this probability is measured on the duplicates within the memory: near 1 on clean tables, lower on noisy ones.
    """

    def __init__(self, memory: FolderMemory, spec: ClassificationSpec, new_labels: Sequence[str]) -> None:
        """Take a memory and the labels of the model; rows with other labels answer nothing."""
        self.memory, self._targets = memory, partial(targets_of, spec=spec, new_labels=new_labels)

    @cached_property
    def reliability(self) -> float:
        """Share of the duplicates of a row that have its label, over the rows of the memory with duplicates."""
        lookup = self.memory.opened.lookup
        _, group, sizes = np.unique(lookup.keys, return_inverse=True, return_counts=True)
        places = np.flatnonzero(sizes[group.reshape(-1)] > 1)
        labels = self.memory.rows.select(lookup.rows[places]).table.column("label").combine_chunks()
        target = labels.dictionary_encode().indices.to_numpy()
        pairs = np.stack([group.reshape(-1)[places], target])
        _, of_row, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        agreeing = (counts[of_row.reshape(-1)] - 1) / (sizes[pairs[0]] - 1)
        return float((agreeing.sum() + _TAUGHT * _PRIOR_ROWS) / (len(places) + _PRIOR_ROWS))

    def answer(self, texts: Sequence[str], logits: Tensor) -> Tensor | None:
        """The change [n, C] of logits [n, C] by the texts' own rows; None if the memory has none of the texts.

        Of sets, both are [n, 2, C]. p(class) becomes r s + (1 - r) p, with the share s of the rows that have the class,
        and their reliability r. The change has the mean 0 over the possible classes.
        """
        opened, of_sets, size = self.memory.opened, logits.ndim == 3, logits.shape[1]
        found = opened.lookup.all_rows(fold_hashes(texts))
        shares, trust = torch.zeros(logits.shape), torch.zeros(len(texts), *[1] * (logits.ndim - 1))
        for text in np.flatnonzero([len(rows) > 0 for rows in found]).tolist():
            written = opened.written_in[found[text]]
            is_taught = bool(written.max() > 1)
            newest = found[text][written == written.max()] if is_taught else found[text]
            target = self._targets(self.memory.rows.select(newest))
            share = target.mean(axis=0) if of_sets else np.bincount(target[target >= 0], minlength=size)
            share = np.stack([1 - share, share]) if of_sets else share / max(share.sum(), 1)
            if share.any():
                shares[text] = torch.from_numpy(share)
                trust[text] = _TAUGHT if is_taught else self.reliability
        if not trust.any():
            return None
        trust, shares, before = trust.to(logits), shares.to(logits), logits.log_softmax(dim=1)
        after = trust * shares + (1 - trust) * before.exp()
        is_possible = (before > NEVER / 2) | (shares > 0)
        change = after.clamp(min=torch.finfo(after.dtype).tiny).log() - before
        return centered(change, is_possible.to(logits)) * (is_possible & (trust > 0))
