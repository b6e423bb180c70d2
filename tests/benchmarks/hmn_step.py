"""Training HMN on dialogues that are encoded once, compared with dialogues that are encoded once per question.

The same network and questions; in the other batches each question has a copy of its dialogue, read by our GRU or, as
one would write it first, by PyTorch's. All compute the same loss from the same weights (it is printed). Dialogues are
seeded draws: 16 turns of 4 to 12 words, 6 questions, of words with Zipf's distribution and of some that no other
dialogue has; or those of a published file.

    python -m tests.benchmarks.hmn_step [--threads 1] [--steps 20] [--train_file task_01_..._train.txt]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules import DialogueDataModule
from datamodules.corpora.dialogues import Dialogue, Dialogues
from tests.dialogues import MadeUp, write_published
from zoo import HMN
from zoo.layers.gru import AllStatesGRU

BATCH = 10


def draw(number: int) -> list[MadeUp]:
    """Dialogues of the size of the published ones."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, 301)
    words = [f"w{i}" for i in range(300)]
    dialogues = []
    for dialogue in range(number):
        turns = [
            [*random.choice(words, size=random.integers(3, 12), p=weights / weights.sum())] for _ in range(16)
        ]
        answers = [f"own{dialogue}-{i}" for i in range(6)]
        for i, answer in enumerate(answers):
            turns[2 * i + 2].append(answer)
        questions = [" ".join(random.choice(words[:30], size=6)) for _ in answers]
        dialogues.append(MadeUp([" ".join(turn) for turn in turns], questions, answers))
    return dialogues


def a_dialogue_a_question(table: Dialogues) -> Dialogues:
    """Each question with a copy of its dialogue."""
    repeated = []
    for number in range(len(table)):
        turns = table.turns.texts[slice(*table.turn_offsets[number : number + 2])]
        for row in range(*table.question_offsets[number : number + 2]):
            question, answer = table.questions.texts[row], table.questions.label(row)
            repeated.append(Dialogue(str(row), turns, [question], [answer], [str(row)]))
    return Dialogues.from_list(repeated)


def main() -> None:
    """Time the contenders in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--train_file", default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as folder:
        file = options.train_file or str(write_published(Path(folder) / "train.txt", draw(300)))
        data = DialogueDataModule(
            layout="hmn4qa", train_file=file, validation_split=0.1, cache_dir=folder, batch_size=BATCH
        )
        data.prepare_data()
        data.setup("fit")
        table = data.split("train").dialogues
        once = data.dataset(data.split("train"))
        repeated = data.dataset(data.split_of(a_dialogue_a_question(table)))

        def of_questions(start: int) -> Any:
            return repeated.__getitems__(range(*table.question_offsets[[start, start + BATCH]]))

        def of_dialogues(start: int) -> Any:
            return once.__getitems__(range(start, start + BATCH))

        contenders = {
            "once": (of_dialogues, AllStatesGRU),
            "a question": (of_questions, AllStatesGRU),
            "a question, PyTorch's GRU": (of_questions, PlainGRU),
        }
        compare(data, contenders, options.steps)


class PlainGRU(AllStatesGRU):
    """PyTorch's, on padded sequences of vectors."""

    def forward(self, table: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.packed(table, ids, lengths)


def compare(data: DialogueDataModule, contenders: dict[str, Any], steps: int) -> None:
    """Print the rate of each contender, and how many times the first is faster."""
    models: dict[str, Any] = {}
    for name, (make, gru) in contenders.items():
        torch.manual_seed(0)
        models[name] = model = HMN(word_dropout=0)
        model._build(data.spec, None, None)
        model.network.word_memory.gru.__class__ = gru
        batch = make(0)
        loss = model.loss_terms(model(batch), batch).mean().item()
        print(f"{name:26s} loss {loss:.5f}")
    optimizers = {
        name: torch.optim.Adam(model.parameters(), lr=0.001, fused=True) for name, model in models.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for step in range(-3, steps):  # the first few are for the caches
        for name, (make, _) in contenders.items():
            before = time.process_time()
            batch = make(step % 20 * BATCH)
            optimizers[name].zero_grad()
            models[name].loss_terms(models[name](batch), batch).mean().backward()
            optimizers[name].step()
            if step >= 0:
                seconds[name].append(time.process_time() - before)
    # Medians: others may share the machine.
    spent = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in spent.items():
        print(
            f"{name:26s} {BATCH / median:6.0f} dialogues a CPU second, {median / spent['once']:.2f} x the time"
        )


if __name__ == "__main__":
    main()
