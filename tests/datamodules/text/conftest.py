from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


@pytest.fixture
def save_tokenizer() -> Callable[..., str]:
    """Saves a WordPiece tokenizer of ten words in a folder."""
    return _save_tokenizer


def _save_tokenizer(folder: Path, *, special: bool = True, extra: str = "zoo") -> str:
    words = ["<p>", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "s", "##s", "sat", extra]
    backend = Backend(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"pad_token": "<p>", "unk_token": "[UNK]"} if special else {"unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
    return str(folder)
