"""`zoo reproduce` by several processes on one folder, with claims of other machines; and `--plan`."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from datamodules.core.storage import machine
from tests.zoo.conftest import Result
from tests.zoo.reproduce.conftest import ROWS, STAND_IN, write_yaml
from zoo.reproduce import claims, plan
from zoo.reproduce import run as runs_of_a_table
from zoo.reproduce.claims import HEARTBEAT, STALE, ClaimLost, claimed, holder
from zoo.reproduce.command import run_table as reproduce
from zoo.reproduce.plan import Plan, Run, by_urgency
from zoo.reproduce.run import RowFailed
from zoo.reproduce.table import load_table

Command = Callable[..., Result]
Calls = Callable[[], list[list[str]]]

#: Precedes the stand-in's code: a fit writes its parent's id, and M5 waits for a file.
BEGINS = """
import os, time
from pathlib import Path
if "fit" in sys.argv:
    run = next(a for a in sys.argv if a.startswith("--run_dir"))
    with open("fits.txt", "a") as fits:
        fits.write(f"{os.getppid()} {'/'.join(run.split('/')[-2:])}\\n")
    {BEGIN}
"""
BOTH = "while len({line.split()[0] for line in open('fits.txt')}) < 2: time.sleep(0.02)"
GATE = "while '--model.features=M5' in sys.argv and not Path('open').exists(): time.sleep(0.02)"


@pytest.fixture
def begin(stand_in: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the code that each fit begins with."""
    monkeypatch.setattr(runs_of_a_table, "POLL", 0.05)
    monkeypatch.setattr(runs_of_a_table, "HEARTBEAT", 0.05)

    def set_begin(code: str) -> None:
        (tmp_path / "stand_in.py").write_text("import sys\n" + BEGINS.replace("{BEGIN}", code) + STAND_IN)

    return set_begin


def fits() -> list[tuple[int, str]]:
    """Process and run of each fit so far."""
    file = Path("fits.txt")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(line.split()[0]), line.partition(" ")[2]) for line in lines]


def start(number: int, *arguments: Any, **options: Any) -> BaseProcess:
    """Run a table in a process of its own, which prints into a file."""

    def work() -> None:
        with Path(f"printed-{number}.txt").open("w", buffering=1) as sys.stdout:
            reproduce(*arguments, **options)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def printed(number: int) -> str:
    file = Path(f"printed-{number}.txt")
    return file.read_text() if file.exists() else ""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def write_claim(
    run: str, number: int = 1, host: str = "host-a", seconds_ago: float = 0, **facts: Any
) -> Path:
    """Write a claim of another machine, or one with other facts."""
    file = Path(f"{run}.claim-{number}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"host": host, "machine": "0123abcd", "process": os.getpid(), **facts}))
    os.utime(file, (time.time() - seconds_ago,) * 2)
    return file


def left_behind() -> list[str]:
    """Files of claims, failures and unfinished writes."""
    names = (path.name for path in Path("out").rglob("*") if path.is_file())
    return [name for name in names if re.search(r"claim|\.failed$|^\.(?!clock$)", name)]


# --- processes on one folder ---


def test_two_processes_share_the_runs(data_dir: Path, begin: Callable[[str], None]) -> None:
    begin(BOTH)  # each fit lasts until both processes have begun one
    name = write_yaml({**ROWS, "later": {"init_from": "M1"}})
    processes = [start(number, name, str(data_dir), run_dir="out") for number in (0, 1)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0, printed(0) + printed(1)
    runs = ["majority/seed-1", *(f"{row}/seed-{seed}" for row in ("M1", "M7", "later") for seed in (1, 2))]
    assert sorted(run for _, run in fits()) == sorted(runs)
    assert {process for process, _ in fits()} == {process.pid for process in processes}
    tables = [printed(number).partition("# small")[2] for number in (0, 1)]
    assert tables[0] == tables[1]
    assert [row["val/accuracy"]["n"] for row in json.loads(Path("out/table.json").read_text()).values()] == [
        *(1, 2, 2, 2)
    ]
    for number in (0, 1):
        assert printed(number).count(", seed ") == len(runs)
    assert left_behind() == []


def test_the_run_of_a_killed_process_is_taken_over(data_dir: Path, begin: Callable[[str], None]) -> None:
    begin(GATE)
    name = write_yaml({**ROWS, "M5": {"overrides": {"model.features": "M5"}}}, seeds=1)
    first = start(0, name, str(data_dir), rows=["M5"], run_dir="out")
    wait_until(fits)
    second = start(1, name, str(data_dir), run_dir="out")
    wait_until(lambda: "waiting for runs on" in printed(1))
    assert (first.pid, "M5/seed-1") in fits()
    assert len(fits()) == 4
    os.kill(first.pid or 0, signal.SIGKILL)
    first.join()
    Path("open").touch()
    second.join(60)
    assert second.exitcode == 0
    assert fits()[4:] == [(second.pid, "M5/seed-1")]
    assert json.loads(Path("out/table.json").read_text())["M5"]["val/accuracy"]["n"] == 1
    assert left_behind() == []


@pytest.mark.slow
def test_real_runs_of_two_processes_have_the_figures_of_one(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    name = write_yaml({row: ROWS[row] for row in ("M1", "M7")}, seeds=1)
    command = [*runs_of_a_table.ZOO, "reproduce", name, f"--data_dir={data_dir}", "--run_dir=out"]
    with subprocess.Popen(command) as first, subprocess.Popen(command) as second:
        pass
    assert (first.returncode, second.returncode) == (0, 0)
    assert not list(Path("out").rglob("*claim*"))
    shared = json.loads(Path("out/table.json").read_text())
    assert reproduce(name, str(data_dir), run_dir="alone") == shared
    assert all(row["val/accuracy"]["n"] == 1 for row in shared.values())


# --- claims of other machines ---


def test_a_stale_claim_of_another_machine_is_taken_over(
    data_dir: Path, stand_in: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    write_claim("out/M1/seed-2", number=3, seconds_ago=STALE + 60)
    figures = reproduce(write_yaml(ROWS), str(data_dir), run_dir="out")
    assert figures["M1"]["val/accuracy"]["n"] == 2
    assert len(stand_in()) == 5
    assert "waiting" not in capsys.readouterr().out
    assert left_behind() == []


@pytest.fixture
def while_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Calls a function instead of the first pause of a waiting process."""

    def replace(event: Callable[[], object]) -> None:
        events, sleep = [event], time.sleep
        monkeypatch.setattr(runs_of_a_table, "POLL", 0.123)
        monkeypatch.setattr(
            runs_of_a_table.time,
            "sleep",
            lambda seconds: events.pop()() if seconds == 0.123 and events else sleep(seconds),
        )

    return replace


def test_a_run_of_another_machine_is_waited_for(
    data_dir: Path, stand_in: Calls, while_waiting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_yaml({**ROWS, "later": {"init_from": "M1"}}, seeds=1)
    expected = reproduce(name, str(data_dir), run_dir="out")
    Path("out/M1/seed-1").rename("M1-of-host-a")
    shutil.rmtree("out/later")
    claim = write_claim("out/M1/seed-1", seconds_ago=STALE - 60)
    stand_in()
    capsys.readouterr()

    def finish() -> None:
        assert stand_in() == []
        shutil.copytree("M1-of-host-a", "out/M1/seed-1", copy_function=shutil.copyfile)
        claim.unlink()

    while_waiting(finish)
    assert reproduce(name, str(data_dir), run_dir="out") == expected
    lines = capsys.readouterr().out.splitlines()
    assert "waiting for runs on host-a (1)" in lines
    assert any(line.startswith("M1, seed 1: val/accuracy 0.1000  (") for line in lines)
    # The run that starts from the other machine's has begun after it.
    (fit,) = stand_in()
    assert f"--model.init_from={Path('out').resolve()}/M1/seed-1/checkpoints/best.ckpt" in fit


def test_a_run_that_fails_on_another_machine_fails_what_starts_from_it(
    data_dir: Path, stand_in: Calls, while_waiting: Any
) -> None:
    claim = write_claim("out/M1/seed-1")

    def fail() -> None:
        Path("out/M1/seed-1.failed").write_text("the disk of host-a is full")
        claim.unlink()

    while_waiting(fail)
    with pytest.raises(RowFailed, match="2 of the runs failed: M1, seed 1, later, seed 1"):
        reproduce(write_yaml({**ROWS, "later": {"init_from": "M1"}}, seeds=1), str(data_dir), run_dir="out")
    text = Path("out/table.md").read_text()
    assert "Failed: M1, seed 1: the disk of host-a is full" in text
    assert "Failed: later, seed 1: starts from M1, seed 1, which failed" in text
    assert [call[0] for call in stand_in()] == ["fit", "fit"]  # the other two rows
    # The next command repeats both.
    reproduce("small.yaml", str(data_dir), seeds=1, run_dir="out")
    assert len(stand_in()) == 2
    assert left_behind() == []


def test_a_run_that_was_taken_over_is_left_to_the_other_machine(
    data_dir: Path, begin: Callable[[str], None], while_waiting: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_yaml({"M1": ROWS["M1"]}, seeds=1)
    claim = json.dumps({"host": "host-b", "machine": "0123abcd", "process": 1})
    taken = f"Path('out/M1/seed-1.claim-2').write_text('{claim}'); Path('out/M1/seed-1.claim-1').unlink()"
    begin(f"{taken}; time.sleep(60)")
    while_waiting(lambda: (begin("pass"), Path("out/M1/seed-1.claim-2").unlink()))
    figures = reproduce(name, str(data_dir), run_dir="out")
    assert figures["M1"]["val/accuracy"]["n"] == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["M1, seed 1: another machine has taken it over", "waiting for runs on host-b (1)"]
    assert len(fits()) == 2


@pytest.mark.parametrize(
    ("facts", "seconds_ago", "expected"),
    [
        ({}, 0, "host-a"),
        ({}, STALE - HEARTBEAT, "host-a"),
        ({}, STALE + HEARTBEAT, None),
        ({"process": 2**22 + 1}, 0, "host-a"),  # the processes of another machine are unknown
        ({"process": 2**22 + 1, "machine": machine()}, 0, None),  # more than Linux has
        ({"process": os.getppid(), "machine": machine()}, 0, "host-a"),
        ({"process": 10**30, "machine": machine()}, 0, None),
        ({"process": "x"}, 0, "another machine"),
        ({"host": "red \x1b[31m"}, 0, "red \\u001b[31m"),
    ],
)
def test_a_claim_lasts_while_its_holder_lives(
    facts: dict[str, Any], seconds_ago: float, expected: str | None
) -> None:
    write_claim("out/M1/seed-1", number=7, host="an older claim")
    write_claim("out/M1/seed-1", number=12, seconds_ago=seconds_ago, **facts)
    assert holder(Path("out/M1/seed-1")) == expected
    with claimed(Path("out/M1/seed-1")) as claim:
        assert (claim is None) == (expected is not None)
        if claim is not None:
            assert [path.name for path in Path("out/M1").glob("*claim*")] == ["seed-1.claim-13"]


def test_a_claim_that_is_being_written_is_held() -> None:
    write_claim("out/M1/seed-1").write_text("")
    assert holder(Path("out/M1/seed-1")) == "another machine"
    assert holder(Path("out/M1/seed-2")) is None
    assert holder(Path("absent/M1/seed-1")) is None


def test_one_of_two_processes_creates_a_claim(tmp_path: Path) -> None:
    run = tmp_path / "seed-1"
    with claimed(run) as first, claimed(run) as second:
        assert first is not None
        assert second is None
        first.renew()
        own = first.file.read_text()
        first.file.write_text(
            own.replace("{", "{ ")
        )  # the number was released, and claimed by another process
        with pytest.raises(ClaimLost):
            first.renew()
        first.file.write_text(own)
        write_claim("seed-1", number=2)
        (tmp_path / "seed-1.claim-1").unlink()
        with pytest.raises(ClaimLost):
            first.renew()


@pytest.mark.parametrize("number", [3, 5])
def test_a_process_that_was_faster_holds_the_run(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_claim("seed-1", number=2, seconds_ago=STALE + 60)
    judge = claims._holder

    def judge_then_create(run: Path, judged: int) -> str | None:
        """Another process, or several one after the other, create their claims after this one was judged."""
        result = judge(run, judged)
        write_claim("seed-1", number=number)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(claims, "_holder", judge_then_create)
        with claimed(tmp_path / "seed-1") as claim:
            assert claim is None
    assert holder(tmp_path / "seed-1") == "host-a"
    names = ["seed-1.claim-2", f"seed-1.claim-{number}"]
    assert sorted(path.name for path in tmp_path.glob("seed-1*")) == names


def test_a_claim_survives_a_file_system_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: Path) -> None:
        raise OSError(5, "Input/output error")

    with claimed(tmp_path / "seed-1") as claim, monkeypatch.context() as patch:
        assert claim is not None
        patch.setattr(claims.os, "utime", fail)
        claim.renew()


# --- the plan ---


def test_the_plan_of_a_half_finished_table(
    data_dir: Path, stand_in: Calls, zoo_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {**ROWS, "later": {"init_from": "M7"}}
    name = write_yaml(rows, seeds=3, minutes=400)
    reproduce(name, str(data_dir), rows=["M1", "majority"], run_dir="out")
    for seed, seconds in ((1, 3600), (2, 7200)):
        file = Path(f"out/M1/seed-{seed}/result.json")
        result = json.loads(file.read_text())
        assert {"seconds", "speed", "host"} <= result.keys()
        file.write_text(json.dumps({**result, "seconds": seconds, "speed": 0.5}))
    shutil.rmtree("out/M1/seed-3")
    write_claim("out/M7/seed-2")
    write_claim("out/M7/seed-3", seconds_ago=STALE + 60)
    stand_in()
    before = sorted(Path("out").rglob("*"))
    monkeypatch.setattr("zoo.reproduce.command.speed", lambda: 2.0)
    result = zoo_command("reproduce", name, "--data_dir", data_dir, "--run_dir=out", "--plan")
    assert result.code == 0, result.err
    # 10 runs of 400 minutes: 40 minutes each, 20 here. M1: 60 and 120 minutes at half the reference's speed.
    lines = [line.strip("| ") for line in re.sub(" +", " ", result.out).splitlines() if "---" not in line]
    assert [line for line in lines if line] == [
        "row | runs | finished | at work | missing | minutes a run | from",
        "majority | 1 | 1 | 0 | 0 | 0.0 | runs",
        "M1 | 3 | 2 | 0 | 1 | 22.5 | runs",
        "M7 | 3 | 0 | 1 | 2 | 20.0 | estimate",
        "later | 3 | 0 | 0 | 3 | 20.0 | estimate",
        "At work: M7, seed 2 on host-a.",
        "An estimate is an equal share of the table's 6.7 h, the rough duration of all rows and seeds on two cores.",
        "Unfinished: 7 of 10 runs, 2.4 h on this machine (2.00 times as fast as the reference). On several machines"
        " like it:",
        "machines | duration",
        "1 | 2.4 h",
        "2 | 80 min",
        "5 | 40 min",
        "10 | 40 min",
    ]
    assert stand_in() == []
    assert set(Path("out").rglob("*")) - set(before) <= {Path("out/M7/.clock")}


def test_the_plan_of_an_unbegun_table_writes_nothing(
    data_dir: Path, stand_in: Calls, zoo_command: Command
) -> None:
    name = write_yaml(ROWS, minutes=50)
    result = zoo_command("reproduce", name, "--data_dir", data_dir, "--run_dir=out", "--plan")
    assert result.code == 0, result.err
    assert "Unfinished: 5 of 5 runs" in result.out
    assert "At work" not in result.out
    assert not Path("out").exists()


def test_the_longest_chain_is_first() -> None:
    short, long, start, after = (Run(row, 1) for row in ("short", "long", "start", "after"))
    minutes = {short: 2.0, long: 5.0, start: 1.0, after: 6.0}
    assert by_urgency([*minutes], minutes, {after: start}) == [start, after, long, short]
    assert by_urgency([long, short, after], minutes, {after: start}) == [after, long, short]
    assert by_urgency([short, start], {short: 1, start: 1}, {}) == [short, start]


@pytest.mark.parametrize(
    ("machines", "expected"),
    # 1: all. 2: start and after on one, 4, 3 and 3 on the other. 3: start and after; 4; 3 and 3. 9: the chain.
    [(1, 20), (2, 10), (3, 10), (9, 10)],
)
def test_a_duration_is_that_of_the_last_machine(machines: int, expected: float, data_dir: Path) -> None:
    rows = {"start": 4.0, "a": 4.0, "b": 3.0, "c": 3.0, "after": 6.0}
    minutes = {Run(row, 1): each for row, each in rows.items()} | {Run("done", 1): 99.0}
    table = load_table(write_yaml(ROWS))
    starts = {Run("after", 1): Run("start", 1), Run("a", 1): Run("done", 1)}
    assert Plan(table, minutes, starts, {Run("done", 1)}, {}, {}).duration(machines) == expected


def test_the_speed_of_this_machine_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    first = plan.speed()
    assert 0.001 < first < 1000
    assert plan.speed() == first
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
