"""A pre-trained transformer as an encoder of texts; imported only where texts are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from datamodules.core.errors import InputError
from datamodules.retrieval.dense.ranking import DenseRanking, unreadable
from datamodules.text.sentence_modules import load_tokenizer, text_vectors
from datamodules.text.token_models import load_model, make_dense

if TYPE_CHECKING:
    from datamodules.retrieval.dense.text_vectors import ProgressBar


class PublishedEncoder:
    """A transformer, or a static table of token vectors, as a `TextEncoder`."""

    def __init__(self, ranking: DenseRanking, device: torch.device) -> None:
        published = ranking.published
        try:
            self.tokenizer = load_tokenizer(ranking.encoder, published, ranking.revision)
            model = load_model(ranking.encoder, published, ranking.revision)
        except InputError:
            raise
        except Exception as error:  # of Rust code, the network or a remote configuration
            raise unreadable(ranking.encoder, error) from error
        if model.config.is_encoder_decoder:
            raise InputError(f"encoder {ranking.encoder!r}: has a decoder; use an encoder such as BERT")
        self.device, self.published = device, published
        self.has_query_side = published.query_prompt != published.document_prompt
        self.model = model.float().eval().to(device)
        size = model.config.hidden_size
        self.dense = make_dense(ranking.encoder, published, size, revision=ranking.revision).to(device)
        self.size: int = published.dense[-1].out_features if published.dense else size
        positions = getattr(model.config, "max_position_embeddings", None)
        limits = [positions, published.max_length, self.tokenizer.model_max_length]
        self.max_length = min(ranking.max_length, *(limit for limit in limits if limit))

    def __call__(
        self, texts: list[str], batch_size: int, bar: ProgressBar, queries: bool = False
    ) -> NDArray[np.float32]:
        """See `TextEncoder`."""
        published = self.published
        prompt = published.query_prompt if queries else published.document_prompt
        tokens, has_tokens = self._tokenize(prompt, texts)
        vectors = np.zeros((len(texts), self.size), np.float32)
        # Texts of similar length need little padding. A batch that does not fit the device's memory fails first.
        order = sorted(np.flatnonzero(has_tokens).tolist(), key=lambda position: -len(tokens[position]))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            rows = [torch.tensor(tokens[position]) for position in batch]
            ids = pad_sequence(rows, batch_first=True).to(self.device)
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(self.device)
            states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            pooled = text_vectors(states, mask.bool(), published.pooling, self.dense, published.normalizes)
            vectors[batch] = torch.nn.functional.normalize(pooled, dim=1).cpu().numpy()
            bar.update(len(batch))
        return vectors

    def _tokenize(self, prompt: str, texts: list[str]) -> tuple[list[list[int]], list[bool]]:
        """Return the tokens of each text after a prompt, and whether the text itself has any."""
        if self.published.lowercases:
            prompt, texts = prompt.lower(), [text.lower() for text in texts]
        is_static = self.published.is_static
        encodings = self.tokenizer(
            # The library refuses lone surrogates.
            [prompt, *(prompt + text.encode("utf-8", "replace").decode() for text in texts)],
            truncation=not is_static,
            max_length=None if is_static else self.max_length,
            add_special_tokens=not is_static,
            return_special_tokens_mask=True,
            return_attention_mask=False,
            verbose=False,
        )
        # Special tokens of a static model are tokens like others.
        own = [len(mask) - (0 if is_static else sum(mask)) for mask in encodings["special_tokens_mask"]]
        return encodings["input_ids"][1:], [count > own[0] for count in own[1:]]
