"""The campaigns by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.faults import campaigns, contents, disks, kills, served, threads
from tests.faults.campaigns import Campaign

ALL: dict[str, Callable[[Path, str | None], Campaign | None]] = {
    "answers": campaigns.answers,
    "caches": campaigns.caches,
    "checkpoints": campaigns.checkpoints,
    "contents": contents.contents,
    "full_disks": campaigns.full_disks,
    "kills": kills.kills,
    "memories": campaigns.memories,
    "models": campaigns.models,
    "readers": campaigns.readers,
    "real_disks": disks.real_disks,
    "serve": served.serve,
    "servers": campaigns.servers,
    "threads": threads.threads,
}
