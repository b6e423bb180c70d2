"""Measure training and search on a GPU machine, in at most nine minutes: python -m tests.benchmarks.gpu --output DIR.

For the models of the five papers, the default and the contrastive stage of its transformer: examples per second, the
share of the time in which a kernel runs, memory, bfloat16 against float32, waiting for data, several GPUs, and
`torch.compile`; dense search on the GPU next to the CPU. DIR then has results.json, report.md and pictures; what did
not fit into the time is named there. Without a GPU, the same runs at toy size. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from tqdm import tqdm

from datamodules.core.storage import write_json
from tests.benchmarks.gpu.measure import VARIANTS, Case, Machine, Result, cases
from tests.benchmarks.gpu.report import write_report
from tests.benchmarks.gpu.workloads import FULL, TOY, random_transformer
from zoo.cli.main import ignore_irrelevant_warnings

#: A measurement is stopped after this many times the seconds that are expected of it.
PATIENCE = 3


def parse(args: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of the results; new, or of an earlier run"
    )
    parser.add_argument("--seconds", type=float, default=520.0, help="for everything; default: %(default)s")
    parser.add_argument("--data_dir", type=Path, default=Path("../shared/data"), help="the papers' data; default: %(default)s. Absent files are made up")  # fmt: skip # noqa: E501
    parser.add_argument(
        "--transformer", type=Path, help="folder of MiniLM; default: its shape with random weights"
    )
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="measure only these"
    )
    options = parser.parse_args(args)
    if options.transformer is not None and not options.transformer.is_dir():
        parser.error(f"--transformer {options.transformer}: no such folder; name one, or omit the option")
    return options


def main(args: Sequence[str] | None = None) -> None:
    """Measure, and write the results after each measurement."""
    began = time.monotonic()
    options = parse(args)
    logging.basicConfig(level=logging.ERROR)
    ignore_irrelevant_warnings()
    has_gpu = torch.cuda.is_available()
    scale = FULL if has_gpu else TOY
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    given = options.transformer
    transformer = random_transformer(folder, scale) if given is None else str(given.absolute())
    facts = {
        "device": torch.cuda.get_device_name() if has_gpu else "CPU",
        "gpus": torch.cuda.device_count(),
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "scale": scale.name,
        "transformer": "random weights in MiniLM's shape" if given is None else str(given),
        "seconds": options.seconds,
    }
    results = list[Result]()
    known = dict[str, float]()
    wanted = [
        case
        for case in cases(Machine(scale, folder, has_gpu), options.data_dir.absolute(), transformer)
        if case.result.variant in options.variants
    ]
    try:
        for case in tqdm(wanted, "measuring", disable=None):
            left = options.seconds - (time.monotonic() - began)
            measure(case, left, known, scale.seconds[0])
            results.append(case.result)
            contents = {"machine": facts, "results": [asdict(each) for each in results]}
            write_json(folder / "results.json", contents)
    finally:  # an interrupted run reports as well
        write_report(folder, facts, results)
    print(folder / "report.md")


def measure(case: Case, left: float, known: dict[str, float], usual: float) -> None:
    """Fill in the result of a measurement, unless it does not fit into the seconds that are left.

    `known` has the seconds of the last ordinary measurement of each name; `usual` stands for those that are not known.
    """
    result = case.result
    expected = known.get(result.name, usual) + case.extra
    if case.obstacle or expected > left:
        result.reason = case.obstacle or f"takes about {expected:.0f} s, and {max(left, 0):.0f} s are left"
        return
    began = time.monotonic()
    try:
        result.figures = case.run(min(left, PATIENCE * max(expected, usual)))
        result.status = "measured"
    except (Exception, SystemExit) as error:  # one failure must not lose the other measurements
        result.status = "failed"
        result.reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        print(f"{result.name}, {result.variant}: {result.reason}", file=sys.stderr)
    result.seconds = time.monotonic() - began
    if result.variant in ("bf16", "fp32"):  # the first one also prepares the data
        known[result.name] = result.seconds
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
