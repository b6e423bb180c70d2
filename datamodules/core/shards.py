"""Shards: consecutive rows of a table, each for a process of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from datamodules.core.errors import InputError, excerpt

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Shard:
    """One of several parts of a table, in the order of its rows.

    `zoo predict` and `zoo encode` make it from `--shard 3/16`; the readers of the table take its rows.
    """

    #: from 1.
    number: int
    count: int

    @classmethod
    def parse(cls, option: str) -> Shard:
        """Return the shard of an option such as 3/16; raise an `InputError` for anything else."""
        match = re.fullmatch(r"(\d+)/(\d+)", option)
        shard = None if match is None else cls(int(match[1]), int(match[2]))
        if shard is None or not 1 <= shard.number <= shard.count:
            raise InputError(f"--shard {excerpt(option)}: write NUMBER/SHARDS, such as 3/16")
        return shard

    def part_of(self, output: Path) -> Path:
        """Return the name of this part of an output: names in alphabetical order are in the order of the rows."""
        number = f"{self.number:0{len(str(self.count))}}"
        return output.with_name(f"{output.name}.{number}-of-{self.count}")

    def rows(self, total: int, block: int) -> range:
        """Return the rows of this shard among `total` rows that one process computes in blocks of `block` rows.

        Blocks stay whole: the results are then those of one process, bit by bit. If there are fewer blocks than shards,
        some shards have no rows, but never the first one.
        """
        blocks = -(-total // block)
        first, end = (-(-number * blocks // self.count) * block for number in (self.number - 1, self.number))
        return range(min(first, total), min(end, total))

    def of(self, items: Iterable[ItemT], total: int, block: int) -> Iterator[ItemT]:
        """Yield the items of this shard; see `rows`."""
        rows = self.rows(total, block)
        return islice(items, rows.start, rows.stop)


#: A table that is not cut.
WHOLE = Shard(1, 1)
