"""Training rows a CPU second of LSTM-RNN, DSSM and CLSM; texts encoded a CPU second.

A row is a pair of texts; an example is a query with a relevant document and 4 random negatives, so five rows. A
training loop is timed: putting a batch together, forward, loss, backward, Adam in one pass. LSTM-RNN runs in turns
with a plain PyTorch version of it: the same parameters and batches, each token's trigrams summed where it stands, a
loop over the time steps of padded texts, automatic differentiation. DSSM and CLSM are compared with MatchZoo-py's rows,
noted on another machine: a hint, no more. One thread.

    python -m tests.benchmarks.lstm_rnn_step [--steps 20] [--batch_size 128] [--data_dir DATA]

Without `--data_dir`, texts are drawn from 8,000 words with Zipf's distribution: 3,000 documents of 4 to 16 words, 2,000
queries of 1 to 8.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from datamodules import ClickthroughDataModule
from datamodules.batch import ClickBatch
from datamodules.trigrams import letter_trigrams
from zoo.lstm_rnn import RecurrentTower
from zoo.registry import model_class
from zoo.tasks.retrieval.task import RetrievalTask

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM-RNN-96": ("LSTMRNN", {"hidden_size": 96}),
    "BiLSTM-RNN-96": ("LSTMRNN", {"hidden_size": 96, "bidirectional": True}),
    "DSSM": ("RetrievalDSSM", {}),
    "CLSM": ("RetrievalCLSM", {"window": 3}),
}
#: Pairs of an example.
ROWS = 5
#: MatchZoo-py's training rows (pairs) a CPU second, noted elsewhere; it makes dense vectors of 30,000 trigrams.
MATCHZOO_ROWS = {"DSSM": 104, "CLSM": 76}


def write_texts(folder: Path) -> dict[str, str]:
    """A collection of made-up words with a judgement of ten documents for each query."""
    random = np.random.default_rng(0)
    letters = [random.integers(97, 123, size=3 + word % 9) for word in range(8000)]
    spelled = ["".join(map(chr, word)) for word in letters]
    weights = 1 / np.arange(1, len(spelled) + 1)
    weights /= weights.sum()

    def text(shortest: int, longest: int) -> str:
        return " ".join(random.choice(spelled, size=random.integers(shortest, longest + 1), p=weights))

    with (folder / "corpus.jsonl").open("w") as corpus, (folder / "queries.jsonl").open("w") as queries:
        for number in range(3000):
            corpus.write(json.dumps({"id": f"d{number}", "text": text(4, 16)}) + "\n")
        for number in range(2000):
            queries.write(json.dumps({"id": f"q{number}", "text": text(1, 8)}) + "\n")
    judged = random.integers(0, 3000, size=(2000, 10))
    lines = [f"q{query} d{document} 1" for query, row in enumerate(judged) for document in row]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n")
    files = {"corpus_file": "corpus.jsonl", "train_queries": "queries.jsonl", "train_judgements": "qrels.tsv"}
    return {name: str(folder / file) for name, file in files.items()}


def make_data(files: dict[str, Any], cache: Path, batch_size: int) -> ClickthroughDataModule:
    data = ClickthroughDataModule(
        **files, validation_split=0.05, negatives="random", num_negatives=ROWS - 1, batch_size=batch_size,
        cache_dir=str(cache), seed=1,
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    return data


def make_model(name: str, data: ClickthroughDataModule) -> RetrievalTask:
    kind, options = MODELS[name]
    torch.manual_seed(0)
    model = model_class(kind)(**options, tied=False, word_dropout=0.0)
    assert isinstance(model, RetrievalTask)
    model._build(data.spec, None, None)
    return model.train()


class PlainEncoder:
    """The same tower without any of its tricks."""

    def __init__(self, tower: RecurrentTower) -> None:
        self.tower, self.parameters = tower, list(tower.parameters())
        layer = tower.hashing
        self.row_of = {int(number): row for row, number in enumerate(layer.known)}

    def __call__(self, char: Tensor, text: Tensor) -> Tensor:
        tower, layer = self.tower, self.tower.hashing
        # Every token's trigrams, as they stand in the text.
        number, start = letter_trigrams(char[text.flatten()], layer.mark)
        row = torch.searchsorted(layer.known, number).clamp(max=len(layer.known) - 1)
        product = functional.embedding_bag(row, layer.table, start, mode="sum").view(*text.shape, -1)
        product = product + tower.bias[0]
        h = tower.hidden_size
        y = c = product.new_zeros(len(text), h)
        for t in range(text.shape[1]):
            gates = product[:, t] + y @ tower.recurrent[0].T
            i, o = gates[:, :h].sigmoid(), gates[:, h : 2 * h].sigmoid()
            new_c = c + i * gates[:, 2 * h :].tanh()
            real = (text[:, t] != 0).unsqueeze(1)
            y, c = torch.where(real, o * new_c.tanh(), y), torch.where(real, new_c, c)
        return functional.normalize(y, dim=1)


def plain_score(model: RetrievalTask) -> Callable[[ClickBatch], Tensor]:
    query, document = PlainEncoder(model.network.query), PlainEncoder(model.network.document)
    return lambda batch: query(batch.char, batch.query_text) @ document(batch.char, batch.document_text).T


class Contender:
    """A training loop, and the CPU time that it took."""

    def __init__(
        self, model: RetrievalTask, score: Callable[[ClickBatch], Tensor], batches: Iterator[ClickBatch]
    ) -> None:
        self.model, self.score, self.batches = model, score, batches
        self.optimizer = torch.optim.Adam(model.network.parameters(), lr=1e-3, fused=True)
        self.seconds, self.rows, self.loss = 0.0, 0, 0.0

    def step(self, count: bool = True) -> None:
        started = time.process_time()
        batch = next(self.batches)
        self.optimizer.zero_grad()
        loss = self.model.loss_terms(self.score(batch), batch).mean()
        loss.backward()
        self.optimizer.step()
        self.loss = float(loss.detach())
        if count:
            self.seconds += time.process_time() - started
            self.rows += ROWS * len(batch.row)

    @property
    def speed(self) -> float:
        return self.rows / self.seconds


def endless(data: ClickthroughDataModule) -> Iterator[ClickBatch]:
    loader = data.train_dataloader()
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def encoding_speed(model: RetrievalTask, data: ClickthroughDataModule, by_length: bool, block: int) -> float:
    """Texts a CPU second."""
    dataset = data.ranking_dataset(data.split("train"), model.batch_contents("train"))
    blocks = dataset.document_blocks(block)
    if not by_length:
        order = np.random.default_rng(0).permutation(len(dataset.documents))
        blocks = [order[start : start + block] for start in range(0, len(order), block)]
    model.eval()
    with torch.inference_mode():
        model.embed(dataset.document_batch(blocks[0]), queries=False)
        started = time.process_time()
        for columns in blocks:
            model.embed(dataset.document_batch(columns), queries=False)
        seconds = time.process_time() - started
    model.train()
    return len(dataset.documents) / seconds


def memory_of(name: str, data: ClickthroughDataModule) -> float:
    """GB that training a model adds to a process, at most; in a process of its own."""

    def train(answer: Any) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model = make_model(name, data)
        contender = Contender(model, model.network, endless(data))
        for _ in range(5):
            contender.step()
        answer.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6)

    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    process = context.Process(target=train, args=(answer,))
    process.start()
    gigabytes: float = answer.get()
    process.join()
    return gigabytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--data_dir", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data_dir is None:
            files: dict[str, Any] = write_texts(Path(folder))
        else:
            names = ("corpus.jsonl.gz", "queries.train.jsonl", "qrels.train.tsv.gz")
            paths = [str(arguments.data_dir / "nfcorpus" / name) for name in names]
            files = dict(zip(("corpus_file", "train_queries", "train_judgements"), paths, strict=True))
            files["document_column"] = "title"
        data = make_data(files, Path(folder) / "cache", arguments.batch_size)
        print(f"{len(data.spec.trigrams)} trigrams, batches of {arguments.batch_size} examples")
        for name in ("DSSM", "CLSM", "LSTM-RNN-96"):
            print(
                f"{name:14} trains in {memory_of(name, data):.2f} GB in addition to the program and the data"
            )
        contenders = {}
        for name in MODELS:
            model = make_model(name, data)
            contenders[name] = Contender(model, model.network, endless(data))
        model = make_model("LSTM-RNN-96", data)
        contenders["plain loop"] = Contender(model, plain_score(model), endless(data))
        for turn in range(arguments.steps + 2):
            for contender in contenders.values():
                contender.step(count=turn >= 2)
        same = contenders["LSTM-RNN-96"].loss - contenders["plain loop"].loss
        print(f"losses of the two LSTM-RNN-96 differ by {same:.1e} after {arguments.steps + 2} steps")
        for name, contender in contenders.items():
            ratio = contender.speed / contenders["plain loop"].speed
            line = f"{contender.speed:8.0f} rows a CPU second, {ratio:4.1f} x the plain loop"
            if name in MATCHZOO_ROWS:
                line += (
                    f", {contender.speed / MATCHZOO_ROWS[name]:.0f} x MatchZoo-py's rows (noted elsewhere)"
                )
            print(f"{name:14} {line}")
        for name in MODELS:
            speeds = [
                encoding_speed(contenders[name].model, data, by_length, 256) for by_length in (True, False)
            ]
            print(
                f"{name:14} encodes {speeds[0]:8.0f} texts a CPU second by length, {speeds[1]:8.0f} in any order"
            )


if __name__ == "__main__":
    main()
