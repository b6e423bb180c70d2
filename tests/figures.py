"""The measured figures of the pages, and the commands that make them: python -m tests.figures DATA [PAGE ...] [--all].

A figure is a table or a paragraph with a decimal number, a ±, or a CPU time. Numbers in code are none, nor are those of
options and of sections and columns of "the paper". Its commands stand next to it: in its text, in the code after it, or
before it, in the last block of the section that has some. The comment behind a command is its cost,
`# 2 minutes; at COMMIT`: those of at most three minutes are run; with --all, or on a named PAGE, the others as well.
A row of a table is compared with the rows of its name that its commands print, in columns whose name has the words of
its own. A difference, a failed command and a figure without a command are defects. Times in brackets are not compared.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").rglob("*.md"))]
SHORT = 3.0  # minutes of the longest command that is always run
#: Largest difference of a stated and a measured value, in units of the last digit of the stated one.
TOLERANCE = 1.5

_BLOCK = re.compile(r"^```[\s\S]*?^```$|^#.*$|(?:^(?!```|#).+\n?)+", re.MULTILINE)
_COMMAND = re.compile(r"zoo reproduce [\w./]|python -m tests\.|python examples/|make demo")
_COST = re.compile(r"#.*?\b(\d+) (second|minute|hour)s?\b")
_STATES = ("FAILED", "run")
_MINUTES = {"second": 1 / 60, "minute": 1.0, "hour": 60.0}
#: Names in commands that stand for the reader's own files.
_PLACEHOLDER = re.compile(r"\b(FOLDER|PYTHON|MINILM)")
_CODE_AND_LINKS = re.compile(r"`[^`]*`|\]\([^)]*\)")
_VERSION = re.compile(r"\b(server|client|Elasticsearch|Python|SetFit|cleanlab)s?( of)? \d+\.\d+")
_MEASURED = re.compile(r"(?<![\w.])\d*\.\d+(?![\w.])|±|\d (ms|CPU s|CPU seconds)\b|times as (fast|many)")
_WORD = re.compile(r"[a-z0-9@]+")
_DEVIATION = re.compile(r"±\s*[\d.]+|\([^)]*\)")
_NUMBER = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?|\.\d+")


class Figure(NamedTuple):
    """A table or paragraph with measured numbers, its place, and the commands next to it."""

    place: str
    text: str
    commands: tuple[str, ...]


def minutes_of(command: str) -> float:
    """The stated cost of a command; without one it is too long."""
    cost = _COST.search(command)
    return float(cost[1]) * _MINUTES[cost[2]] if cost else float("inf")


def commands_of(block: str) -> tuple[str, ...]:
    """The commands of a block that make figures; one in code comes with the lines before it, which prepare it."""
    if not block.startswith("```"):
        spans = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", block))
        return tuple(code for code in spans if _COMMAND.match(code))
    commands = [""]
    for line in block.replace("\\\n", "").splitlines()[1:-1]:
        commands[-1] += line + "\n"
        commands += [""] if _COST.search(line) else []
    return tuple(
        each.strip() for each in commands if any(map(_COMMAND.match, each.splitlines())) or _COST.search(each)
    )


def figures_of(page: Path) -> Iterator[Figure]:
    heading, commands, text = "", tuple[str, ...](), page.read_text(encoding="utf-8")
    blocks = [(text.count("\n", 0, block.start()) + 1, block[0]) for block in _BLOCK.finditer(text)]
    for (line, block), (_, after) in pairwise([*blocks, (0, "")]):
        if block.startswith("#"):
            heading, commands = block.lstrip("# "), ()
        own = commands_of(block)
        commands = own or commands
        following = commands_of(after) if after.startswith("```") else ()
        is_measured = not block.startswith(("#", "```", "| option")) and not heading.startswith("The paper's")
        if is_measured and _MEASURED.search(_VERSION.sub("", _CODE_AND_LINKS.sub("", block))):
            # A table stands under its commands; a paragraph may introduce them.
            near = commands or following if block.startswith("|") else own or following or commands
            yield Figure(f"{os.path.relpath(page, ROOT)}:{line}", block, near)


def cells_of(text: str) -> Iterator[tuple[str, set[str], str]]:
    """Row, words of the column, and number in the tables of a text, without deviations, brackets and the paper's."""
    head = list[str]()
    for line in text.splitlines():
        row = [cell.strip("* ").lower() for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        for column, cell in zip(head[1:], row[1:], strict=False):
            for number in _NUMBER.findall(_DEVIATION.sub("", cell)) if "paper" not in column else []:
                yield row[0], {*_WORD.findall(column)}, number.replace(",", "")
        head = row and (head or row)


def comparisons(table: str, outputs: Sequence[str]) -> Iterator[str]:
    """A line for each stated number of a row and column that outputs have, with the nearest measured one."""
    measured = [cell for output in outputs for cell in cells_of(output)]
    for row, column, stated in cells_of(table):
        same = [number for name, words, number in measured if name == row and column <= words]
        if apart := {abs(float(number) - float(stated)): number for number in same}:
            agrees = min(apart) < TOLERANCE * 10.0 ** -len(stated.partition(".")[2])
            state = "as stated" if agrees else "DEFECT"
            yield f"{state}: {row}: stated {stated}, measured {apart[min(apart)]}"


def run(command: str, folder: str) -> str:
    """The output of a command in a folder with the data in `data`; an empty one if it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-ec", command]
    ended = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)
    print(f"{command}\n{ended.stderr[-1000:]}" if ended.returncode else "", end="", flush=True)
    return "" if ended.returncode else ended.stdout


def report(figures: Sequence[Figure], outputs: Mapping[str, str]) -> int:
    """Print the state of each figure, by the outputs of the commands that were run; return the number of defects."""
    defects = 0
    for place, text, commands in figures:
        states = [_STATES[bool(outputs[each])] if each in outputs else "not run" for each in commands]
        lines = [f"{state}: {each.splitlines()[-1]}" for state, each in zip(states, commands, strict=True)]
        lines = lines or ["DEFECT: no command"]
        lines += (compared := [*comparisons(text, [outputs.get(each, "") for each in commands])])
        if not compared and text.startswith("|") and "run" in states:
            lines.append("DEFECT: the commands print no row of this table")
        defects += sum(line.startswith(("DEFECT", "FAILED")) for line in lines)
        print(*(f"{place}: {line}" for line in lines), sep="\n", flush=True)
    return defects


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands, and print their state and each compared number; 1 if there is a defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder with the data")
    parser.add_argument("pages", nargs="*", type=Path, help="pages of which all commands are run")
    parser.add_argument("--all", action="store_true", help="run all commands of all pages, for days")
    given = parser.parse_args(arguments)
    figures = [figure for page in given.pages or PAGES for figure in figures_of(page.resolve())]
    longest = float("inf") if given.all or given.pages else SHORT
    stated = dict.fromkeys(each for figure in figures for each in figure.commands)
    commands = [each for each in stated if minutes_of(each) <= longest and not _PLACEHOLDER.search(each)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").symlink_to(given.data.resolve())
        Path(folder, "examples").symlink_to(ROOT / "examples")
        outputs = {command: run(command, folder) for command in commands}
    defects = report(figures, outputs)
    print(f"{len(figures)} figures, {len(commands)} of {len(stated)} commands run, {defects} defects")
    return int(defects > 0)


if __name__ == "__main__":
    sys.exit(main())
