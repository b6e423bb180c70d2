"""Checkpoints that lack a part, or say what does not exist: one line that names the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from tests.zoo.conftest import SMALL, Result


def parts_of(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all parts of a checkpoint that a reader may miss; of weights and words a few."""
    if not isinstance(value, dict):
        return
    for key in list(value)[:3] if place[-1:] == ("state_dict",) else value:
        yield (*place, key)
        if not (len(place) > 1 and place[-1] == "vocabulary"):
            yield from parts_of(value[key], (*place, key))


def changed(
    contents: dict[str, Any], place: tuple[str, ...], change: Callable[[dict[str, Any]], None]
) -> None:
    for key in place[:-1]:
        contents = contents[key]
    change(contents)


def test_a_checkpoint_that_lacks_a_part_or_has_a_strange_one(trained_run: Path) -> None:
    checkpoint = trained_run / "checkpoints" / "last.ckpt"
    whole = torch.load(checkpoint, weights_only=True)
    places = [
        place
        for place in parts_of({key: whole[key] for key in ("memory_zoo", "hyper_parameters", "state_dict")})
        if place[-1] != "retriever" or len(place) == 3
    ]
    assert len(places) > 40
    refused = 0
    for place in places:
        last = place[-1]
        for change in (
            lambda part, key=last: part.pop(key),
            lambda part, key=last: part.update({key: 7.5} if isinstance(part[key], dict) else {}),
            lambda part, key=last: part.update({f"{key}_of_tomorrow": part.pop(key)}),
        ):
            contents = torch.load(checkpoint, weights_only=True)
            changed(contents, place, change)
            torch.save(contents, "changed.ckpt")
            error = error_of("changed.ckpt")
            assert error is None or isinstance(error, InputError), (place, repr(error))
            assert error is None or "changed.ckpt" in str(error), (place, error)
            assert "\n" not in str(error)
            refused += error is not None
    assert refused > 60


def error_of(checkpoint: str) -> Exception | None:
    try:
        zoo.load(checkpoint).predict("old iron")
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("command", ["test", "validate", "fit"])
@pytest.mark.parametrize(
    "place",
    [
        ("state_dict", "network.classifier.weight"),
        ("memory_zoo", "spec", "labels"),
        ("memory_zoo", "data", "kind"),
        ("memory_zoo", "data", "vocabulary"),
        ("memory_zoo", "data", "facts"),
        ("memory_zoo", "data", "memory"),
        ("hyper_parameters",),
    ],
    ids=lambda place: place[-1],
)
def test_every_command_says_so_in_one_line(
    command: str,
    place: tuple[str, ...],
    trained_run: Path,
    zoo_command: Callable[..., Result],
    train_csv: Path,
    test_csv: Path,
) -> None:
    contents = torch.load(trained_run / "checkpoints" / "last.ckpt", weights_only=True)
    changed(contents, place, lambda part: part.pop(place[-1], None))
    torch.save(contents, "changed.ckpt")
    options: list[object] = {
        "test": ["--data.test_file", test_csv],
        "validate": [],
        "fit": [*SMALL, "--data.train_file", train_csv, "--run_dir=other", "--trainer.max_epochs=2"],
    }[command]
    result = zoo_command(command, "--ckpt_path=changed.ckpt", *options)
    assert result.code == 2, result.err
    (line,) = result.err.splitlines()
    assert line.startswith("zoo: error: ")
