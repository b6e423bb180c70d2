"""Models on the Hugging Face Hub."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

import zoo
from datamodules.core.errors import InputError
from tests.zoo.conftest import Zoo, done, refusal, sentences

TEXTS = [text for text, _ in sentences(12, seed=8)]


def test_a_name_of_the_hub(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, download = zoo.load(exported).predict(TEXTS), Mock(return_value=str(exported))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert zoo.load("me/model").predict(TEXTS) == expected
    assert zoo.load("me/model").predict(TEXTS) == expected
    download.assert_called_once_with("me/model")


def test_the_hub_can_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = Mock(side_effect=LocalEntryNotFoundError("no connection"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=r"me/away: .*cannot be reached \(no connection\).*HF_HUB_OFFLINE=1"):
        zoo.load("me/away")
    with pytest.raises(InputError, match="no such run folder or model folder"):
        zoo.load("me/model.ckpt")


@pytest.mark.parametrize("is_reachable", [True, False])
def test_upload(
    is_reachable: bool, exported: Path, monkeypatch: pytest.MonkeyPatch, zoo_command: Zoo, tmp_path: Path
) -> None:
    uploaded: dict[str, Any] = {}

    class Api:
        def create_repo(self, name: str, **options: Any) -> str:
            if not is_reachable:
                raise LookupError("Name or service not known")  # as any error of the HTTP library
            uploaded.update(name=name, **options)
            return f"https://hub.example/{name}"

        def upload_folder(self, **options: Any) -> None:
            uploaded.update(options)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    again = tmp_path / "again"
    result = zoo_command("export", exported, again, "--push=me/model")
    assert (again / "model.safetensors").is_file()
    if is_reachable:
        assert done(result).out.splitlines()[1] == "https://hub.example/me/model"
        assert (uploaded["folder_path"], uploaded["private"]) == (str(again), True)
    else:
        refusal(result, f"cannot be reached (Name or service not known); the model is in {again}")
