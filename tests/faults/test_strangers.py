"""Some attacks of `tests.faults.strangers`: each is refused in one line or does no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import campaigns, strangers
from tests.faults.__main__ import outcome_of

#: Attacks of each kind, by the beginning of their names.
SAMPLE = [
    ("exported", "transformer = {'model_type': 'bert', 'auto_map'"),
    ("exported", "memory_zoo/data/retriever/class_path = 'evil.Evil'"),
    ("checkpoint", "hyper_parameters/optimizer.class_path = 'evil.Evil'"),
    ("checkpoint", "memory_zoo/data/options = []"),
    ("checkpoint", "memory_zoo/data/memory = {'path': 'PRIVATE/new'"),
    ("exported", "its lock is a link to PRIVATE/secret.txt"),
    ("memory", "the next rows is a link to PRIVATE"),
    ("memory", "a manifest names '../../private/secret.txt'"),
    ("memory", "retriever of a memory is {'class_path': 'ElasticsearchRetriever'"),
    ("memory", "retriever of a memory is {'class_path': 'DenseRetriever'"),
    (
        "exported",
        "memory_zoo/data/retriever = {'class_path': 'ElasticsearchRetriever', 'init_args': {'url': 'LOGIN/'",
    ),
    ("exported", "memory_zoo/data/options/tokenizer = 'private/model'"),
    ("checkpoint", "hyper_parameters/transformer = 'PRIVATE/model'"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return campaigns.made_export(tmp_path_factory.mktemp("strangers") / "whole")


@pytest.mark.parametrize(("kind", "name"), SAMPLE)
def test_an_attack_does_no_harm(kind: str, name: str, whole: Path, tmp_path: Path) -> None:
    attack = next(each for each in strangers.attacks() if each.kind == kind and each.name.startswith(name))
    outcome, line = outcome_of(lambda: strangers.run(attack, whole, tmp_path / "case", limit=2), None, 600)
    assert outcome in ("same", "refused"), line


def test_a_private_file_that_is_read_is_harm(whole: Path, tmp_path: Path) -> None:
    """The corpus can fail: the same attack on an encoder that the user names."""

    def change(world: strangers.World) -> None:
        encoder = ["--retriever=DenseRetriever", "--retriever.encoder=private/model"]
        world.commands = lambda: [["index", "--file=more.csv", "--memory=new", *encoder]]  # type: ignore[method-assign]

    attack = strangers.Attack("an encoder of the user", "memory", change)
    outcome, line = outcome_of(lambda: strangers.run(attack, whole, tmp_path / "case"), None, 600)
    assert outcome == "traceback"
    assert "private files were read" in line
    assert "model/config.json" in line


def test_a_key_in_a_request_is_harm(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus can fail: the same attack with a server that the user names."""
    attack = strangers.Attack(
        "a trusted server",
        "memory",
        lambda world: (
            strangers._put_pointer(
                world,
                "retriever",
                {"class_path": "ElasticsearchRetriever", "init_args": {}},
            ),
            monkeypatch.setenv("ELASTICSEARCH_URL", world.url),
        )[0],
    )
    outcome, line = outcome_of(lambda: strangers.run(attack, whole, tmp_path / "case", limit=1), None, 600)
    assert outcome == "traceback"
    assert "with a key" in line


def test_there_are_many() -> None:
    attacks = strangers.attacks()
    assert len(attacks) > 100
    assert {attack.kind for attack in attacks} == {"exported", "checkpoint", "memory"}
