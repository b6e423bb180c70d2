"""A pre-trained transformer as an encoder of texts; imported only where texts are encoded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from datamodules.core.errors import InputError
from datamodules.retrieval.dense.ranking import DenseRanking, unreadable

if TYPE_CHECKING:
    from datamodules.retrieval.dense.text_encoder import ProgressBar


class TransformerEncoder:
    """A transformer as a `TextEncoder`."""

    query_encoder: None = None

    def __init__(self, ranking: DenseRanking, device: torch.device) -> None:
        from transformers import AutoModel, AutoTokenizer

        # Unless this is set, the library warns in every process that is forked later, although those do not tokenize.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(ranking.encoder, revision=ranking.revision)
            model = AutoModel.from_pretrained(ranking.encoder, revision=ranking.revision)
        except (
            Exception
        ) as error:  # Rust code, the network and remote configurations have different exceptions
            raise unreadable(ranking.encoder, error) from error
        if model.config.is_encoder_decoder:
            raise InputError(f"encoder {ranking.encoder!r}: has a decoder; use an encoder such as BERT")
        self.device = device
        self.model = model.float().eval().to(device)
        self.size: int = model.config.hidden_size
        self.pooling = ranking.pooling
        readable = getattr(model.config, "max_position_embeddings", None) or ranking.max_length
        self.max_length = min(ranking.max_length, self.tokenizer.model_max_length, readable)

    def __call__(self, texts: list[str], batch_size: int, bar: ProgressBar) -> NDArray[np.float32]:
        """See `TextEncoder`."""
        encodings = self.tokenizer(
            # The library refuses lone surrogates.
            [text.encode("utf-8", "replace").decode() for text in texts],
            truncation=True,
            max_length=self.max_length,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
        tokens: list[list[int]] = encodings["input_ids"]
        has_tokens = [not all(special) for special in encodings["special_tokens_mask"]]
        vectors = np.zeros((len(texts), self.size), np.float32)
        # Texts of similar length need little padding. A batch that does not fit the device's memory fails first.
        order = sorted(np.flatnonzero(has_tokens).tolist(), key=lambda position: -len(tokens[position]))
        bar.update(len(texts) - len(order))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            rows = [torch.tensor(tokens[position]) for position in batch]
            ids = pad_sequence(rows, batch_first=True).to(self.device)
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(self.device)
            states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            # The sum replaces the mean, because the next line divides by the length.
            pooled = states[:, 0] if self.pooling == "cls" else (states * mask.unsqueeze(2)).sum(dim=1)
            vectors[batch] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
            bar.update(len(batch))
        return vectors
