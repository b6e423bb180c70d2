"""A model that the Hub can't deliver is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from datamodules.core.errors import InputError
from datamodules.text.sentence_modules import check_reachable


def test_an_unreachable_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def refuse(name: str, **options: Any) -> str:
        requested.append(name)
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=r"'me/away': not a folder.* can't be reached; .*HF_HUB_OFFLINE=1"):
        check_reachable("me/away")
    for folder in (str(tmp_path), "./away", "a/path/of/folders"):
        check_reachable(folder)
    assert requested == ["me/away"]


def test_a_wrong_name_is_requested_once_and_left_to_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    def answer(name: str, **options: Any) -> str:
        requested.append(name)
        raise ValueError("no such repository")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    check_reachable("me/unknown")
    check_reachable("me/unknown")
    assert requested == ["me/unknown"]
