"""Scores against scikit-learn, exact on any number of processes."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, precision_score, recall_score
from torch.nn import functional

from datamodules.batch import ClassificationBatch
from zoo.tasks.classification.metrics import ClassificationScores
from zoo.tasks.outputs import ClassificationOutput

LABELS = ["a", "b", "c", "d"]
N = len(LABELS)


def random_rows(seed: int, n: int = 200, unknown: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, N, generator=generator)
    return logits, torch.randint(0, N + unknown, (n,), generator=generator)


def count(
    scores: ClassificationScores,
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    **fields: torch.Tensor | None,
) -> None:
    """Count logits of a batch, of rows that all have the weight 1 unless it is given."""
    nothing, chosen = torch.zeros(0), fields.pop("chosen", None)
    weight = torch.ones(len(target)) if weight is None else weight
    batch = ClassificationBatch(*[nothing] * 8, target, weight, torch.arange(len(target)))._replace(**fields)
    scores.update(ClassificationOutput(logits, nothing, chosen=chosen), batch)


def scores_of(*batches: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> dict[str, float]:
    """All values by name; those of single classes if they have one."""
    scores = ClassificationScores(LABELS)
    for batch in batches:
        count(scores, *batch)
    computed = scores.compute()
    values = {name: float(value) for name, value in computed.items() if value.ndim == 0}
    for name in ("f1", "precision", "recall"):
        of_class = zip(scores.labels, computed[name].tolist(), strict=True)
        values |= {f"{name}/{label}": value for label, value in of_class}
    return {name: value for name, value in values.items() if value == value}


def test_thousands_of_classes_have_no_confusion_matrix() -> None:
    """The counts grow linearly with the number of classes, and a class is no metric of its own."""
    classes = 20_000
    scores = ClassificationScores([f"c{i}" for i in range(classes)])
    target = torch.arange(0, classes, 100)
    for _ in range(3):
        count(scores, functional.one_hot(target, classes).float(), target)
    counts = [state for state in scores.metric_state.values() if not isinstance(state, list)]
    assert sum(state.numel() for state in counts) < 4 * classes
    assert sum(map(len, scores.probability)) == 3 * len(target)  # two numbers a row, whatever the classes
    computed = scores.compute()
    assert len(computed) < 12
    assert computed["macro_f1"] == 1
    assert int(computed["f1"].nansum()) == len(target)


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_equal_scikit_learn(seed: int, unknown: bool) -> None:
    logits, target = random_rows(seed, unknown=unknown)
    batches = zip(logits.split(64), target.split(64), torch.ones(200).split(64), strict=True)
    computed = scores_of(*batches)
    y, predicted = target.numpy(), logits.argmax(dim=1).numpy()
    per_class = {"labels": list(range(N)), "average": None, "zero_division": 0}
    assert computed["accuracy"] == pytest.approx(accuracy_score(y, predicted), abs=1e-12)
    assert computed["macro_f1"] == pytest.approx(f1_score(y, predicted, average="macro"), abs=1e-12)
    assert computed["micro_f1"] == pytest.approx(f1_score(y, predicted, average="micro"), abs=1e-12)
    for name, function in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        expected = function(y, predicted, **per_class)
        assert [computed[f"{name}/{label}"] for label in LABELS] == pytest.approx(list(expected), abs=1e-12)
    known = target < N
    probabilities = logits[known].double().softmax(dim=1).numpy()
    expected = log_loss(y[known.numpy()], probabilities, labels=range(N))
    assert computed["loss"] == pytest.approx(expected, rel=1e-6)
    assert computed["rows"] == 200
    assert computed["unknown_labels"] == (y == N).sum()


def test_a_class_without_rows_is_excluded_from_the_mean() -> None:
    target = torch.tensor([0, 0, 1, 1])
    logits = torch.eye(N)[[0, 1, 1, 1]]
    computed = scores_of((logits, target, torch.ones(4)))
    assert computed["macro_f1"] == pytest.approx(f1_score(target, [0, 1, 1, 1], average="macro"))
    assert "f1/c" not in computed
    assert "recall/d" not in computed


def test_padding_rows_and_rows_without_a_label_are_not_counted() -> None:
    logits, target = random_rows(7)
    kept = torch.arange(200) % 3 > 0
    expected = scores_of((logits[kept], target[kept], torch.ones(133)))
    assert expected["rows"] == 133
    assert scores_of((logits, target, kept.float())) == expected
    assert scores_of((logits, target.where(kept, -100), torch.ones(200))) == expected


def test_nothing_to_count_and_only_unknown_labels() -> None:
    computed = scores_of((torch.zeros(2, N), torch.zeros(2, dtype=torch.long), torch.zeros(2)))
    assert computed["rows"] == 0
    assert all(np.isfinite(value) for value in computed.values())
    computed = scores_of((torch.randn(5, N), torch.full((5,), N), torch.ones(5)))
    assert computed["accuracy"] == computed["macro_f1"] == computed["loss"] == 0
    assert computed["unknown_labels"] == 5
