"""CPU seconds to prepare a table of pairs: reading, tokenising, vocabulary and cache.

MatchZoo-py 1.1.1 takes 7.3 to 8 CPU seconds for the 20,360 pairs of WikiQA's training file (noted on another
machine; tokenising, vocabulary and ids, without writing anything).

    python -m tests.benchmarks.matching_prepare [--train_file WikiQA-train.tsv] [--repeats 5]
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import numpy as np

from datamodules.matching import MatchingDataModule

QUESTIONS, CANDIDATES, VOCABULARY = 2_118, 10, 30_000


def write_pairs(path: Path) -> str:
    """As many pairs as WikiQA's training file has, of the same form; words are drawn with Zipf's distribution."""
    random = np.random.default_rng(0)
    lines = ["QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel"]

    def text(words: int) -> str:
        return " ".join(f"w{number}" for number in random.zipf(1.2, words) % VOCABULARY)

    for question in range(QUESTIONS):
        question_text = text(7)
        for candidate in range(CANDIDATES):
            answer = text(int(random.integers(8, 45)))
            lines.append(
                f"Q{question}\t{question_text}\tD\ttitle\tQ{question}-{candidate}\t{answer}\t{int(candidate == 0)}"
            )
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def cpu_seconds(train_file: str) -> tuple[float, int]:
    """CPU seconds of one preparation with an empty cache, and the pairs that there are."""
    with tempfile.TemporaryDirectory() as cache:
        # Validation rows come from the same file, so all pairs are prepared once.
        data = MatchingDataModule(train_file=train_file, layout="wikiqa", cache_dir=cache)
        start = time.process_time()
        data.prepare_data()
        data.setup("fit")
        seconds = time.process_time() - start
        return seconds, sum(len(data.split(name).pairs) for name in ("train", "validation"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train_file", help="WikiQA-train.tsv; without it, drawn words")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    logging.getLogger("datamodules").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        file = given.train_file or write_pairs(Path(folder) / "pairs.tsv")
        times = []
        for _ in range(given.repeats):
            seconds, pairs = cpu_seconds(file)
            times.append(seconds)
    print(
        f"{pairs:,} pairs: {times[0]:.2f} CPU s the first time in a process, {min(times[1:], default=times[0]):.2f}"
        f" the best of {given.repeats}; MatchZoo-py 7.3 to 8 as noted"
    )


if __name__ == "__main__":
    main()
