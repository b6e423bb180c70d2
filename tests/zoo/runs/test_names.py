"""Names of options that are read from source files are those of the imported classes."""

import inspect
import sys
from dataclasses import fields
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
from pytorch_lightning import Trainer

import datamodules
from datamodules.core.errors import InputError
from zoo import loading
from zoo.registry import MODELS, model_class
from zoo.runs.names import _definitions, check_names, option_names


def test_the_names_are_those_of_the_classes() -> None:
    for name, entry in MODELS.items():
        assert option_names(entry.module, name) == {*loading.option_defaults(model_class(name))} - {"options"}
    for name, module in datamodules.MODULES.items():
        own = {field.name for field in fields(datamodules.find(name).options_type)}
        assert own | {"retriever"} == option_names(module, name) - {"options"}
    trainer = inspect.signature(Trainer.__init__).parameters.keys() - {"self"}
    assert option_names("pytorch_lightning.trainer.trainer", "Trainer") == trainer


class Editable:
    """Finds a package in another folder, as the hook of an editable installation does."""

    @staticmethod
    def find_spec(name: str, *_: object) -> ModuleSpec | None:
        if name != "elsewhere":
            return None
        return spec_from_file_location(name, "source/__init__.py", submodule_search_locations=["source"])


def test_names_of_a_package_that_an_import_hook_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("source").mkdir()
    Path("source/models.py").write_text("class Model:\n    def __init__(self, size: int) -> None: ...\n")
    assert option_names("elsewhere.models", "Model") == set()
    _definitions.cache_clear()
    monkeypatch.setattr("sys.meta_path", [Editable, *sys.meta_path])
    assert option_names("elsewhere.models", "Model") == {"size"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("--data.train_fil", "--data.train_fil: no option of ClassificationDataModule.*--data.train_file"),
        ("--data.init_args.train_fil", "--data.train_file"),
        ("data.num_memorys", r"^data.num_memorys: .* did you mean data.num_memories\?"),
        ("--model.hiden_size", "--model.hiden_size: no option of KNNBiLSTM.*--model.hidden_size"),
        ("--trainer.max_epoch", "--trainer.max_epochs"),
        ("--optimizer.lr", "did you mean --model.optimizer"),
        ("data.features", r"no option of ClassificationDataModule; did you mean model.features\?"),
        ("--learning_rate", "--model.learning_rates"),
        ("--run_di", "--run_dir"),
    ],
)
def test_a_misspelt_name_is_refused_with_a_similar_one(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_names([name], "KNNBiLSTM", "ClassificationDataModule")


def test_other_names_are_left_to_the_parser() -> None:
    names = ["--model", "--model.optimizer.lr", "--data.retriever.k1", "--trainer.callbacks+", "--model.help"]
    names += ["--config", "--print_config", "--data.class_path"]
    check_names(names, "KNNBiLSTM", "ClassificationDataModule")
    check_names(["--model.anything", "--data.anything"], "MyModel", "MyData")
