"""A member of the user's own: one class and one line, through fit, resume, processes, the table, growth and export."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from zlib import crc32

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

import zoo
from tests.zoo.conftest import Edit, Fit, Zoo, done, read_json, sentences
from zoo.ensemble.member import Input, Member, Readings, Sizes
from zoo.ensemble.members import MEMBERS
from zoo.ensemble.outputs import Scores

BUCKETS = 8192


class HashedBayes(Member):
    """Multinomial naive Bayes on words, hashed into buckets."""

    name = "hashed_bayes"
    title = "hashed naive Bayes"
    reads: ClassVar[frozenset[Input]] = frozenset({"texts"})
    log_p: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.register_buffer("log_p", torch.zeros(BUCKETS, sizes.num_classes))

    @override
    def fit(self, readings: Readings, target: NDArray[np.int64]) -> None:
        counts = torch.full_like(self.log_p, 0.5)
        for text, label in zip(readings.texts, target, strict=True):
            counts[_buckets(text), label] += 1
        self.log_p.copy_((counts / counts.sum(dim=0)).log())

    @override
    def forward(self, readings: Readings) -> Scores:
        return Scores(torch.stack([self.log_p[_buckets(text)].sum(dim=0) for text in readings.texts]))


def _buckets(text: str) -> list[int]:
    return [crc32(word.encode()) % BUCKETS for word in text.split()]


OPTIONS = ["--model.members=[lexical,hashed_bayes,lexical_vote]"]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    MEMBERS[HashedBayes.name] = HashedBayes
    yield
    del MEMBERS[HashedBayes.name]


def test_it_is_a_row_of_the_table_and_votes(run: Fit, zoo_command: Zoo, test_csv: Path) -> None:
    folder = run("run", "--model.members=[hashed_bayes]", "--data.num_memories=0")
    answer = read_json(folder / "answer.json")
    rows = {row["name"]: row for row in answer["rows"]}
    assert rows["hashed_bayes"]["accuracy"] == rows["all"]["accuracy"] > 0.8
    assert set(answer["weights"]) == {"hashed_bayes"}
    assert "hashed naive Bayes" in (folder / "output.txt").read_text()
    result = done(zoo_command("test", f"--ckpt_path={folder}", f"--data.test_file={test_csv}"))
    assert "hashed naive Bayes" in result.out
    (prediction,) = zoo.load(folder).predict("apple pear")
    assert prediction.label == "fruit"
    assert set(prediction.contributions) == {"hashed_bayes"}


def test_processes_agree(run: Fit) -> None:
    one = run("one", *OPTIONS)
    two = run("two", *OPTIONS, "--trainer.devices=2", "--trainer.strategy=ddp_fork", "--data.batch_size=8")
    texts = [text for text, _ in sentences(20, seed=9)]
    for actual, reference in zip(zoo.load(two).predict(texts), zoo.load(one).predict(texts), strict=True):
        assert actual.probabilities == pytest.approx(reference.probabilities, abs=1e-4)


def test_its_memory_grows_and_it_is_exported(run: Fit, zoo_command: Zoo, edit: Edit) -> None:
    folder = run("run", *OPTIONS)
    edit("add", folder, [("quince jam", "fruit"), ("quince tart", "fruit")])
    assert "hashed_bayes" in edit("tune", folder, sentences(40, seed=79))
    texts = ["quince", "old zinc", "rain"]
    expected = zoo.load(folder).predict(texts)
    done(zoo_command("export", folder, "shared"))
    for actual, reference in zip(zoo.load("shared").predict(texts), expected, strict=True):
        assert actual.probabilities == pytest.approx(reference.probabilities, abs=1e-6)
        assert actual.contributions == pytest.approx(reference.contributions, abs=1e-6)
