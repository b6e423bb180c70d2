"""FSDP: every device holds a part of the weights, gradients and optimizer state; a layer is whole while it is used.

Rajbhandari et al.: "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020 (stage 3); here
PyTorch's `fully_shard`, by Lightning's `ModelParallelStrategy`.
"""

from __future__ import annotations

from typing import Any

from pytorch_lightning.strategies import ModelParallelStrategy
from pytorch_lightning.trainer.states import TrainerFn
from torch import nn

from callbacks.charts import ValidationReport
from datamodules.core.errors import InputError
from zoo.layers.encoders import transformer_of


def is_sharded(strategy: Any) -> bool:
    """Whether a trainer's strategy wants the weights cut in parts."""
    return isinstance(strategy, ModelParallelStrategy)


def shard(model: Any) -> None:
    """Cut the weights of a model's network in parts: a layer of its transformer at a time, and all the rest together.

    Args:
        model: a `Task` whose network has the weights that it starts from.

    Raises:
        InputError: the model, the trainer or one of its callbacks does not work with parts.
    """
    from torch.distributed.fsdp import fully_shard

    transformer = transformer_of(model.network)
    _check(model, transformer)
    mesh = model.device_mesh["data_parallel"]
    for layer in _layers(transformer):
        fully_shard(layer, mesh=mesh)
    fully_shard(model.network, mesh=mesh)


def _layers(transformer: nn.Module) -> list[nn.Module]:
    """The layers that lie in the outermost lists of a transformer."""
    lists = {name: part for name, part in transformer.named_modules() if isinstance(part, nn.ModuleList)}
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    return [layer for name in outermost for layer in lists[name]]


def _check(model: Any, transformer: Any) -> None:
    trainer, name = model.trainer, type(model).__name__
    strategy = f"trainer.strategy={type(trainer.strategy).__name__}"
    if trainer.state.fn != TrainerFn.FITTING:
        raise InputError(f"{strategy} is for training; leave it out, or use ddp")
    if not model.can_be_sharded or transformer is None:
        raise InputError(
            f"{strategy} cuts a large transformer in parts, and this {name} has none that could be; use ddp"
        )
    if getattr(model, "encoder_is_frozen", False):
        raise InputError(
            f"{strategy}: a frozen encoder is not trained in parts; use ddp, or train it (also by --model.lora_rank)"
        )
    if trainer.strategy.device_mesh["tensor_parallel"].size() > 1:
        raise InputError(
            f"{strategy}: layers are not cut themselves; set tensor_parallel_size to 1 and data_parallel_size to"
            f" {trainer.world_size}, the number of all devices"
        )
    if trainer.strategy._save_distributed_checkpoint:
        raise InputError(
            f"{strategy} would write checkpoints in parts, which nothing here reads; set save_distributed_checkpoint"
            " to false"
        )
    for callback in trainer.callbacks:
        if isinstance(callback, ValidationReport):
            raise InputError(
                f"{strategy}: {type(callback).__name__} has one process predict, which holds a part of the weights;"
                " leave the callback out"
            )
