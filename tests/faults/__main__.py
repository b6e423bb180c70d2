"""A campaign of faults, in cases that each do one thing wrong and continue as a user would.

    python -m tests.faults                          minutes
    python -m tests.faults --cases 20000 --kills 60 hours

| campaign | fault |
|---|---|
| caches, checkpoints, models, readers | bytes of one file are changed, lost or doubled |
| contents | numbers of an exported model are wrong, its checksums right |
| real_disks | a command runs on a small file system, mounted for the case; skipped where that is not allowed |
| kills | a command is killed, interrupted or ended at a random moment and run again |
| servers | a server is killed while clients add rows to its memory |

A case must be refused in one line, or reach the result of an undamaged run: another result without a message, a
traceback, a crash or an endless loop is a defect. Wrong numbers may be valid ones, so `contents` compares no results.
The last lines count the outcomes by campaign; a defect is printed with the seed that reproduces it:

    python -m tests.faults --only CAMPAIGN --first SEED --cases 1
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.core.errors import InputError
from tests.faults import campaigns, contents, disks, kills
from tests.faults.campaigns import Campaign

#: Name of a campaign -> the function that makes it of a folder.
ALL: dict[str, Callable[[Path], Campaign | None]] = {
    "caches": campaigns.caches,
    "checkpoints": campaigns.checkpoints,
    "contents": contents.contents,
    "kills": kills.kills,
    "models": campaigns.models,
    "readers": campaigns.readers,
    "real_disks": disks.real_disks,
    "servers": kills.servers,
}
#: Limit of a case in seconds; the second number is for cases that run commands.
SECONDS = 120, 900
#: A case's outcomes, the good ones first.
OUTCOMES = ("same", "refused", "wrong", "traceback", "died", "endless")


def outcome_of(case: Callable[[], Any], expected: Any, seconds: float) -> tuple[str, str]:
    """Run a case in its own process; return its outcome and one line about it."""
    receiving, sending = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        # Libraries print warnings about damaged files.
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        sending.send(_run(case, expected))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(seconds)
    if child.is_alive():
        child.kill()
        child.join()
        return "endless", f"more than {seconds} s"
    return receiving.recv() if receiving.poll() else ("died", f"status {child.exitcode}")


def _run(case: Callable[[], Any], expected: Any) -> tuple[str, str]:
    try:
        result = case()
    except InputError as error:
        if "\n" in str(error):
            return "traceback", "a message of several lines"
        return "refused", str(error)[:300]
    except BaseException:
        return "traceback", traceback.format_exc()[-2000:]
    return ("same", "") if expected is None or result == expected else ("wrong", str(result)[:300])


def main() -> int:
    """Run the campaigns; the exit code is 1 if there was a defect."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=300, help="of each campaign of damaged files")
    parser.add_argument("--kills", type=int, default=6, help="of each command")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--only", nargs="+", choices=sorted(ALL), default=sorted(ALL))
    given = parser.parse_args()
    defects = 0
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            campaign = ALL[name](Path(folder))
            if campaign is None:
                continue
            cases = given.kills if campaign.is_slow else given.cases
            outcomes = Counter[str]()
            for seed in range(given.first, given.first + cases):
                work = Path(folder) / "case"
                shutil.rmtree(work, ignore_errors=True)
                case = campaign.case(np.random.default_rng(seed), work)
                outcome, line = outcome_of(case, campaign.expected, SECONDS[campaign.is_slow])
                outcomes[outcome] += 1
                if outcome not in ("same", "refused"):
                    defects += 1
                    print(f"{name} seed {seed}: {outcome}\n{line}", file=sys.stderr, flush=True)
            counts = ", ".join(f"{outcome} {outcomes[outcome]}" for outcome in OUTCOMES)
            print(f"{name:12} {cases:6} cases: {counts}", flush=True)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
