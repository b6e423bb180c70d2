"""Thresholds with a bounded error, sets of labels, drift, and calibration, from made-up results."""

from pathlib import Path

import numpy as np
import pytest

from datamodules.core.errors import InputError
from zoo.tasks.classification.calibration import Calibration
from zoo.tasks.classification.held_out import (
    HeldOutRows,
    answer_threshold,
    certified_threshold,
    drift,
    familiarity_of,
    lowest_level,
    rows_needed,
    set_threshold,
)

CONFIDENCE = 0.95


def draw(random: np.random.Generator, rows: int) -> tuple[HeldOutRows, np.ndarray]:
    """Overconfident results, and the probability that an answer is right [n]."""
    probability = 0.3 + 0.7 * random.beta(3, 0.6, rows).astype(np.float32).astype(np.float64)
    truth = probability**1.5
    is_right = random.random(rows) < truth
    return HeldOutRows(
        probability, is_right, np.where(is_right, probability, 1 - probability), probability
    ), truth


def test_the_error_stays_below_the_level_for_most_draws() -> None:
    """Certified thresholds are wrong for at most 5 % of the draws (here: up to 3 standard errors more)."""
    random = np.random.default_rng(0)
    scores, truth = draw(random, 200_000)
    order = np.argsort(-scores.probability)
    errors = np.cumsum(1 - truth[order]) / np.arange(1, len(order) + 1)
    draws = 400
    for level, answered in ((0.05, 0.2), (0.1, 0.4)):
        thresholds = [certified_threshold(draw(random, 1000)[0], level, CONFIDENCE) for _ in range(draws)]
        certified = np.array([each for each in thresholds if each is not None])
        counts = np.searchsorted(-scores.probability[order], -certified, side="right")
        broken = (errors[counts - 1] > level).sum()
        assert broken <= draws * (0.05 + 3 * np.sqrt(0.05 * 0.95 / draws))
        assert len(certified) > draws / 2
        assert counts.mean() / len(order) > answered


def test_a_threshold_by_hand() -> None:
    """60 right answers, then errors: 59 right ones certify .05, and rows of equal probability go together."""
    probability = np.concatenate([np.linspace(0.99, 0.9, 60), np.full(40, 0.5)])
    scores = HeldOutRows(probability, probability > 0.5, probability, probability)
    assert rows_needed(0.05, CONFIDENCE) == 59
    assert certified_threshold(scores, 0.05, CONFIDENCE) == pytest.approx(0.9)
    # The limit for 60 right answers is 1 - .05 ** (1 / 60) = .0487; all 100 rows have an error of 40 %.
    assert lowest_level(scores, CONFIDENCE) == 0.049
    assert certified_threshold(scores, 0.048, CONFIDENCE) is None
    assert certified_threshold(scores, 0.6, CONFIDENCE) == 0
    # 180 right answers are enough for .02 (1 - .05 ** (1 / 149)), and 5,000 rows too few for .0001.
    for level, more in ((0.02, "about 300 like these would do"), (0.0001, "more rows .* would not do")):
        with pytest.raises(InputError, match=rf"100 held-out rows can certify 0\.049 .*{more}.*memory tune"):
            answer_threshold(scores, level, CONFIDENCE)


def test_rows_without_an_answer_certify_nothing() -> None:
    right = np.ones(200, bool)
    nothing = HeldOutRows(np.full(200, -1.0), right, np.zeros(200), np.zeros(200))
    assert certified_threshold(nothing, 0.1, CONFIDENCE) is None
    assert lowest_level(nothing, CONFIDENCE) is None
    half = HeldOutRows(np.where(np.arange(200) % 2, 0.8, -1.0), right, np.zeros(200), np.zeros(200))
    assert certified_threshold(half, 0.1, CONFIDENCE) == 0


@pytest.mark.parametrize("miscoverage", [0.05, 0.2])
def test_sets_of_labels_cover(miscoverage: float) -> None:
    """Also for few rows, thanks to the quantile for finite samples; and not much more than needed."""
    random = np.random.default_rng(1)
    covered = []
    for _ in range(3000):
        of_label = random.random(40)
        threshold = set_threshold(HeldOutRows(of_label, of_label > 0, of_label, of_label), miscoverage)
        covered.append(random.random() >= threshold)
    error = 3 * np.sqrt(miscoverage * (1 - miscoverage) / 3000)
    assert 1 - miscoverage - error < np.mean(covered) < 1 - miscoverage + 1 / 41 + error
    few = np.full(8, 0.5)
    with pytest.raises(InputError, match=r"8 held-out rows can certify 0\.1111"):
        set_threshold(HeldOutRows(few, few > 0, few, few), 0.1)


def test_a_text_like_the_held_out_rows_is_seldom_unfamiliar() -> None:
    """The share counts the text among the rows, so that it is at most a level for at most this share of texts."""
    random = np.random.default_rng(2)
    none = np.zeros(40)
    draws = [
        familiarity_of(HeldOutRows(none, none > 0, none, random.random(40)), random.random(25))
        for _ in range(400)
    ]
    for level in (0.05, 0.2):
        found = (np.concatenate(draws) <= level).mean()
        assert level - 1 / 41 - 0.01 < found < level + 0.01
    scores = HeldOutRows(none, none > 0, none, np.arange(40.0))
    assert familiarity_of(scores, np.array([-1.0, 0.0, 39.0, np.inf])).tolist() == [1 / 41, 2 / 41, 1, 1]


def test_an_alarm_of_drift_is_rare_where_nothing_changes() -> None:
    random = np.random.default_rng(0)
    draws = [drift(random.random(200), random.random(100).tolist()) for _ in range(1000)]
    p_values = np.array([each["p_value"] for each in draws])
    for level in (0.05, 0.2):
        assert (p_values <= level).mean() <= level + 0.02
    assert drift(random.random(200), (random.random(100) - 0.3).tolist())["is_alarm"]
    assert not drift(random.random(200), [])["is_alarm"]


def test_calibration_by_hand(tmp_path: Path) -> None:
    """Half of the rows at .9 are right, all at .6: bins of equal mass."""
    probability = np.concatenate([np.full(150, 0.9), np.full(150, 0.6)])
    is_right = np.concatenate([np.arange(150) % 2 == 0, np.ones(150, bool)])
    calibration = Calibration.of(probability, is_right)
    assert calibration.rows == 300
    assert [rows for _, _, rows in calibration.bins] == [20] * 15
    assert calibration.ece == pytest.approx(0.4 * 14 / 15)  # the middle bin has ten of each
    assert set(calibration.coverage.values()) == {0.0}
    assert "ECE" in calibration.as_markdown()
    perfect = Calibration.of(probability, np.ones(300, bool))
    assert perfect.coverage["0.01"] == 1
    # A quarter of the rows are wrong, those with the lowest probabilities.
    ranked = Calibration.of(np.linspace(1, 0.5, 100), np.arange(100) < 75)
    assert ranked.coverage == {"0.01": 0.75, "0.02": 0.76, "0.05": 0.78, "0.1": 0.83}
    assert Calibration.of(np.array([0.7]), np.array([True])).bins == [(0.7, 1.0, 1)]
    file = calibration.chart().write(tmp_path)
    assert file is not None
    assert file.stat().st_size > 1000
