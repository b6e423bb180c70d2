"""Low-rank adapters: fine-tuning a transformer by a few additional weights; its own are frozen.

Edward J. Hu et al.: "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022. In place of its weight W, a
linear layer has W + (alpha / r) B A (Section 4.1), where A is [r, inputs] and B, zero at first, [outputs, r].
The package `peft` makes the adapters; they are merged into the weights here, so that using a model needs no `peft`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from datamodules.core.errors import InputError, check_installed

#: alpha / r.
SCALE = 2
#: In names of weights: prefix of a layer's own weights, and suffixes of the adapter's two matrices.
_BASE, _A, _B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def add_adapters(transformer: nn.Module, rank: int) -> None:
    """Give every linear layer, except for the pooling layer, an adapter, and freeze everything else."""
    check_installed("peft", "lora", "model.lora_rank")
    from peft import LoraConfig, inject_adapter_in_model

    layers = [
        name
        for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("pooler.")
    ]
    if not layers:
        raise InputError(f"model.lora_rank: a {type(transformer).__name__} has no linear layers; omit it")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=layers), transformer)


def without_adapters(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict, with or without adapters, in which they are merged into the weights."""
    merged = {}
    for name, value in weights.items():
        if is_adapter(name):
            continue
        layer, base, kind = name.rpartition(_BASE)
        if base and kind == "weight":
            low, high = weights[layer + _A], weights[layer + _B]
            value = value + SCALE * (high.float() @ low.float()).to(value.dtype)
        merged[plain_name(name)] = value
    return merged


def plain_name(name: str) -> str:
    """The name of a weight in a model without adapters."""
    return name.replace(_BASE, ".")


def is_adapter(name: str) -> bool:
    """Return True if a weight is an adapter's."""
    return name.endswith((_A, _B))
