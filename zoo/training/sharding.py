"""FSDP: every device holds a part of the weights, gradients and optimizer state; a layer is whole while it is used.

Rajbhandari et al.: "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020 (stage 3); here
PyTorch's `fully_shard`, by Lightning's `ModelParallelStrategy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from datamodules.core.errors import InputError
from datamodules.core.lightning import TrainerFn
from zoo.layers.encoders import TransformerEncoder, layers_of, transformer_of

if TYPE_CHECKING:
    from pytorch_lightning.strategies import ModelParallelStrategy

    from zoo.tasks.base import Task


def is_sharded(strategy: object) -> bool:
    """Return True for a trainer's strategy that shards the weights."""
    from pytorch_lightning.strategies import ModelParallelStrategy

    return isinstance(strategy, ModelParallelStrategy)


def shard(model: Task) -> None:
    """Shard the weights of a model's network: one layer of its transformer at a time, and the rest together."""
    from pytorch_lightning.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    transformer = transformer_of(model.network)
    strategy = model.trainer.strategy
    assert isinstance(strategy, ModelParallelStrategy)
    _check(model, transformer, strategy)
    assert model.device_mesh is not None
    mesh = model.device_mesh["data_parallel"]
    for layer in layers_of(transformer):
        fully_shard(layer, mesh=mesh)
    for part in model.network.modules():
        if isinstance(part, TransformerEncoder):
            part.reads_at_once = True
    fully_shard(model.network, mesh=mesh)


def _check(model: Task, transformer: nn.Module | None, strategy: ModelParallelStrategy) -> None:
    from callbacks.charts import ValidationReport

    trainer, name = model.trainer, type(model).__name__
    option = f"trainer.strategy={type(strategy).__name__}"
    if trainer.state.fn != TrainerFn.FITTING:
        raise InputError(f"{option} is for training; omit it, or use ddp")
    if not model.can_be_sharded or transformer is None:
        raise InputError(f"{option} shards a large transformer, and this {name} has none; use ddp")
    if getattr(model, "encoder_is_frozen", False):
        raise InputError(
            f"{option}: a frozen encoder is not trained; use ddp, or train it (also by --model.lora_rank)"
        )
    if strategy.device_mesh["tensor_parallel"].size() > 1:
        raise InputError(
            f"{option}: single layers are not sharded; set tensor_parallel_size to 1 and data_parallel_size to"
            f" {trainer.world_size}, the number of all devices"
        )
    if strategy._save_distributed_checkpoint:
        raise InputError(
            f"{option} would write sharded checkpoints, which the zoo cannot read; set save_distributed_checkpoint to"
            " false"
        )
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ValidationReport):
            raise InputError(
                f"{option}: {type(callback).__name__} predicts in one process, which holds a part of the weights; omit"
                " the callback"
            )
