"""The encoders that turn texts into vectors; imported only where texts are encoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.errors import InputError
from datamodules.retrieval.encoding import DenseRanking, unreadable


class TextEncoder(Protocol):
    """Texts in, vectors out."""

    #: numbers in a vector.
    size: int

    def __call__(self, texts: list[str], batch_size: int, bar: tqdm[Any]) -> NDArray[np.float32]:
        """The vectors of the texts [n, size], of length 1; 0 for a text without tokens.

        Args:
            texts: n texts.
            batch_size: texts encoded at once.
            bar: told of each text that is done.
        """


#: What reads encoders that are one file, by the file's suffix. `zoo` enters its checkpoints here, since
#: nothing in this package may import a model.
FILE_ENCODERS: dict[str, Callable[[str, torch.device], TextEncoder]] = {}


def load_encoder(ranking: DenseRanking, device: str | None) -> TextEncoder:
    """The encoder that a ranking names, on a device (None: a GPU if there is one).

    Raises:
        InputError: no such encoder, or no such device.
    """
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r}: not on this machine; use cpu, or null to choose") from error
    path = Path(ranking.encoder)
    # Weights are drawn before they are read. A training that follows must not see whether this was in a cache.
    with torch.random.fork_rng(devices=[]):
        if not path.is_file():
            return Encoder(ranking, place)
        if path.suffix not in FILE_ENCODERS:
            known = (
                f"a checkpoint ({', '.join(FILE_ENCODERS)})"
                if FILE_ENCODERS
                else "checkpoints after `import zoo`"
            )
            raise InputError(
                f"encoder {ranking.encoder!r}: not a file of a known kind; use {known}, or a folder"
            )
        return FILE_ENCODERS[path.suffix](ranking.encoder, place)


@contextmanager
def inference(threads: int | None) -> Iterator[None]:
    """Run networks without gradients, on so many threads of the CPU; None leaves the setting."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


class Encoder:
    """A transformer as a `TextEncoder`."""

    def __init__(self, ranking: DenseRanking, device: torch.device) -> None:
        from transformers import AutoModel, AutoTokenizer

        # Without it the library warns in every process that is forked later on; those don't tokenise.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(ranking.encoder, revision=ranking.revision)
            model: Any = AutoModel.from_pretrained(ranking.encoder, revision=ranking.revision)
        except Exception as error:  # Rust code, the network and remote configurations fail in their own ways.
            raise unreadable(ranking.encoder, error) from error
        if model.config.is_encoder_decoder:
            raise InputError(f"encoder {ranking.encoder!r}: has a decoder; use an encoder such as BERT")
        self.device = device
        self.model = model.float().eval().to(device)
        self.size: int = model.config.hidden_size
        self.pooling = ranking.pooling
        readable = getattr(model.config, "max_position_embeddings", None) or ranking.max_length
        self.max_length = min(ranking.max_length, self.tokenizer.model_max_length, readable)

    def __call__(self, texts: list[str], batch_size: int, bar: tqdm[Any]) -> NDArray[np.float32]:
        """See `TextEncoder`."""
        encodings = self.tokenizer(
            # The library takes no lone surrogates.
            [text.encode("utf-8", "replace").decode() for text in texts],
            truncation=True,
            max_length=self.max_length,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
        tokens: list[list[int]] = encodings["input_ids"]
        full = [not all(special) for special in encodings["special_tokens_mask"]]
        vectors = np.zeros((len(texts), self.size), np.float32)
        # Texts of like length together: little padding. The longest first: what is too big fails at once.
        order = sorted(np.flatnonzero(full).tolist(), key=lambda position: -len(tokens[position]))
        bar.update(len(texts) - len(order))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            ids = torch.zeros(len(batch), len(tokens[batch[0]]), dtype=torch.long)
            mask = torch.zeros_like(ids)
            for line, position in enumerate(batch):
                ids[line, : len(tokens[position])] = torch.tensor(tokens[position])
                mask[line, : len(tokens[position])] = 1
            mask = mask.to(self.device)
            states = self.model(input_ids=ids.to(self.device), attention_mask=mask).last_hidden_state
            # The sum does for the mean: the length goes with the next line.
            pooled = states[:, 0] if self.pooling == "cls" else (states * mask.unsqueeze(2)).sum(dim=1)
            vectors[batch] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
            bar.update(len(batch))
        return vectors
