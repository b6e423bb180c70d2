"""Negatives that the model itself mines while it is trained: the collection is embedded again now and then.

What BM25 finds for a query is hard for BM25. What the model in its present state ranks high and nobody judged to be
relevant is hard for this model, but only for a while (ANCE: L. Xiong et al., "Approximate Nearest Neighbor Negative
Contrastive Learning for Dense Text Retrieval", ICLR 2021). So a refresh embeds all documents and all training queries,
and the best hits of each query become its `retrieved` negatives until the next refresh.

The training waits while the texts are encoded. Then it goes on with the negatives that it has, for as many steps as
the search may take beside it: their number is fixed, so that a run learns the same whatever the machine is busy with.

One process builds a refresh, all read it: a folder that is whole or absent. A checkpoint names the refresh that its run
trains with and the one that comes next, which is whole by then. So a run that was killed at any moment, a refresh
included, goes on from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from typing_extensions import override

from datamodules.clickthrough import ClickthroughDataModule
from datamodules.core.errors import InputError
from datamodules.core.storage import MANIFEST, check_folder, fingerprint_of, is_whole, lock, new_folder
from datamodules.corpora.judgements import Judgements
from zoo.tasks.encoders import digests_of
from zoo.tasks.retrieval.mining import Embedded, embed, find_hits
from zoo.tasks.retrieval.task import RetrievalTask

#: Pairs of a query and a document that a processor compares in about the time of a training step.
PAIRS_PER_STEP = 5_000_000


class RefreshedNegatives(Callback):
    """Draws `retrieved` negatives from what the model being trained ranks high.

    The data's `skip_hits` and `highest_hit_score` hold for them, and relevant documents are none. Until the first
    refresh the negatives are those of the data's retriever. A refresh lies in the run folder, in
    `negatives/step-...`, and takes 8 bytes a hit; old ones may be deleted once no checkpoint is needed that names them.

    Example:
        >>> callback = RefreshedNegatives(every_n_epochs=2, num_hits=30)
    """

    def __init__(
        self,
        every_n_epochs: int | None = None,
        every_n_steps: int | None = None,
        start_epoch: int = 1,
        num_hits: int = 50,
        search_steps: int | None = None,
        block: int = 512,
    ) -> None:
        """Choose when, and how many.

        Args:
            every_n_epochs: refresh before every n-th epoch; 1 if neither this nor `every_n_steps` is given.
            every_n_steps: refresh after every n-th step, in place of epochs.
            start_epoch: no refresh before this epoch, counted from 0: an untrained model's hits are any.
            num_hits: hits of a query that are not known to be relevant.
            search_steps: steps that the training takes while the encoded texts are searched; 0 = it waits. None = one
                for each 5 million pairs of a query and a document. It waits after these, if it must, and before the
                next refresh.
            block: documents, or queries, that go through the network together.

        Raises:
            InputError: both intervals are given, or a number is too small.
        """
        if every_n_epochs is not None and every_n_steps is not None:
            raise InputError("RefreshedNegatives: give every_n_epochs or every_n_steps, not both")
        self.every_n_steps = every_n_steps
        self.every_n_epochs = 1 if every_n_epochs is None and every_n_steps is None else every_n_epochs
        for name, value, least in (
            ("every_n_epochs", self.every_n_epochs, 1),
            ("every_n_steps", every_n_steps, 1),
            ("start_epoch", start_epoch, 0),
            ("num_hits", num_hits, 1),
            ("search_steps", search_steps, 0),
            ("block", block, 1),
        ):
            if value is not None and value < least:
                raise InputError(f"RefreshedNegatives: {name}={value}: must be {least} or more")
        self.start_epoch, self.num_hits, self.block = start_epoch, num_hits, block
        self.search_steps = search_steps
        #: the folder of the refresh in use; None before the first.
        self.version: str | None = None
        #: that of the next one, and the step after which it is used.
        self.next_version: str | None = None
        self.due = 0
        # Of the process that builds: the search that goes on.
        self._running: Future[None] | None = None

    @override
    def state_dict(self) -> dict[str, Any]:
        self._finish()
        return {"version": self.version, "next_version": self.next_version, "due": self.due}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.version, self.next_version, self.due = (
            state_dict[name] for name in ("version", "next_version", "due")
        )

    # --- when ---

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, ClickthroughDataModule) or not isinstance(pl_module, RetrievalTask):
            raise InputError(
                "RefreshedNegatives: is for a model that ranks a collection, on click-through data"
            )
        if "retrieved" not in data.options.sources:
            raise InputError(
                "RefreshedNegatives: data.negatives draws none from hits; add `retrieved` to it, with data.num_hits"
                " for the time before the first refresh"
            )
        if data.options.num_workers:
            raise InputError(
                f"RefreshedNegatives: data.num_workers={data.options.num_workers}: processes that put batches together"
                " would go on with the old negatives; leave it out"
            )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, RetrievalTask)
        _ = pl_module.vector_size  # a model without vectors says so now
        for version in (self.version, self.next_version):
            if version is not None:
                self._bring(trainer, version)
        if self.version is not None:
            self._use(trainer, self.version)

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.every_n_epochs is None:
            return
        since = trainer.current_epoch - self.start_epoch
        if since >= 0 and since % self.every_n_epochs == 0:
            self.refresh(trainer, pl_module)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._steps_before = trainer.global_step

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.next_version is not None and trainer.global_step >= self.due:
            self._take_next(trainer)
        if self.every_n_steps is None or trainer.current_epoch < self.start_epoch:
            return
        # Batches whose gradients are added up make one step.
        is_step = trainer.global_step > self._steps_before
        if is_step and trainer.global_step % self.every_n_steps == 0:
            self.refresh(trainer, pl_module)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._finish()

    # --- what ---

    def refresh(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Build a refresh of the model as it is: encode now, search while the training goes on."""
        if self.next_version is not None:
            self._take_next(trainer)
        start = time.perf_counter()
        name = self._build(trainer, pl_module) if trainer.is_global_zero else ""
        # The other processes wait here until the texts are encoded.
        self.next_version = str(trainer.strategy.broadcast(name))
        steps = self.search_steps
        if steps is None:
            judgements = trainer.datamodule.split("train").judgements  # type: ignore[attr-defined]
            steps = len(judgements.queries) * len(judgements.documents) // PAIRS_PER_STEP
        self.due = trainer.global_step + steps
        if steps == 0:
            self._take_next(trainer)
        seconds = time.perf_counter() - start
        for logger in trainer.loggers:
            logger.log_metrics({"train/refresh_seconds": seconds}, step=trainer.global_step)

    def _build(self, trainer: Any, model: Any) -> str:
        """The name of a refresh that is on the disk, or will be when `_running` has ended."""
        judgements = trainer.datamodule.split("train").judgements
        description = {
            "weights": digests_of(model.state_dict()),
            "judgements": judgements.fingerprint,
            "num_hits": self.num_hits,
        }
        fingerprint = fingerprint_of(description)
        # Another model at the same step, of a run that was resumed otherwise, is another folder: a checkpoint may
        # still name the first.
        name = f"step-{trainer.global_step}-{fingerprint[:8]}"
        folder = _folder(trainer) / name
        if not is_whole(folder, fingerprint):
            with trainer.precision_plugin.forward_context():
                embedded = embed(model, trainer.datamodule, self.block)
            searcher = ThreadPoolExecutor(1)
            self._running = searcher.submit(_search, folder, fingerprint, embedded, judgements, self.num_hits)
            searcher.shutdown(wait=False)
        return name

    def _finish(self) -> None:
        """Wait until the next refresh is whole."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def _take_next(self, trainer: Any) -> None:
        """Draw from the next refresh from now on."""
        self._finish()
        trainer.strategy.barrier("refreshed negatives")
        self.version, self.next_version = self.next_version, None
        assert self.version is not None
        self._use(trainer, self.version)

    def _bring(self, trainer: Any, version: str) -> None:
        """See that a refresh of the resumed checkpoint is in this run's folder; the checkpoint may be of another."""
        folder = _folder(trainer) / version
        before = Path(trainer.ckpt_path or ".").absolute().parent.parent / folder.parent.name / version
        if trainer.is_global_zero and not folder.exists() and (before / MANIFEST).exists():
            manifest = check_folder(before, contents=True, advice=_ADVICE)
            with lock(folder), new_folder(folder, manifest["fingerprint"]) as partial:
                for file in manifest["files"]:
                    shutil.copy2(before / file, partial / file)
        trainer.strategy.barrier("refreshed negatives")
        if not folder.exists():
            raise InputError(
                f"{folder}: the negatives that the checkpoint was trained with are gone; {_ADVICE}"
            )

    def _use(self, trainer: Any, version: str) -> None:
        folder = _folder(trainer) / version
        check_folder(folder, contents=True, advice=_ADVICE)
        documents, scores = np.load(folder / "documents.npy"), np.load(folder / "scores.npy")
        trainer.datamodule.set_negatives(documents.astype(np.int64), scores)


_ADVICE = "put the folder back from a copy, or begin a new run with --model.init_from"


def _search(
    folder: Path, fingerprint: str, embedded: Embedded, judgements: Judgements, num_hits: int
) -> None:
    """Find the hits and write them."""
    found = find_hits(embedded, judgements, num_hits)
    with lock(folder), new_folder(folder, fingerprint) as partial:
        np.save(partial / "documents.npy", found.document)
        np.save(partial / "scores.npy", found.score)


def _folder(trainer: pl.Trainer) -> Path:
    """Where a run's refreshes are."""
    return Path(trainer.default_root_dir).absolute() / "negatives"
