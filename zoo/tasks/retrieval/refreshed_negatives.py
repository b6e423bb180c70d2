"""Negatives that a model mines itself during its training: the collection is embedded again at intervals.

Documents that the model ranks high, and that nobody judged to be relevant, are hard for it in its present state (ANCE:
L. Xiong et al., "Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval", ICLR 2021).

During the search, the training continues with the old negatives for a fixed number of steps. A checkpoint names the
refresh that its run trains with, and the next one: a killed run resumes with the result of an uninterrupted run.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from typing_extensions import override

from datamodules.clickthrough import ClickthroughDataModule
from datamodules.core.errors import InputError
from datamodules.core.storage import build_folder, check_folder, fingerprint_of, is_whole
from datamodules.core.types import PlainDict
from datamodules.corpora.judgements import Judgements
from zoo.tasks.encoders import digests_of
from zoo.tasks.retrieval.mining import Embedded, embed, find_hits
from zoo.tasks.retrieval.task import RetrievalTask

#: Pairs of a query and a document that are compared in about the time of a training step.
PAIRS_PER_STEP = 5_000_000

_ADVICE = "restore the folder from a backup, or start a new run with --model.init_from"


class RefreshedNegatives(Callback):
    """Draws `retrieved` negatives from the documents that the model in training ranks high.

    The data's `skip_hits` and `highest_hit_score` apply. Until the first refresh, the negatives are those of the data's
    retriever. Folders `negatives/step-...` of a run hold 8 bytes per hit; delete them if no checkpoint names them.
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
        """Choose intervals and numbers.

        Args:
            every_n_epochs: refresh before every n-th epoch; 1 if neither this nor `every_n_steps` is given.
            every_n_steps: refresh after every n-th step instead.
            start_epoch: no refresh before this epoch, counted from 0: the hits of an untrained model are arbitrary.
            num_hits: number of hits per query that are not known to be relevant.
            search_steps: training steps during the search, after which the training waits for its end; None = one for
                each 5 million pairs of a query and a document.
            block: documents, or queries, that pass through the network together.
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
        #: folder name of the refresh in use; None before the first.
        self.version: str | None = None
        #: that of the next refresh, and the step after which it is used.
        self.next_version: str | None = None
        self.due = 0
        self._search: Future[None] | None = None

    @override
    def state_dict(self) -> PlainDict:
        self._finish_search()
        return {"version": self.version, "next_version": self.next_version, "due": self.due}

    @override
    def load_state_dict(self, state_dict: PlainDict) -> None:
        self.version, self.next_version, self.due = (
            state_dict[name] for name in ("version", "next_version", "due")
        )

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, ClickthroughDataModule) or not isinstance(pl_module, RetrievalTask):
            raise InputError("RefreshedNegatives: needs a retrieval model and click-through data")
        if "retrieved" not in data.options.sources:
            raise InputError(
                "RefreshedNegatives: data.negatives draws none from hits; add `retrieved` to it, and data.num_hits for"
                " the steps before the first refresh"
            )
        if data.options.num_workers:
            raise InputError(
                f"RefreshedNegatives: data.num_workers={data.options.num_workers}: worker processes would keep the old"
                " negatives; omit it"
            )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, RetrievalTask)
        if pl_module.vector_size is None:
            raise InputError(f"RefreshedNegatives: a {type(pl_module).__name__} has no text encoder")
        for version in (self.version, self.next_version):
            if version is not None and not (folder := _folder(trainer) / version).exists():
                raise InputError(
                    f"{folder}: the negatives of the checkpoint's training are missing; {_ADVICE}"
                )
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
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int
    ) -> None:
        self._steps_before = trainer.global_step

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        if self.next_version is not None and trainer.global_step >= self.due:
            self._use_next(trainer)
        if self.every_n_steps is None or trainer.current_epoch < self.start_epoch:
            return
        # Batches with accumulated gradients are one step.
        is_step = trainer.global_step > self._steps_before
        if is_step and trainer.global_step % self.every_n_steps == 0:
            self.refresh(trainer, pl_module)

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._finish_search()

    def refresh(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start a refresh: encode with the model as it is, and start the search."""
        assert isinstance(pl_module, RetrievalTask)
        if self.next_version is not None:
            self._use_next(trainer)
        start = time.perf_counter()
        name = self._build(trainer, pl_module) if trainer.is_global_zero else ""
        # The other processes wait here until the texts are encoded.
        self.next_version = str(trainer.strategy.broadcast(name))
        steps = self.search_steps
        if steps is None:
            judgements = _data_of(trainer).split("train").judgements
            steps = len(judgements.queries) * len(judgements.documents) // PAIRS_PER_STEP
        self.due = trainer.global_step + steps
        if steps == 0:
            self._use_next(trainer)
        seconds = time.perf_counter() - start
        for logger in trainer.loggers:
            logger.log_metrics({"train/refresh_seconds": seconds}, step=trainer.global_step)

    def _build(self, trainer: pl.Trainer, model: RetrievalTask) -> str:
        """Name of a refresh that is whole when `_search` has ended."""
        data = _data_of(trainer)
        judgements = data.split("train").judgements
        description = {
            "weights": digests_of(model.state_dict()),
            "judgements": judgements.fingerprint,
            "num_hits": self.num_hits,
        }
        fingerprint = fingerprint_of(description)
        name = f"step-{trainer.global_step}-{fingerprint[:8]}"
        folder = _folder(trainer) / name
        if not is_whole(folder, fingerprint):
            with trainer.precision_plugin.forward_context():
                embedded = embed(model, data, self.block)
            searcher = ThreadPoolExecutor(1)
            self._search = searcher.submit(_search, folder, fingerprint, embedded, judgements, self.num_hits)
            searcher.shutdown(wait=False)
        return name

    def _finish_search(self) -> None:
        """Wait until the next refresh is whole."""
        if self._search is not None:
            self._search.result()
            self._search = None

    def _use_next(self, trainer: pl.Trainer) -> None:
        """Draw from the next refresh from now on."""
        self._finish_search()
        trainer.strategy.barrier("refreshed negatives")
        self.version, self.next_version = self.next_version, None
        assert self.version is not None
        self._use(trainer, self.version)

    def _use(self, trainer: pl.Trainer, version: str) -> None:
        folder = _folder(trainer) / version
        check_folder(folder, contents=True, advice=_ADVICE)
        documents, scores = np.load(folder / "documents.npy"), np.load(folder / "scores.npy")
        _data_of(trainer).set_negatives(documents.astype(np.int64), scores)


def _search(
    folder: Path, fingerprint: str, embedded: Embedded, judgements: Judgements, num_hits: int
) -> None:
    hits = find_hits(embedded, judgements, num_hits)

    def save(partial: Path) -> None:
        np.save(partial / "documents.npy", hits.document)
        np.save(partial / "scores.npy", hits.score)

    build_folder(folder, fingerprint, save)


def _data_of(trainer: pl.Trainer) -> ClickthroughDataModule:
    data: ClickthroughDataModule = trainer.datamodule  # type: ignore[attr-defined]
    return data


def _folder(trainer: pl.Trainer) -> Path:
    return Path(trainer.default_root_dir).absolute() / "negatives"
