"""Words of the published tasks, all of a task's files together, compared with those of the paper's Table 1.

python -m tests.benchmarks.hmn_vocabulary --data_dir FOLDER_OF_THE_FILES
"""

from __future__ import annotations

import argparse
from pathlib import Path

from datamodules.corpora.dialogue_readers import read_hmn4qa

PAPER = {"task_01": 8540, "task_02": 7586, "task_03": 7537, "task_04": 7134}


def main() -> None:
    """Count the words of turns, questions and answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data_dir", required=True)
    for task, size in PAPER.items():
        words: set[str] = set()
        files = sorted(Path(parser.parse_args().data_dir).glob(f"{task}_*.txt"))
        for file in files:
            table = read_hmn4qa(file)
            for texts in (table.turns.texts, table.questions.texts, table.questions.labels or []):
                words.update(word for text in texts for word in text.split())
        print(f"{task}: {len(words)} words in {len(files)} files; the paper has {size} in three")


if __name__ == "__main__":
    main()
