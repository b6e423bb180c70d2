"""Names of the Hub: asked for once, and said at once where nobody answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from datamodules.core.errors import InputError
from datamodules.text.hub import check_reachable


def test_a_hub_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(name: str, **options: Any) -> str:
        asked.append(name)
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=r"'me/away': no folder .* can't be reached; .*HF_HUB_OFFLINE=1"):
        check_reachable("me/away")
    for folder in (str(tmp_path), "./away", "a/path/of/folders"):
        check_reachable(folder)
    assert asked == ["me/away"]


def test_it_is_asked_once_and_says_what_is_wrong_with_a_name_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(name: str, **options: Any) -> str:
        asked.append(name)
        raise ValueError("no such repository")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    check_reachable("me/unknown")
    check_reachable("me/unknown")
    assert asked == ["me/unknown"]
