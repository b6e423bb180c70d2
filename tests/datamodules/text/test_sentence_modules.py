"""Published sentence encoders: poolings compared with plain loops, and folders that are refused."""

import os
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from datamodules.core.errors import InputError
from datamodules.text.sentence_modules import POOLINGS, DenseLayer, SentenceModules, check_reachable, pool
from datamodules.text.token_models import load_model, make_dense
from tests.datamodules.checks import refused
from tests.sentence_folders import MODULES, plain_pool, write_dense, write_json, write_modules


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The JSON files of an encoder with all modules."""
    folder = tmp_path / "published"
    folder.mkdir()
    write_modules(folder, MODULES)
    flags = {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    write_json(folder / "1_Pooling" / "config.json", flags)
    write_dense(folder / "2_Dense", (4, 3), "Tanh")
    return folder


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling(pooling: Any) -> None:
    states = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    lengths = [5, 1, 0, 3]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    vectors = pool(states, mask, pooling)
    for row, length in enumerate(lengths):
        expected = plain_pool(states[row, :length].tolist(), pooling) if length else [0.0] * 3
        torch.testing.assert_close(vectors[row], torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_all_modules(folder: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": None}
    write_json(folder / "config_sentence_transformers.json", prompts)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 128, "do_lower_case": True})
    published = SentenceModules.read(str(folder))
    assert published == SentenceModules(
        max_length=128,
        lowercases=True,
        pooling="cls",
        dense=(DenseLayer("2_Dense", 4, 3, True, "Tanh"),),
        normalizes=True,
        query_prompt="query: ",
        document_prompt="passage: ",
    )
    assert SentenceModules.from_plain(published.describe()) == published


def test_the_default_prompt_precedes_all_texts(folder: Path) -> None:
    prompts = {"prompts": {"topic": "topic: ", "document": ""}, "default_prompt_name": "topic"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    published = SentenceModules.read(str(folder))
    assert (published.query_prompt, published.document_prompt) == ("topic: ", "topic: ")


def test_a_folder_without_modules_is_a_plain_transformer(tmp_path: Path) -> None:
    assert SentenceModules.read(str(tmp_path)) == SentenceModules()


SIZES = {"in_features": 4, "out_features": 3}


def check_refused(folder: Path, *words: str) -> None:
    with refused(folder, *words):
        make_dense(str(folder), SentenceModules.read(str(folder)), 4)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([("Transformer", ""), ("LSTM", "1_LSTM")], ("modules.json", "models.LSTM")),
        ([("Transformer", "../other")], ("modules.json", "../other", "Transformer")),
        ([("Transformer", ""), ("Pooling", "/etc")], ("modules.json", "/etc", "Pooling")),
        ([("Transformer", ""), ("Pooling", "outside")], ("modules.json", "outside", "Pooling")),
        ([("Transformer", ""), ("Pooling", "missing")], ("missing/config.json", "missing or damaged")),
        ([("Transformer", "")], ("modules.json", "Transformer", "in this order")),
        ([("Pooling", "1_Pooling")], ("modules.json", "in this order")),
        ([*MODULES[:2], ("Pooling", "1_Pooling")], ("in this order",)),
        ([*MODULES[:2], ("Normalize", ""), ("Dense", "2_Dense")], ("in this order",)),
    ],
)
def test_modules_that_are_refused(modules: Any, words: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "elsewhere" / "config.json", {"pooling_mode": "mean"})
    os.symlink(tmp_path / "elsewhere", folder / "outside")
    write_modules(folder, modules)
    check_refused(folder, *words)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("modules.json", {}, ("no JSON list",)),
        ("modules.json", [{"type": "sentence_transformers.models.Transformer"}], ("no type or path",)),
        ("modules.json", [{"type": "own_code.Transformer", "path": ""}], ("own_code.Transformer",)),
        ("1_Pooling/config.json", {"pooling_mode": "sum"}, ("Pooling", "sum")),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]}, ("Pooling", "mean", "max")),
        ("2_Dense/config.json", {**SIZES, "activation_function": "os.system"}, ("Dense",)),
        ("2_Dense/config.json", {**SIZES, "use_residual": True}, ("Dense", "residual")),
        ("2_Dense/config.json", {"in_features": 4}, ("Dense", "out_features")),
        ("2_Dense/config.json", {**SIZES, "in_features": 5}, ("2_Dense", "reads 5 numbers, not 4")),
        ("2_Dense/config.json", {**SIZES, "out_features": 2}, ("weights of the module 2_Dense",)),
    ],
)
def test_refused_configurations(file: str, content: Any, words: tuple[str, ...], folder: Path) -> None:
    write_json(folder / file, content)
    check_refused(folder, *words)


class Pickled:
    """An object that writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_weights_that_are_refused(folder: Path, tmp_path: Path) -> None:
    weights = folder / "2_Dense" / "model.safetensors"
    weights.write_bytes(b"no weights")
    check_refused(folder, "2_Dense/model.safetensors", "damaged")
    weights.unlink()
    check_refused(folder, "2_Dense", "no model.safetensors")
    torch.save({"linear.weight": Pickled(tmp_path / "unpickled")}, folder / "2_Dense" / "pytorch_model.bin")
    check_refused(folder, "2_Dense/pytorch_model.bin", "damaged")
    assert not (tmp_path / "unpickled").exists()
    layer = {"linear.weight": torch.ones(3, 4), "linear.bias": torch.ones(3)}
    torch.save(layer, folder / "2_Dense" / "pytorch_model.bin")
    (dense,) = make_dense(str(folder), SentenceModules.read(str(folder)), 4)
    torch.testing.assert_close(dense(torch.ones(1, 4)), torch.full((1, 3), 5.0).tanh())


def test_a_static_model_without_weights_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, [("StaticEmbedding", "")])
    published = SentenceModules.read(str(tmp_path))
    assert published.is_static
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        load_model(str(tmp_path), published)


def test_names_of_the_hub_are_requested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"me/away": LocalEntryNotFoundError("no connection"), "me/unknown": ValueError("no repository")}
    requested = []

    def refuse(name: str, **options: Any) -> str:
        requested.append(name)
        raise errors[name]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=r"'me/away': not a folder.* can't be reached; .*HF_HUB_OFFLINE=1"):
        check_reachable("me/away")
    for name in (str(tmp_path), "./away", "a/path/of/folders", "me/unknown", "me/unknown"):
        check_reachable(name)  # a wrong name is left to the loader
    assert requested == ["me/away", "me/unknown"]
