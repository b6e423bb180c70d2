"""Training rows a CPU second of every matching model.

A row is a pair of texts. A training loop is timed: putting a batch together, forward, hinge loss, backward, Adam. A
batch has 64 lists of a positive and `--negatives` negatives; first texts have 4 to 10 words and second texts 8 to 40,
drawn from 30,000 words with Zipf's distribution; the table of 30,000 x 300 word vectors is trained. One thread.

Adam moves 9 million numbers a step, which in PyTorch's usual version takes longer than the rest of a step. Each model
is measured with it, with `fused=True` (the same update in one pass), with the table updated by rows
(`zoo.layers.row_adam`, as `zoo fit` does with such a table), and with the table fixed.

    python -m tests.benchmarks.matching_step [--models ARCI ...] [--negatives 1] [--steps 10]
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from datamodules.matching.datamodule import MatchingDataModule
from tests.benchmarks.timing import alternate, parser, zipf
from zoo.layers.row_adam import RowTable, update_by_rows
from zoo.registry import model_class
from zoo.tasks.model import Given

LISTS, VOCABULARY, FIRST, SECOND, QUESTIONS, CANDIDATES = 64, 30_000, 10, 40, 640, 6

#: Contenders: registered model, and options other than its defaults.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "MV-LSTM k=10": ("AMVLSTM", {"attention": "none", "k": 10}),
    "MV-LSTM k=100": ("AMVLSTM", {"attention": "none"}),
    "aMV-LSTM (Q)": ("AMVLSTM", {"attention": "question"}),
    "aMV-LSTM (Q+A)": ("AMVLSTM", {"attention": "both"}),
    **{
        name: (name, {"loss": "hinge"}) for name in ("MatchPyramid", "ARCI", "ARCII", "ANMM", "DSSM", "CDSSM")
    },
}
#: Takes a batch and trains on it.
Step = Callable[[], None]


class Texts(NamedTuple):
    """Word numbers of the questions and of each question's candidates; the first candidate is the positive."""

    questions: list[list[int]]
    candidates: list[list[list[int]]]


def draw_texts(random: np.random.Generator) -> Texts:
    """Texts with Zipf's distribution of words."""

    def draw(shortest: int, longest: int) -> list[int]:
        drawn: list[int] = zipf(random, random.integers(shortest, longest + 1), VOCABULARY - 1).tolist()
        return drawn

    questions = [draw(4, FIRST) for _ in range(QUESTIONS)]
    return Texts(questions, [[draw(8, SECOND) for _ in range(CANDIDATES)] for _ in range(QUESTIONS)])


def spell(word: int) -> str:
    """A word of 4 to 12 letters, another one for each number."""
    letters = np.random.default_rng(word).integers(0, 26, size=3 + word % 8)
    return "".join(chr(97 + letter) for letter in letters) + "".join(chr(97 + int(d)) for d in str(word))


def make_data(texts: Texts, folder: Path, negatives: int) -> MatchingDataModule:
    """The texts as a table of pairs, prepared."""
    spelled = [spell(word) for word in range(VOCABULARY)]
    with (folder / "pairs.jsonl").open("w") as file:
        for number, (question, candidates) in enumerate(zip(texts.questions, texts.candidates, strict=True)):
            first = " ".join(spelled[word] for word in question)
            for position, words in enumerate(candidates):
                second = " ".join(spelled[word] for word in words)
                pair = {"question": number, "first": first, "second": second, "label": int(position == 0)}
                file.write(json.dumps(pair) + "\n")
    data = MatchingDataModule(
        train_file=str(folder / "pairs.jsonl"),
        question_column="question",
        validation_split=0.01,
        num_negatives=negatives,
        batch_size=LISTS,
        first_length=FIRST,
        second_length=SECOND,
        characters=True,
        cache_dir=str(folder / "cache"),
    )
    data.prepare_data()
    data.setup("fit")
    return data


def zoo_step(
    name: str, data: MatchingDataModule, update: str = "plain", train_words: bool = True
) -> Step | None:
    """A training step of a registered model, None for one without the tables that are to be updated by rows."""
    model_name, options = MODELS[name]
    model: Any = model_class(model_name)(**options)
    spec = model.spec = data.spec._replace(num_words=VOCABULARY)
    # Given vectors are fixed, drawn ones are trained.
    network = model.build_network(Given(spec, None if train_words else torch.randn(VOCABULARY, 300)))
    if update == "by rows" and not _row_tables(network):
        return None
    train = _updates(network, update)
    batches = _again_and_again(data.train_dataloader())

    def step() -> None:
        batch = next(batches)
        train(model.loss_terms(network(batch), batch).mean())

    return step


def _row_tables(network: nn.Module) -> list[RowTable]:
    return [module for module in network.modules() if isinstance(module, RowTable)]


def _updates(network: nn.Module, kind: str) -> Callable[[Tensor], None]:
    weights = [p for p in network.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.Adam(weights, lr=1e-3, fused=kind == "fused")
    if kind == "by rows":
        optimizer = update_by_rows(optimizer, _row_tables(network))

    def update(loss: Tensor) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return update


def _again_and_again(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(iter(loader) for _ in itertools.count())


def main() -> None:
    """Measure model after model."""
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments.add_argument("--negatives", type=int, default=1)
    arguments.add_argument("--steps", type=int, default=10)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = draw_texts(np.random.default_rng(0))
    rows = LISTS * (1 + options.negatives)
    print(f"training rows a CPU second, {1 + options.negatives} rows a list")
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(texts, Path(folder), options.negatives)
        for name in options.models:
            tried = {
                "Adam": zoo_step(name, data),
                "fused": zoo_step(name, data, "fused"),
                "by rows": zoo_step(name, data, "by rows"),
                "fixed table": zoo_step(name, data, "fused", train_words=False),
            }
            steps = {kind: step for kind, step in tried.items() if step is not None}
            seconds = alternate(steps, options.steps, statistic=np.mean)
            figures = [f"{kind} {rows / taken:5.0f}" for kind, taken in seconds.items()]
            print(f"{name:15s} {'  '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
