"""Training HMN on dialogues that are encoded once, beside dialogues that are encoded once a question.

The same network and questions; in the second batches each question has a copy of its dialogue. Both compute the same
loss from the same weights (checked first). Dialogues are seeded draws: 16 turns of 4 to 12 words, 6 questions, of
words with Zipf's distribution and of some that no other dialogue has; or those of a published file.

    python -m tests.benchmarks.hmn_step [--threads 1] [--steps 20] [--train_file task_01_..._train.txt]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules import DialogueDataModule
from datamodules.corpora.dialogues import Dialogue, Dialogues
from tests.dialogues import MadeUp, write_published
from zoo import HMN

BATCH = 10


def draw(number: int) -> list[MadeUp]:
    """Dialogues of the size of the published ones."""
    random = np.random.default_rng(0)
    weights = 1 / np.arange(1, 301)
    words = [f"w{i}" for i in range(300)]
    found = []
    for dialogue in range(number):
        turns = [
            [*random.choice(words, size=random.integers(3, 12), p=weights / weights.sum())] for _ in range(16)
        ]
        answers = [f"own{dialogue}-{i}" for i in range(6)]
        for i, answer in enumerate(answers):
            turns[2 * i + 2].append(answer)
        questions = [" ".join(random.choice(words[:30], size=6)) for _ in answers]
        found.append(MadeUp([" ".join(turn) for turn in turns], questions, answers))
    return found


def a_dialogue_a_question(table: Dialogues) -> Dialogues:
    """Each question with a copy of its dialogue."""
    copies = []
    for number in range(len(table)):
        turns = table.turns.texts[slice(*table.turn_offsets[number : number + 2])]
        for row in range(*table.question_offsets[number : number + 2]):
            question, answer = table.questions.texts[row], table.questions.label(row)
            copies.append(Dialogue(str(row), turns, [question], [answer], [str(row)]))
    return Dialogues.from_list(copies)


def main() -> None:
    """Check that both agree, then time them in turns."""
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
        copies = data.dataset(data.split_of(a_dialogue_a_question(table)))

        def of_questions(start: int) -> Any:
            return copies.__getitems__(range(*table.question_offsets[[start, start + BATCH]]))

        def of_dialogues(start: int) -> Any:
            return once.__getitems__(range(start, start + BATCH))

        compare(data, {"once": of_dialogues, "a question": of_questions}, options.steps)


def compare(data: DialogueDataModule, contenders: dict[str, Any], steps: int) -> None:
    """Print the rate of each contender, and how many times the first is faster."""
    torch.manual_seed(0)
    model: Any = HMN()
    model._build(data.spec, None, None)
    model.eval()
    with torch.no_grad():
        losses = [
            model.loss_terms(model(batch), batch).mean() for batch in (m(0) for m in contenders.values())
        ]
    print(f"difference of the loss: {abs(float(losses[0] - losses[1])):.1e}")
    assert abs(losses[0] - losses[1]) < 1e-4
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    seconds = dict.fromkeys(contenders, 0.0)
    for step in range(-3, steps):  # the first few are for the caches
        for name, make in contenders.items():
            before = time.process_time()
            batch = make(step % 20 * BATCH)
            optimizer.zero_grad()
            model.loss_terms(model(batch), batch).mean().backward()
            optimizer.step()
            if step >= 0:
                seconds[name] += time.process_time() - before
    for name, spent in seconds.items():
        print(f"{name:12s} {steps * BATCH / spent:8.0f} dialogues a CPU second")
    first, second = seconds.values()
    print(f"{second / first:.2f} x")


if __name__ == "__main__":
    main()
