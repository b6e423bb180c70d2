"""The commands themselves: help, the list of models, memories, and modules of the user's own."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import zoo
from datamodules.core.errors import InputError
from tests.zoo.conftest import Zoo, done, fit_options, python, refusal, write_table
from zoo.cli.commands import COMMANDS
from zoo.registry import MODELS, model_class


def test_help_names_every_command(zoo_command: Zoo) -> None:
    for options in ((), ("--help",), ("-h",)):
        result = done(zoo_command(*options))
        named = re.findall(r"^  (\w+) ", result.out, re.MULTILINE)
        assert named == list(COMMANDS)
        assert all(f"zoo {name} " in result.out for name in COMMANDS)
        assert "--import mine" in result.out


def test_list(zoo_command: Zoo) -> None:
    result = done(zoo_command("list"))
    task, tasks = "", {}
    for line in result.out.splitlines()[:-1]:
        if line.endswith(":") and not line.startswith(" "):
            task = line.removesuffix(":")
        else:
            name, paper = line.split(maxsplit=1)
            tasks[name] = task
            assert paper == MODELS[name].paper != ""
    assert tasks == {name: entry.task for name, entry in MODELS.items()}
    assert "zoo list NAME" in result.out.splitlines()[-1]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_the_registry_agrees_with_the_classes(name: str) -> None:
    assert model_class(name).task == MODELS[name].task
    assert getattr(zoo, name) is model_class(name)


def test_list_of_one_model(zoo_command: Zoo) -> None:
    for name, parts in {
        "KNNBiLSTM": ["num_perspectives", "freeze_encoder", "word_size"],
        "LSTMRNN": ["tied"],
        "TfidfSVM": [],
    }.items():
        title, *lines = done(zoo_command("list", name)).out.splitlines()
        facts = dict(line.split(maxsplit=1) for line in lines if len(line.split()) > 1)
        assert (title, facts["task"], facts["paper"]) == (name, MODELS[name].task, MODELS[name].paper)
        assert " (seeds: " in facts["measured"]
        assert set(parts) <= set(facts["options"].split(", "))


def test_lists_by_pattern_and_models_by_name(zoo_command: Zoo) -> None:
    names = ["KNNBiLSTM", "AMVLSTM", "LSTMRNN"]
    assert zoo.list_models("*lstm*") == names
    assert zoo.list_models("*LSTM*", task="matching") == ["AMVLSTM"]
    listed = done(zoo_command("list", "*lstm*")).out.splitlines()
    assert [line.split()[0] for line in listed[1:-1:2]] == names
    assert done(zoo_command("list", "hmn")).out.startswith("HMN\n")
    model = zoo.create_model("hmn", hops=2)
    assert type(model) is zoo.HMN
    assert model.hparams["hops"] == 2
    with pytest.raises(InputError, match="no task 'summaries'; there are classification, dialogue"):
        zoo.list_models(task="summaries")
    with pytest.raises(InputError, match=r"hop: no option of HMN; did you mean hops\?"):
        zoo.create_model("hmn", hop=2)
    for name in ("Perceptron", "*lstm*"):
        with pytest.raises(InputError, match=f"no model '{re.escape(name)}'"):
            zoo.create_model(name)
    refusal(zoo_command("list", "Perceptron"), "Perceptron", "zoo list")


def test_unknown_commands_and_missing_options(zoo_command: Zoo) -> None:
    refusal(zoo_command("train"), "train", "fit", "predict", "search")
    refusal(zoo_command("predict", "--input", "-"), "ckpt_path")
    refusal(zoo_command("search", "words"), "--memory")
    refusal(zoo_command("search", "words", "--memory", "gone"), "gone", "zoo index")
    refusal(zoo_command("index", "--file", "gone.csv", "--memory", "m"), "gone.csv")
    refusal(zoo_command("test", "--data.test_file", "x.csv"), "--ckpt_path")
    assert zoo_command("--version").out.strip() == zoo.__version__
    done(zoo_command("fit", "--help"))


def test_help_of_classes(zoo_command: Zoo) -> None:
    for option, words in {
        "--data.help=ClassificationDataModule": "name or number of the label",
        "--model.help=KNNBiLSTM": "num_perspectives",
    }.items():
        result = done(zoo_command("fit", option))
        assert words in " ".join(result.out.split())


def test_search_for_more_than_there_can_be(zoo_command: Zoo, train_csv: Path) -> None:
    done(zoo_command("index", "--file", train_csv, "--memory=memory"))
    for k in (0, 10**9, 10**30):
        refusal(zoo_command("search", "apple", "--memory=memory", f"--k={k}"), "--k", "1 to 10,000")
    refusal(zoo_command("index", "--file", train_csv, "--memory="), "--memory")


IMPORTS = [("--import", "tests"), ("--import=tests",), ("--import", "tests.py"), ("--import=./tests.py",)]


@pytest.mark.parametrize("option", IMPORTS)
def test_a_module_may_be_named_anywhere_and_as_a_file(
    option: tuple[str, ...], zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although Python finds another module of its name: the package of these tests."""
    Path("tests.py").write_text("print('imported')\n")
    for arguments in ([*option, "--version"], ["--version", *option]):
        monkeypatch.delitem(sys.modules, "tests")
        assert zoo_command(*arguments).out == f"imported\n{zoo.__version__}\n"


def test_a_module_that_cannot_be_imported(zoo_command: Zoo) -> None:
    Path("json.py").write_text("")
    refusal(zoo_command("--import", "json", "list"), "--import json: ", "rename the file")
    refusal(zoo_command("list", "--import"), "--import: name a module")
    refusal(zoo_command("--import", "mine"), "name a command, such as")
    for name in ("gone", "gone.py"):
        result = zoo_command("list", f"--import={name}")
        refusal(result, f"--import {name}: no such module, here or installed")


def test_a_retriever_of_the_users_own(
    zoo_command: Zoo, train_csv: Path, test_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own_overlap.py").write_text(
        "from tests.datamodules.retrieval.test_registry import OverlapRetriever\n\n\n"
        "class OwnRetriever(OverlapRetriever):\n    pass\n"
    )
    own = ("--import", "own_overlap")
    monkeypatch.delitem(sys.modules, "own_overlap", raising=False)
    options = ["--data.retriever=OwnRetriever", "--data.retriever.letters=true"]
    done(zoo_command(*own, *fit_options(train_csv, *options)))
    done(zoo_command(*own, "test", "--ckpt_path=run", "--data.test_file", test_csv))
    predict = [*own, "predict", "--ckpt_path=run", "--input", test_csv]
    result = done(zoo_command(*predict))
    (first, *_) = map(json.loads, result.out.splitlines())
    scores = [len({*first["text"]} & {*memory["text"]}) for memory in first["memories"]]
    assert [memory["retrieval_score"] for memory in first["memories"]] == scores
    more = write_table(Path("more.csv"), [(first["text"], "fruit")])
    result = done(zoo_command(*own, "memory", "add", "run", more))
    assert "version 2, 73 memories, 1 new" in result.out
    again = json.loads(zoo_command(*predict).out.splitlines()[0])
    assert first["text"] in [memory["text"] for memory in again["memories"]]
    shown = zoo_command(*own, "memory", "show", "run").out
    assert "OwnRetriever" in shown
    assert "letters=True" in shown
    index = ["index", "--file", train_csv, "--memory=memory", "--retriever=OwnRetriever"]
    done(zoo_command(*own, *index))
    assert first["text"][0] in done(zoo_command(*own, "search", first["text"], "--memory=memory")).out


#: Modules that libraries try to import, and do without.
OPTIONAL = [
    "bottleneck", "colorama", "cython", "envwrap", "gmpy2", "h2", "ipywidgets", "jsonschema", "lz4", "numexpr",
    "omegaconf", "onnx", "opt_einsum", "pytz", "ruamel", "snappy", "tabulate", "toml", "torchvision", "tree", "xarray",
]  # fmt: skip


def test_files_of_this_folder_run_only_if_named(copied_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of a downloaded model, and packages with the names of ours."""
    monkeypatch.chdir(copied_run / "model")
    Path("texts.txt").write_text("some words\n")
    # A module that is named is imported with its neighbors, after the libraries.
    Path("mine.py").write_text("import beside\n")
    Path("beside.py").write_text("print('imported')\n")
    packages = [Path("datamodules"), Path("callbacks"), Path("zoo")]
    for path in packages:
        path.mkdir()
    for path in (*map(Path, OPTIONAL), *(package / "__init__" for package in packages)):
        code = "open('ran', 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"
        path.with_suffix(".py").write_text(code)

    def run(*arguments: str) -> str:
        printed = python(*arguments).stdout
        assert not Path("ran").exists(), Path("ran").read_text()
        return printed

    predict = ("predict", "--ckpt_path", ".", "--input", "texts.txt")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONSAFEPATH", "1")  # a script does not search the current folder
        # The script of the package calls `zoo.cli.main`.
        predicted = run("-c", "import sys; from zoo.cli import main; sys.exit(main())", *predict)
    shutil.rmtree("zoo")  # Python itself imports a folder of this name for `-m zoo`
    assert run("-m", "zoo", *predict) == predicted
    assert run("-m", "zoo", "--import", "mine", "--version") == f"imported\n{zoo.__version__}\n"
