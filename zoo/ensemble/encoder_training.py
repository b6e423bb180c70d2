"""The training of an encoder on a part of the training rows, as the encoder that predicts was trained on all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from datamodules.batch import BatchContents
from datamodules.core.errors import InputError
from datamodules.sampling import LengthBucketSampler
from datamodules.text_rows import TextRowsDataModule
from zoo.ensemble.base import EnsembleModel
from zoo.ensemble.network import EnsembleNetwork
from zoo.tasks.predictor import on_device
from zoo.training.trained_parts import freeze_parts, parameter_groups


def train_encoder(
    model: EnsembleModel, data: TextRowsDataModule[Any], rows: NDArray[np.int64]
) -> EnsembleNetwork:
    """Train the encoder of a fresh network on some training rows, in the epochs of the model's encoder.

    Each process trains the same network, on the batches of all processes.
    """
    network = fresh_network(model, data)
    freeze_parts(network, model.freeze_patterns)
    optimizer = model.make_optimizer(parameter_groups(network, model.learning_rates))
    contents = BatchContents(memory_texts=False)
    dataset = data.dataset(data.split("train"), contents)
    with model.using(network), torch.random.fork_rng():
        # Every process draws the same dropout.
        torch.manual_seed(data.seed)
        lengths = dataset.lengths()[rows]
        for epoch, options in enumerate(model.epochs):
            for group, own in zip(optimizer.param_groups, options["groups"], strict=True):
                group.update(own)
            steps = list(_steps(model, data, lengths, epoch))
            for number, step in enumerate(steps, start=1):
                for positions in step:
                    batch = on_device(dataset.__getitems__(rows[positions]), model)
                    loss = functional.cross_entropy(network.encoder_logits(batch), batch.target)
                    (loss / (len(step) * options["accumulated"])).backward()  # type: ignore[no-untyped-call]
                    if not bool(loss.isfinite()):
                        raise InputError(
                            "training diverged while the weights were cross-fitted; use a lower learning rate"
                        )
                if number % options["accumulated"] == 0 or number == len(steps):
                    trainer = model.trainer
                    model.configure_gradient_clipping(
                        optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
                    )
                    optimizer.step()
                    optimizer.zero_grad()
    return network


def fresh_network(model: EnsembleModel, data: TextRowsDataModule[Any]) -> EnsembleNetwork:
    """The network as it was before the training: drawn by the run's seed, or with the weights of `init_from`."""
    assert model.spec is not None
    with torch.random.fork_rng():
        torch.manual_seed(data.seed)
        fresh = model.build_network(model.spec, data.words.vectors(), None).to(model.device)
    with model.using(fresh):
        model.take_start(verbose=False)
    return fresh


def _steps(
    model: EnsembleModel, data: TextRowsDataModule[Any], lengths: NDArray[np.integer], epoch: int
) -> Iterator[tuple[list[int], ...]]:
    """The batches of each step of an epoch, one for each process."""
    trainer, options = model.trainer, data.options
    samplers = [
        LengthBucketSampler(
            lengths,
            options.batch_size,
            training=True,
            seed=data.seed,
            process=process,
            num_processes=trainer.world_size,
        )
        for process in range(trainer.world_size)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    limit = trainer.limit_train_batches
    most = limit if isinstance(limit, int) else max(1, int((limit or 1.0) * len(samplers[0])))
    for number, step in enumerate(zip(*samplers, strict=True)):
        if number < most:
            yield step
