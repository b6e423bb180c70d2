"""No password, key or login reaches a file of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.core.secrets import hide, redact, redact_arguments
from datamodules.retrieval import ElasticsearchRetriever
from tests.zoo.conftest import LABELS, SMALL, write_table
from zoo.cli import main
from zoo.reproduce.table import load_table

SECRET = "hunter2"


def test_redact() -> None:
    config = {
        "data": {
            "retriever": {
                "url": [f"https://elastic:{SECRET}@search:9200", "http://other:9200"],
                "client_args": {"basic_auth": ["elastic", SECRET], "request_timeout": 5},
            },
            "tokenizer": "words",
        },
        "api_key": SECRET,
        "nested": [{"password": SECRET}, (f"http://{SECRET}@host/path",)],
        "api_keys": None,
        "number": 3,
    }
    redacted = redact(config)
    assert SECRET not in str(redacted)
    assert redacted["data"]["retriever"]["url"] == ["https://search:9200", "http://other:9200"]
    assert redacted["data"]["tokenizer"] == "words"
    assert redacted["nested"][1] == ["http://host/path"]
    assert redacted["number"] == 3
    assert config["api_key"] == SECRET  # a copy was made


@pytest.mark.parametrize(
    "key", ["password", "secret", "API_KEY", "apikeys", "token", "hf_token", "access_tokens", "bearer_auth"]
)
def test_secret_keys(key: str) -> None:
    assert redact({key: SECRET}) == {key: None}


@pytest.mark.parametrize("key", ["max_tokens", "pad_token", "tokenizer", "secretary", "num_memories"])
def test_other_keys_keep_their_values(key: str) -> None:
    assert redact({key: 512}) == {key: 512}


def test_ordinary_text_with_an_at_sign_stays() -> None:
    assert redact({"text": "mail me@home, see http://host/a@b"}) == {
        "text": "mail me@home, see http://host/a@b"
    }


@pytest.mark.parametrize("login", ["elastic:p@ss", "elastic:two words", "elastic:p@ss@word"])
def test_logins_with_strange_passwords(login: str) -> None:
    assert redact(f"https://{login}@host:9200/path") == "https://host:9200/path"


def test_a_table_with_a_login_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.yaml"
    retriever = {"class_path": "ElasticsearchRetriever", "init_args": {"url": f"http://a:{SECRET}@host:9200"}}
    rows = {"a": {"overrides": {"data.retriever": retriever}}}
    base = {"data": {"init_args": {}}}
    table.write_text(yaml.safe_dump({"description": "", "minutes": 1, "base": base, "rows": rows}))
    with pytest.raises(InputError, match="holds a login") as error:
        load_table(str(table))
    assert SECRET not in str(error.value)


def test_data_state_holds_no_credential() -> None:
    retriever = ElasticsearchRetriever(
        url=f"https://elastic:{SECRET}@search:9200", client_args={"api_key": SECRET, "request_timeout": 5}
    )
    data = ClassificationDataModule(train_file="t.csv", retriever=retriever)
    described = data.retriever.describe()
    assert SECRET not in str(described)
    assert SECRET not in repr(data.retriever)
    assert SECRET not in str(data.options)
    assert described["init_args"]["url"] == "https://search:9200"


@pytest.mark.usefixtures("_wandb_offline")
@pytest.mark.parametrize("wandb", [False, True])
def test_files_of_a_run_hold_no_credential(wandb: bool, fit: Callable[..., Path], tmp_path: Path) -> None:
    """The model without memory asks no server, yet its configuration names one."""
    run = fit(
        "run",
        "--model.features=M1",
        "--data.retriever=ElasticsearchRetriever",
        f"--data.retriever.url=https://elastic:{SECRET}@search:9200",
        f'--data.retriever.client_args={{"api_key": "{SECRET}", "request_timeout": 5}}',
        *(["--config=logger/wandb", "--trainer.logger.log_model=true"] if wandb else []),
    )
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["init_args"]["retriever"]["init_args"]["url"] == "https://search:9200"
    assert (run / "checkpoints" / "best.ckpt").exists()
    assert bool(list(run.glob("wandb/offline-run-*/*.wandb"))) == wandb
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > (16 if wandb else 8)  # those of an artifact wait for their upload
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []


URL = "--data.retriever.url=https://elastic:"
ARGUMENTS = "--data.retriever.client_args="
WHOLE = '--data.retriever={"class_path": "ElasticsearchRetriever", "init_args": '


@pytest.mark.parametrize(
    "given",
    [
        [f"{URL}{SECRET}@search:9200"],
        [f"{URL}{SECRET} and more@search:9200"],
        [f"{URL}{SECRET}@more@search:9200"],
        [f"{URL}{SECRET}/more@search:9200"],
        [f"{URL}{SECRET}?more@search:9200"],
        [f"{URL}{SECRET}#more@search:9200"],
        [f"{URL}{SECRET}@search"],
        [f"--data.retriever.url=elastic:{SECRET}@search:9200"],
        [f"--data.retriever.url=[https://a:{SECRET}@search:9200, 'http://b:9200']"],
        [f"--data.retriever.url=https://search:9200/path?api_key={SECRET}"],
        ["--data.retriever.url", f"https://elastic:{SECRET} x@search:9200"],
        [f'{ARGUMENTS}{{"api_key": "{SECRET}"}}'],
        [f'{ARGUMENTS}{{"basic_auth": ["elastic", "{SECRET}"]}}'],
        [f'{ARGUMENTS}{{"headers": {{"authorization": "{SECRET}"}}}}'],
        [f"{ARGUMENTS}{SECRET}"],
        [f"{ARGUMENTS}{{{SECRET}"],
        [f"--data.retriever.client_args.api_key={SECRET}"],
        [f'{WHOLE}{{"url": "https://a:{SECRET}@search:9200"}}}}'],
        [f'{WHOLE}{{"url": "https://a:{SECRET} b@search:9200", "unknown": 1}}}}'],
        [f'{WHOLE}{{"url": "https://a:{SECRET}@search:9200"'],
        [f"--api_key={SECRET}"],
        [f"--data.retriever.password={SECRET}"],
    ],
    ids=str,
)
@pytest.mark.parametrize("mistake", [None, "--data.batch_size=many"])
def test_no_way_of_giving_a_secret_shows_it(
    given: list[str],
    mistake: str | None,
    train_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither in a file of the run, nor in what is printed, nor where W&B looks for the arguments."""
    options = ["--data.retriever=ElasticsearchRetriever", *given, "--model.features=M1", "--run_dir=run"]
    options += [f"--data.train_file={train_csv}", "--trainer.max_epochs=1", *([mistake] if mistake else [])]
    monkeypatch.setattr("sys.argv", ["zoo", "fit", *SMALL, *options])
    code = main()
    assert code in (0, 2)
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in str(sys.argv)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.usefixtures("_wandb_offline")
def test_what_wandb_records_of_the_command_line_holds_no_secret(
    train_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--model.features=M1", "--config=logger/wandb", "--run_dir=run"]
    options += ["--data.retriever=ElasticsearchRetriever", f"{URL}{SECRET} and more@search:9200"]
    given = [*SMALL, f"--data.train_file={train_csv}", "--trainer.max_epochs=1", *options]
    monkeypatch.setattr("sys.argv", ["zoo", "fit", *given])
    assert main() == 0
    (recorded,) = Path("run").glob("wandb/offline-run-*/*.wandb")
    assert b"--run_dir=run" in recorded.read_bytes()
    assert SECRET.encode() not in recorded.read_bytes()


def test_an_error_of_ours_shows_no_secret(
    train_csv: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Errors of the program print a traceback, which quotes values."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError(f"url=https://elastic:{SECRET} word@search:9200, api_key='{SECRET}'")

    monkeypatch.setattr("zoo.cli.lightning.ZooCLI.__init__", fail)
    url = f"--data.retriever.url=https://elastic:{SECRET} word@search:9200"
    assert main(["fit", *SMALL, f"--data.train_file={train_csv}", url]) == 1
    err = capfd.readouterr().err
    assert "AssertionError" in err
    assert SECRET not in err
    assert SECRET not in hide(f"ElasticsearchRetriever(url='https://a:{SECRET} b@h:9200')")
    assert SECRET not in hide(f"client_args={{'api_key': '{SECRET}', 'timeout': 3}}")


def test_arguments_without_secrets_can_be_parsed_still() -> None:
    given = [f"{URL}{SECRET}@search:9200", f"{ARGUMENTS}{{api_key: {SECRET}}}", "--data.batch_size", "16"]
    assert redact_arguments(given) == [
        "--data.retriever.url=https://search:9200",
        "--data.retriever.client_args=null",
        "--data.batch_size",
        "16",
    ]


def test_the_search_for_a_secret_would_find_one(fit: Callable[..., Path], tmp_path: Path) -> None:
    """Checkpoints are not compressed: it is enough to search their bytes."""
    table = write_table(tmp_path / "train.csv", [(f"{SECRET} {i}", LABELS[i % 2]) for i in range(40)])
    run = fit("run", "--data.train_file", table)
    assert SECRET.encode() in (run / "checkpoints" / "best.ckpt").read_bytes()
