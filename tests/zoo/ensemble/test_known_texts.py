"""Texts that stand in the memory are answered by their rows."""

import numpy as np
import pytest

import zoo
from tests.zoo.conftest import LABELS, Edit, Fit, Zoo, done
from tests.zoo.ensemble.conftest import distinct_sentences
from zoo.ensemble.known_texts import IN_MEMORY


def test_a_taught_text_is_answered(shared_run: Fit, zoo_command: Zoo, edit: Edit) -> None:
    folder = shared_run(distinct_sentences(90, seed=1))
    others = [text for text, _ in distinct_sentences(30, seed=2)]
    before = zoo.load(folder).predict(["apple pear", *others])
    printed = edit("add", folder, [("Apple  pear", "metal")])
    assert "the model now answers Apple pear with metal\n" in printed
    predictor = zoo.load(folder)
    taught, *rest = predictor.predict(["apple pear!", *others])
    assert before[0].label == "fruit"
    assert (taught.label, taught.probability) == ("metal", pytest.approx(0.98, abs=0.02))
    assert taught.contributions[IN_MEMORY] > 0
    assert not any(IN_MEMORY in each.contributions for each in rest)
    assert np.mean([new.label == old.label for new, old in zip(rest, before[1:], strict=True)]) > 0.9
    # The newest row answers, whatever older ones have.
    printed = edit("add", folder, [("apple pear", "weather"), ("apple pear!", "fruit")])
    assert "answers apple pear with fruit or weather" in printed
    result = done(zoo_command("memory", "relabel", folder, "--ids=[3:0,3:1]", "--label=weather"))
    assert "answers apple pear! with weather" in result.out
    assert zoo.load(folder).predict("apple pear")[0].label == "weather"


@pytest.mark.parametrize(("noise", "least", "most"), [(False, 0.95, 1.0), (True, 0.3, 0.5)])
def test_duplicates_measure_reliability(shared_run: Fit, noise: bool, least: float, most: float) -> None:
    texts, clean = zip(*distinct_sentences(90, seed=1), strict=True)
    drawn = np.random.default_rng(0).choice(LABELS, 90).tolist() if noise else clean
    rows = [*zip(texts, clean, strict=True), *zip(texts, drawn, strict=True)]
    predictor = zoo.load(shared_run(rows))
    predictor.predict("apple")
    assert least <= predictor.model.network.known.reliability <= most
