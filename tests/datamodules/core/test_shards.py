"""Shards of a table, and the parts that they leave for the merge."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from datamodules.core.errors import InputError
from datamodules.core.shards import Parts, Shard

LAUNCHERS = [
    "RANK",
    "WORLD_SIZE",
    *(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "COUNT", "STEP")),
    "SLURM_PROCID",
    "SLURM_NTASKS",
]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("total", [1, 9, 10, 11, 95, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_shards_are_whole_blocks_and_cover_the_table(total: int, count: int) -> None:
    parts = [Shard(number, count).rows(total, 10) for number in range(1, count + 1)]
    assert [*itertools.chain(*parts)] == [*range(total)]
    assert all(part.start % 10 == 0 for part in parts if part)
    blocks = [-(-len(part) // 10) for part in parts]
    assert max(blocks) - min(blocks) <= 1
    letters = [chr(97 + number) for number in range(total)]
    taken = [[*Shard(number, count).of(iter(letters), total, 10)] for number in range(1, count + 1)]
    assert [*itertools.chain(*taken)] == letters


def test_an_option() -> None:
    assert Shard.parse("3/16") == Shard(3, 16)
    assert str(Shard(3, 16)) == "3/16"


@pytest.mark.parametrize("option", ["0/4", "5/4", "3", "3/", "-1/4", "a/b", "", "3/16/2", "0/0", "1.5/2"])
def test_other_options_are_refused(option: str) -> None:
    with pytest.raises(InputError, match=f"^--shard {option}: write a number from 1 .* 3/16, or auto$"):
        Shard.parse(option)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "2", "WORLD_SIZE": "16"}, Shard(3, 16)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Shard(1, 4)),
        (
            {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "16"},
            Shard(3, 16),
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "16"},
            Shard(1, 16),
        ),
        (
            {
                "SLURM_ARRAY_TASK_ID": "14",
                "SLURM_ARRAY_TASK_MIN": "10",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_STEP": "2",
                # The step of the batch script itself.
                "SLURM_PROCID": "0",
                "SLURM_NTASKS": "1",
            },
            Shard(3, 4),
        ),
    ],
)
def test_a_launcher_numbers_its_processes(
    variables: dict[str, str], expected: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Shard.parse("auto") == expected


def test_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")  # alone, it is no launcher's
    with pytest.raises(InputError, match=r"^--shard auto: no launcher .*RANK.*SLURM_ARRAY_TASK_ID.*PROCID"):
        Shard.parse("auto")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(InputError, match=r"^--shard auto: WORLD_SIZE=two is no number"):
        Shard.parse("auto")


def test_an_array_with_gaps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ID": "9", "MIN": "1", "COUNT": "3"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    with pytest.raises(InputError, match=r"numbers this process 9 of 3; a job array must have no gaps"):
        Shard.parse("auto")


class Work:
    """Shards that write a letter each, and the file of all letters."""

    def __init__(self, output: Path, letters: str) -> None:
        self.output, self.letters = output, letters
        self.saved: list[str] = []
        self.dies_in_merge = False

    def run(self, number: int, fingerprint: str = "f") -> list[int]:
        parts = Parts(self.output, Shard(number, len(self.letters)), fingerprint)

        def save(folder: Path) -> None:
            self.saved.append(self.letters[number - 1])
            (folder / "letter").write_text(self.letters[number - 1])

        def join(folders: Sequence[Path]) -> None:
            if self.dies_in_merge:
                raise KeyboardInterrupt
            self.output.write_text("".join((folder / "letter").read_text() for folder in folders))

        return parts.run(save, join)


@pytest.mark.parametrize("order", [*itertools.permutations([1, 2, 3])])
def test_the_last_shard_merges(order: tuple[int, ...], tmp_path: Path) -> None:
    work, left = Work(tmp_path / "out", "abc"), {1, 2, 3}
    for number in order:
        left.remove(number)
        assert work.run(number) == sorted(left)
        assert work.output.exists() == (not left)
    assert work.output.read_text() == "abc"
    assert not (tmp_path / "out.parts").exists()
    # A shard that is started again finds the output.
    assert work.run(2) == []
    assert len(work.saved) == 3
    assert not (tmp_path / "out.parts").exists()


def test_a_finished_shard_is_skipped_and_a_damaged_one_made_again(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", "abc")
    work.run(1)
    assert work.run(1) == [2, 3]
    assert work.saved == ["a"]
    work.run(2)
    (tmp_path / "out.parts" / "2-of-3" / "letter").write_text("x")
    assert work.run(3) == [2]
    assert work.run(2) == []
    assert work.output.read_text() == "abc"
    assert work.saved == ["a", "b", "c", "b"]


def test_a_killed_merge_is_done_again(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", "ab")
    work.run(1)
    work.dies_in_merge = True
    with pytest.raises(KeyboardInterrupt):
        work.run(2)
    assert not work.output.exists()
    work.dies_in_merge = False
    assert work.run(1) == []
    assert work.saved == ["a", "b"]
    assert work.output.read_text() == "ab"


def test_parts_of_another_table_or_number_are_not_mixed(tmp_path: Path) -> None:
    output = tmp_path / "out"
    old, new = Work(output, "ab"), Work(output, "xy")
    old.run(1, "old")
    assert new.run(2, "new") == [1]
    assert Work(output, "pqr").run(1, "new") == [2, 3]
    assert new.run(1, "new") == []
    assert output.read_text() == "xy"
    assert not (tmp_path / "out.parts").exists()
    # The output of another table is replaced by all shards, not by one.
    assert old.run(2, "old") == [1]
    assert output.read_text() == "xy"
    assert old.run(1, "old") == []
    assert output.read_text() == "ab"


def test_an_output_that_was_changed_or_deleted_is_made_again(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", "a")
    work.run(1)
    work.output.write_text("edited")
    work.run(1)
    assert work.output.read_text() == "a"
    work.output.unlink()
    work.run(1)
    assert work.output.read_text() == "a"
    assert work.saved == ["a"] * 3


def test_a_folder_that_another_process_has_deleted(tmp_path: Path) -> None:
    work = Work(tmp_path / "out", "a")
    work.run(1)
    work.run(1)  # whose lock was taken after the merge
    parts = Parts(work.output, Shard(1, 1), "table")
    assert not parts.folder.exists()
    parts._delete()
    assert not parts._is_whole(parts.folder / "1-of-1")
    assert not parts._is_there(parts.folder / "1-of-1")


def test_files_of_the_user_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "out.parts"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    Work(tmp_path / "out", "a").run(1)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    (tmp_path / "other.parts").write_text("mine")
    with pytest.raises(InputError, match=r"other.parts: can't be made, .* another --output"):
        Work(tmp_path / "other", "a").run(1)
