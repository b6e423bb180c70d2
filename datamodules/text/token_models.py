"""Networks of published encoders: transformers, static tables of token vectors, and the dense layers after both."""

from __future__ import annotations

import posixpath
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from datamodules.core.errors import InputError, reason
from datamodules.core.files import load_tensors
from datamodules.core.types import PlainDict
from datamodules.text.sentence_modules import SentenceModules, model_folder

#: Options of a configuration by which `transformers` chooses code: Python of a model, kernels and packages.
_NAMES_OF_CODE = (
    "_attn_implementation",
    "_attn_implementation_internal",
    "_experts_implementation",
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "quantization_config",
)


class _StaticModel(nn.Module):
    """Token vectors of a table, the same in every context, with the interface of a transformer."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.config = PretrainedConfig(vocab_size=vocab_size, hidden_size=hidden_size)
        self.embedding = nn.Embedding(vocab_size, hidden_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> BaseModelOutput:
        """Look up tokens [N, T]; the mask is not read."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


def make_model(config: PlainDict, published: SentenceModules) -> Any:
    """Make a transformer or table with random weights by its configuration."""
    if published.is_static:
        return _StaticModel(config["vocab_size"], config["hidden_size"])
    config = {name: value for name, value in config.items() if name not in _NAMES_OF_CODE}
    made = AutoConfig.for_model(config.pop("model_type"), **config)
    return AutoModel.from_config(made, trust_remote_code=False)


def load_model(name: str, published: SentenceModules, revision: str | None = None) -> Any:
    """Load the transformer or table of a folder or a model of the Hub; errors are those of `transformers`."""
    if not published.is_static:
        options = {"subfolder": published.folder, "trust_remote_code": False}
        return AutoModel.from_pretrained(name, revision=revision, **options)
    table = _read_weights(name, published.folder, revision).get("embedding.weight")
    if table is None or table.ndim != 2:
        raise InputError(f"{name}: the module StaticEmbedding has no table embedding.weight")
    model = _StaticModel(*table.shape)
    model.embedding.weight.data.copy_(table)
    return model


def _read_weights(name: str, folder: str, revision: str | None) -> dict[str, Tensor]:
    """Read the weights of a module, without its pickled objects."""
    files = [posixpath.join(folder, file) for file in ("model.safetensors", "pytorch_model.bin")]
    root = model_folder(name, files, revision)
    file = next((root / file for file in files if (root / file).is_file()), None)
    if file is None:
        raise InputError(f"{root / folder}: no model.safetensors or pytorch_model.bin; download it again")
    if file.suffix == ".safetensors":
        return load_tensors(file, "download the model again")
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling and files raise different exceptions
        raise InputError(f"{file}: damaged ({reason(error)}); download the model again") from error


def make_dense(
    name: str, published: SentenceModules, size: int, has_weights: bool = True, revision: str | None = None
) -> nn.ModuleList:
    """Make the dense layers after a pooling of this size, with the published weights or with random ones."""
    layers = nn.ModuleList()
    for layer in published.dense:
        if layer.in_features != size:
            raise InputError(f"{name}: module {layer.folder} reads {layer.in_features} numbers, not {size}")
        size = layer.out_features
        linear = nn.Linear(layer.in_features, size, bias=layer.bias)
        if has_weights:
            weights = _read_weights(name, layer.folder, revision)
            own = {key.removeprefix("linear."): value for key, value in weights.items()}
            try:
                linear.load_state_dict(own)
            except RuntimeError as error:
                advice = "differ from its config.json; download the model again"
                raise InputError(f"{name}: the weights of the module {layer.folder} {advice}") from error
        layers.append(nn.Sequential(linear, getattr(nn, layer.activation)()))
    return layers
