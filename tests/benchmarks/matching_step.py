"""Training rows a CPU second of every matching model, as ratios to MatchZoo-py's.

A row is a pair of texts. A training loop is timed: putting a batch together, forward, hinge loss,
backward, Adam. A batch has 64 lists of a positive and `--negatives` negatives; first texts have 4 to 10 words and
second texts 8 to 40, drawn from 30,000 words with Zipf's distribution; the table of 30,000 x 300 word vectors is
trained. One thread.

Adam moves 9 million numbers a step, which in PyTorch's usual version takes longer than the rest of a step. Each
model is measured with it, with `fused=True` (the same update in one pass), with the table updated by rows
(`zoo.layers.row_adam`, as `zoo fit` does with such a table), and with the table fixed. MatchZoo's models have
plain Adam.

Where `matchzoo` can be imported, its models run on the same texts in turns with these. Elsewhere the ratios are to
`MATCHZOO_ROWS`, noted on another machine: a hint, no more. MatchZoo-py 1.1.1 needs names that newer versions of
Python and NumPy removed; install it in its own environment:

    python3 -m venv matchzoo && matchzoo/bin/pip install --editable . && matchzoo/bin/pip install --no-deps \\
        matchzoo-py==1.1.1 hyperopt tabulate networkx h5py pytorch-transformers future boto3 botocore jmespath \\
        s3transfer sacremoses sentencepiece "setuptools<70" py4j
    matchzoo/bin/python -m tests.benchmarks.matching_step [--models ARCI ...] [--negatives 1] [--steps 10]
"""

from __future__ import annotations

import argparse
import collections
import collections.abc
import importlib
import importlib.util
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from datamodules.batch import MatchingBatch
from datamodules.matching import MatchingDataModule
from zoo.layers.row_adam import RowTable, update_by_rows
from zoo.registry import model_class
from zoo.tasks.matching.task import MatchingTask

LISTS, VOCABULARY, FIRST, SECOND, QUESTIONS, CANDIDATES = 64, 30_000, 10, 40, 640, 6

#: Contenders: registered model, and options other than its defaults.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "MV-LSTM k=10": ("AMVLSTM", {"attention": "none", "k": 10}),
    "MV-LSTM k=100": ("AMVLSTM", {"attention": "none"}),
    "aMV-LSTM (Q)": ("AMVLSTM", {"attention": "question"}),
    "aMV-LSTM (Q+A)": ("AMVLSTM", {"attention": "both"}),
    "bilinear": ("AMVLSTM", {"attention": "none", "similarity": "bilinear"}),
    "tensor": ("AMVLSTM", {"attention": "none", "similarity": "tensor"}),
    **{
        name: (name, {"loss": "hinge"}) for name in ("MatchPyramid", "ARCI", "ARCII", "ANMM", "DSSM", "CDSSM")
    },
}
#: MatchZoo-py's training rows a CPU second, noted elsewhere: one thread, two rows a list, a trained table of 30,000 x
#: 300; its loading of data may not have been timed. Its MV-LSTM is compared with all of these.
MATCHZOO_ROWS = {
    **dict.fromkeys(MODELS, 256),
    "MV-LSTM k=10": 277,
    "MatchPyramid": 292,
    "ARCI": 389,
    "ARCII": 386,
    "ANMM": 310,
    "DSSM": 104,
    "CDSSM": 76,
}
#: Their names, and options other than their defaults.
MATCHZOO_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "MV-LSTM k=10": ("MVLSTM", {"hidden_size": 50, "top_k": 10}),
    "MV-LSTM k=100": ("MVLSTM", {"hidden_size": 50, "top_k": 100}),
    "MatchPyramid": ("MatchPyramid", {}),
    "ARCI": ("ArcI", {"left_length": FIRST, "right_length": SECOND}),
    "ARCII": ("ArcII", {"left_length": FIRST, "right_length": SECOND}),
    "ANMM": ("aNMM", {}),
}

#: Takes a batch, trains on it, and returns its number of rows.
Step = Callable[[], int]


class Texts(NamedTuple):
    """Word numbers of the questions and of each question's candidates; the first candidate is the positive."""

    questions: list[list[int]]
    candidates: list[list[list[int]]]


def draw_texts(random: np.random.Generator) -> Texts:
    """Texts with Zipf's distribution of words."""
    weights = 1 / np.arange(1, VOCABULARY)
    weights /= weights.sum()

    def draw(shortest: int, longest: int) -> list[int]:
        length = random.integers(shortest, longest + 1)
        words: list[int] = random.choice(np.arange(1, VOCABULARY), size=length, p=weights).tolist()
        return words

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
    model = model_class(model_name)(**options)
    assert isinstance(model, MatchingTask)
    spec = model.spec = data.spec._replace(num_words=VOCABULARY)
    # Given vectors are fixed, drawn ones are trained.
    network = model.build_network(spec, None if train_words else torch.randn(VOCABULARY, 300), None)
    if update == "by rows" and not _row_tables(network):
        return None
    train = _updates(network, update)
    batches = _again_and_again(data.train_dataloader())

    def step() -> int:
        batch: MatchingBatch = next(batches)
        train(model.loss_terms(network(batch), batch).mean())
        return len(batch.first)

    return step


def matchzoo_step(name: str, texts: Texts, negatives: int) -> Step:
    """A training step of MatchZoo-py's model of that name, with its data set and its default padding."""
    for module, lost in ((collections, collections.abc.Iterable), (np, int), (np, float)):
        setattr(module, lost.__name__, lost)
    matchzoo, pd = importlib.import_module("matchzoo"), importlib.import_module("pandas")
    relation, right = [], {}
    for number, candidates in enumerate(texts.candidates):
        for position, words in enumerate(candidates):
            right[f"{number}-{position}"] = words
            relation.append((str(number), f"{number}-{position}", int(position == 0)))
    left = {str(number): words for number, words in enumerate(texts.questions)}

    def table(side: str, words: dict[str, list[int]], longest: int) -> Any:
        # Newer versions of NumPy make no array of lists that differ in length: padded here, and then by MatchZoo.
        padded = [text + [0] * (longest - len(text)) for text in words.values()]
        columns = {f"text_{side}": padded, f"length_{side}": [len(w) for w in words.values()]}
        return pd.DataFrame(columns, index=pd.Index(words, name=f"id_{side}"))

    pairs = pd.DataFrame(relation, columns=["id_left", "id_right", "label"])
    dataset = matchzoo.dataloader.Dataset(
        matchzoo.DataPack(pairs, table("left", left, FIRST), table("right", right, SECOND)),
        mode="pair",
        num_dup=1,
        num_neg=negatives,
        batch_size=LISTS,
        resample=True,
        shuffle=True,
    )
    padding = matchzoo.dataloader.callbacks.BasicPadding(fixed_length_left=FIRST, fixed_length_right=SECOND)
    batches = _again_and_again(matchzoo.dataloader.DataLoader(dataset, stage="train", callback=padding))

    model_name, options = MATCHZOO_MODELS[name]
    model = getattr(matchzoo.models, model_name)()
    loss = matchzoo.losses.RankHingeLoss(num_neg=negatives)
    model.params["task"] = matchzoo.tasks.Ranking(losses=loss)
    for option, value in {"embedding_input_dim": VOCABULARY, "embedding_output_dim": 300, **options}.items():
        model.params[option] = value
    model.guess_and_fill_missing_params(verbose=0)
    model.build()
    train = _updates(model, "plain")

    def step() -> int:
        inputs, target = next(batches)
        train(loss(model(inputs), target))
        return len(target)

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


def measure(contenders: dict[str, Step], steps: int) -> dict[str, float]:
    """Rows a CPU second of each, in turns; two rounds warm up."""
    seconds, rows = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0)
    for number in range(-2, steps):
        for name, step in contenders.items():
            before = time.process_time()
            done = step()
            if number >= 0:
                seconds[name] += time.process_time() - before
                rows[name] += done
    return {name: rows[name] / seconds[name] for name in contenders}


def main() -> None:
    """Measure model after model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="where the time of a fused step goes, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    texts = draw_texts(np.random.default_rng(0))
    has_matchzoo = importlib.util.find_spec("matchzoo") is not None
    print(f"training rows a CPU second, {1 + options.negatives} rows a list; in brackets / MatchZoo-py")
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(texts, Path(folder), options.negatives)
        for name in options.models:
            tried = {
                "Adam": zoo_step(name, data),
                "fused": zoo_step(name, data, "fused"),
                "by rows": zoo_step(name, data, "by rows"),
                "fixed table": zoo_step(name, data, "fused", train_words=False),
            }
            steps_of_zoo = {kind: step for kind, step in tried.items() if step is not None}
            steps_of_matchzoo = {}
            if has_matchzoo and name in MATCHZOO_MODELS:
                steps_of_matchzoo["MatchZoo-py"] = matchzoo_step(name, texts, options.negatives)
            rows = {
                "MatchZoo-py": float(MATCHZOO_ROWS[name]),
                **measure({**steps_of_zoo, **steps_of_matchzoo}, options.steps),
            }
            figures = [
                f"{kind} {rows[kind]:5.0f} ({rows[kind] / rows['MatchZoo-py']:4.1f} x)"
                for kind in steps_of_zoo
            ]
            measured = "measured" if steps_of_matchzoo else "as noted"
            print(
                f"{name:15s} {'  '.join(figures)}  MatchZoo-py {rows['MatchZoo-py']:.0f} {measured}",
                flush=True,
            )
            if options.profile:
                profile(steps_of_zoo["fused"], options.steps)


def profile(step: Step, steps: int) -> None:
    """Print the costliest operations of some steps."""
    with torch.profiler.profile() as profiler:
        for _ in range(steps):
            step()
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))


if __name__ == "__main__":
    main()
