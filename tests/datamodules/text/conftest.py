from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sentence_folders import write_tokenizer


@pytest.fixture
def save_tokenizer() -> Callable[..., str]:
    """Saves a WordPiece tokenizer of ten words in a folder."""

    def save(folder: Path, *, special: bool = True, extra: str = "zoo") -> str:
        write_tokenizer(folder, ["the", "cat", "s", "##s", "sat", extra], "<p>", special)
        return str(folder)

    return save
