"""A password, key or login in an option or a file is refused in one line, before anything records it."""

from pathlib import Path

import pytest
import yaml

import zoo
from datamodules import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.core.secrets import refuse_secrets
from datamodules.retrieval import ElasticsearchRetriever, FusedRetriever
from tests.zoo.conftest import SMALL, Fit, best
from zoo.cli import main
from zoo.reproduce.table import load_table
from zoo.runs import configs

SECRET = "hunter2"
LOGIN = {"class_path": "ElasticsearchRetriever", "init_args": {"url": f"http://a:{SECRET}@host:9200"}}


@pytest.mark.parametrize(
    "key", ["password", "secret", "API_KEY", "apikeys", "token", "hf_token", "access_tokens", "bearer_auth"]
)
def test_secret_keys(key: str) -> None:
    refuse_secrets({key: None}, "--data")
    with pytest.raises(InputError, match=f"^--data.a.{key}: holds a secret") as caught:
        refuse_secrets({"a": [{key: [SECRET]}]}, "--data")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        *({key: 512} for key in ("max_tokens", "pad_token", "tokenizer", "secretary", "num_memories")),
        {"url": ["https://search:9200/path", "http://other:9200"]},
        {"text": "mail me@home, see http://host/a@b"},
        *(yaml.safe_load(configs.find(name).read_text()) for name in configs.names()),
    ],
    ids=lambda value: ",".join(value),
)
def test_other_values_are_kept(value: dict[str, object]) -> None:
    refuse_secrets(value, "")


def test_a_table_with_a_login_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.yaml"
    rows = {"a": {"overrides": {"data.retriever": LOGIN}}}
    base = {"data": {"init_args": {}}}
    table.write_text(yaml.safe_dump({"description": "", "minutes": 1, "base": base, "rows": rows}))
    with pytest.raises(
        InputError, match=r"table.yaml: rows.a.overrides.data.retriever.*holds a secret"
    ) as error:
        load_table(str(table))
    assert SECRET not in str(error.value)


def test_a_model_has_neither_credentials_nor_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", SECRET)
    retriever = ElasticsearchRetriever(url="https://search:9200")
    for each in (retriever, FusedRetriever([retriever, ElasticsearchRetriever()])):
        data = ClassificationDataModule(train_file="t.csv", retriever=each)
        for shown in (str(data.retriever.describe()), repr(data.retriever), str(data.options)):
            assert SECRET not in shown
            assert "search:9200" not in shown


def test_python_refuses_them_as_well(train_csv: Path) -> None:
    with pytest.raises(InputError, match=r"data.retriever.init_args.url: holds a secret") as error:
        zoo.fit(train_csv, retriever=LOGIN)
    assert SECRET not in str(error.value)


URL = "--data.retriever.url=https://elastic:"
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
        [f"--data.retriever.client_args.api_key={SECRET}"],
        [f'{WHOLE}{{"url": "https://a:{SECRET}@search:9200"}}}}'],
        [f'{WHOLE}{{"url": "https://a:{SECRET} b@search:9200", "unknown": 1}}}}'],
        [f'{WHOLE}{{"url": "https://a:{SECRET}@search:9200"'],
        [f"--api_key={SECRET}"],
        [f"--data.retriever.password={SECRET}"],
        ["--config=secret.yaml"],
        ["--config=list.yaml"],
    ],
    ids=str,
)
def test_no_way_of_giving_a_secret_shows_it(
    given: list[str], train_csv: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither in a file, nor in what is printed; W&B has not started, so nothing of the command line is recorded."""
    Path("secret.yaml").write_text(yaml.safe_dump({"data": {"init_args": {"retriever": LOGIN}}}))
    Path("list.yaml").write_text(yaml.safe_dump([{"token": SECRET}]))
    options = ["--data.retriever=ElasticsearchRetriever", *given, "--model.features=M1", "--run_dir=run"]
    code = main(["fit", *SMALL, *options, f"--data.train_file={train_csv}", "--data.batch_size=many"])
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "ELASTICSEARCH_API_KEY" in err
    assert SECRET not in err
    assert [str(path) for path in tmp_path.rglob("*") if SECRET.encode() in str(path).encode()] == []
    assert not Path("run").exists()


@pytest.mark.usefixtures("_wandb_offline")
def test_files_of_a_run_hold_no_credential_of_the_environment(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model without memory sends nothing, yet its configuration names a server."""
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", SECRET)
    url = "http://search.example:9200"
    retriever = ("--data.retriever=ElasticsearchRetriever", f"--data.retriever.url={url}")
    run = fit(
        "run", *retriever, "--model.features=M1", "--config=logger/wandb", "--trainer.logger.log_model=true"
    )
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["init_args"]["retriever"]["init_args"]["url"] == url
    assert list(run.glob("wandb/offline-run-*/*.wandb"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []
    assert url.encode() not in best(run).read_bytes()


def test_the_search_for_a_secret_would_find_one(trained_run: Path) -> None:
    """Checkpoints are not compressed: it is enough to search their bytes."""
    assert b"apple" in best(trained_run).read_bytes()
