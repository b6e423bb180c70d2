"""Pre-trained models by their names on the Hugging Face Hub, and sentence encoders as they are published.

The library sentence-transformers publishes an encoder as `modules.json`, and the files that it names.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from typing_extensions import Self

from datamodules.core.errors import InputError, reason
from datamodules.core.types import PlainDict

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase

Pooling: TypeAlias = Literal["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

Content = TypeVar("Content", PlainDict, list[object])

MODULES = "modules.json"
_PROMPTS, _LENGTHS, _CONFIG = "config_sentence_transformers.json", "sentence_bert_config.json", "config.json"
_KINDS = ("Transformer", "StaticEmbedding", "Pooling", "Dense", "Normalize")
#: Classes in `torch.nn`.
_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid")
#: Older names of poolings: each was an option of its own.
_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@cache
def check_reachable(name: str) -> None:
    """Raise an `InputError` for a model that is not here, at once, if the Hub can't be reached."""
    model_folder(name, ("config.json",))


def model_folder(name: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """Return the folder of a model, after a download of the files with these patterns if the Hub has the model.

    Raises an `InputError` if the Hub can't be reached. A wrong name is returned: loading the model explains the error.
    """
    if os.path.exists(name) or name.count("/") > 1 or name.startswith("."):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # The function for single files would retry for half a minute.
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except LocalEntryNotFoundError as error:
        problem = "not a folder, and the Hugging Face Hub can't be reached; check the connection or the name"
        advice = "HF_HUB_OFFLINE=1 uses only files that were downloaded before"
        raise InputError(f"{name!r}: {problem}. {advice}") from error
    except Exception:  # a wrong name
        return Path(name)


class DenseLayer(NamedTuple):
    """A linear layer after the pooling, whose weights are in `folder`."""

    folder: str
    in_features: int
    out_features: int
    bias: bool
    #: class in `torch.nn`.
    activation: str


class SentenceModules(NamedTuple):
    """The way from tokens to the vector of a text, as plain values; the default is that of a plain transformer.

    Attributes:
        folder: of the transformer, in the folder of the model.
        is_static: the tokens' states are rows of a table, and there is no transformer.
        max_length: tokens that the transformer reads, special ones included; None = as its own configuration has it.
        lowercases: texts are read in lower case.
        pooling: of the states.
        dense: layers after the pooling.
        normalizes: vectors have length 1.
        query_prompt: precedes queries in retrieval.
        document_prompt: precedes the texts that are searched.
    """

    folder: str = ""
    is_static: bool = False
    max_length: int | None = None
    lowercases: bool = False
    pooling: Pooling = "mean"
    dense: tuple[DenseLayer, ...] = ()
    normalizes: bool = False
    query_prompt: str = ""
    document_prompt: str = ""

    def describe(self) -> PlainDict:
        """Return plain values, of which `from_plain` makes the modules again."""
        return {**self._asdict(), "dense": [list(layer) for layer in self.dense]}

    @classmethod
    def from_plain(cls, described: PlainDict) -> Self:
        """Return what `describe` described."""
        return cls(**{**described, "dense": tuple(DenseLayer(*layer) for layer in described["dense"])})

    @classmethod
    def read(cls, name: str, revision: str | None = None) -> Self:
        """Read the modules of a folder or a model of the Hub, or raise an `InputError` that names file and module."""
        folder = model_folder(name, (MODULES, _PROMPTS, _LENGTHS, f"*/{_LENGTHS}", f"*/{_CONFIG}"), revision)
        file = folder / MODULES
        if not file.is_file():
            return cls()
        modules = [_kind_and_path(entry, file) for entry in _read_json(file, list)]
        kinds = [kind for kind, _ in modules]
        is_static = kinds[:1] == ["StaticEmbedding"]
        start = ["StaticEmbedding"] if is_static else ["Transformer", "Pooling"]
        middle = kinds[len(start) : len(kinds) - (kinds[-1:] == ["Normalize"])]
        if kinds[: len(start)] != start or set(middle) - {"Dense"}:
            raise InputError(
                f"{file}: has the modules {', '.join(kinds)}; only Transformer and Pooling, or StaticEmbedding, then"
                " Dense layers and Normalize, can be read in this order"
            )
        own = folder / modules[0][1]
        lengths = _read_json(own / _LENGTHS, dict) if (own / _LENGTHS).is_file() else {}
        query, document = _prompts(folder / _PROMPTS)
        pooling: Pooling = "mean"
        if not is_static:
            pooling = _pooling(folder / modules[1][1] / _CONFIG, bool(query or document))
        return cls(
            folder=modules[0][1],
            is_static=is_static,
            max_length=lengths.get("max_seq_length"),
            lowercases=bool(lengths.get("do_lower_case")),
            pooling=pooling,
            dense=tuple(_dense_layer(folder, path) for kind, path in modules if kind == "Dense"),
            normalizes=kinds[-1] == "Normalize",
            query_prompt=query,
            document_prompt=document,
        )


def load_tokenizer(
    name: str, published: SentenceModules, revision: str | None = None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or a model of the Hub; errors are those of `transformers`."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # Unless this is set, the library warns in every process that is forked later, although those do not tokenize.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not published.is_static:
        options = {"subfolder": published.folder, "trust_remote_code": False}
        return AutoTokenizer.from_pretrained(name, revision=revision, **options)
    file = posixpath.join(published.folder, "tokenizer.json")
    # Without its configuration it has no roles of special tokens, and a static model reads none.
    return PreTrainedTokenizerFast(tokenizer_file=str(model_folder(name, (file,), revision) / file))


def _kind_and_path(entry: object, file: Path) -> tuple[str, str]:
    """Return the class and the folder of a module in `modules.json`."""
    if not isinstance(entry, dict) or {str} != {type(entry.get("type")), type(entry.get("path"))}:
        raise InputError(f"{file}: an entry has no type or path: {entry}")
    path = str(entry["path"])
    package, *_, kind = str(entry["type"]).split(".")
    if package != "sentence_transformers" or kind not in _KINDS:
        advice = f"use {', '.join(_KINDS)} of sentence_transformers"
        raise InputError(f"{file}: can't read the module {entry['type']!r}; {advice}")
    folder = file.parent.resolve()
    if ".." in PurePosixPath(path).parts or not (folder / path).resolve().is_relative_to(folder):
        raise InputError(f"{file}: the path {path!r} of the module {kind} is outside of the folder")
    return kind, path


def _read_json(file: Path, kind: type[Content]) -> Content:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: missing or damaged ({reason(error)}); download the model again") from error
    if not isinstance(content, kind):
        raise InputError(f"{file}: contains no JSON {kind.__name__}; download the model again")
    return content


def _prompts(file: Path) -> tuple[str, str]:
    """Return the prompts of queries and of documents, "" where there is none."""
    config = _read_json(file, dict) if file.is_file() else {}
    prompts = {name: text for name, text in dict(config.get("prompts") or {}).items() if text}
    default = prompts.get(config.get("default_prompt_name"), "")
    documents = (prompts[name] for name in ("document", "passage", "corpus") if name in prompts)
    return prompts.get("query", default), next(documents, default)


def _pooling(file: Path, has_prompt: bool) -> Pooling:
    config = _read_json(file, dict)
    flags = [mode for flag, mode in _FLAGS.items() if config.get(flag)]
    modes = config.get("pooling_mode", flags or "mean")
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        advice = f"use a model with one of {', '.join(POOLINGS)}"
        raise InputError(f"{file}: the module Pooling has the modes {modes}; {advice}")
    if has_prompt and config.get("include_prompt") is False:
        raise InputError(f"{file}: the module Pooling skips prompts (include_prompt), which is not supported")
    return cast("Pooling", modes[0])


def _dense_layer(folder: Path, path: str) -> DenseLayer:
    file = folder / path / _CONFIG
    config = _read_json(file, dict)
    package, *_, activation = str(config.get("activation_function", "torch.nn.Tanh")).split(".")
    inputs = {config.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name")}
    if package != "torch" or activation not in _ACTIVATIONS:
        raise InputError(f"{file}: Dense has an activation_function other than {', '.join(_ACTIVATIONS)}")
    if config.get("use_residual") or inputs != {"sentence_embedding"}:
        raise InputError(f"{file}: the module Dense has a residual or reads tokens, which is not supported")
    sizes = config.get("in_features"), config.get("out_features")
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f"{file}: the module Dense has no in_features and out_features")
    has_bias = config.get("bias", True) is not False
    return DenseLayer(path, *cast("tuple[int, int]", sizes), has_bias, activation)


def text_vectors(
    states: Tensor, mask: Tensor, pooling: Pooling, dense: Iterable[nn.Module] = (), normalizes: bool = False
) -> Tensor:
    """Return the vectors [N, d] of texts: states pooled (see `pool`), through dense layers, and of length 1 if wanted.

    A text without tokens has the vector zero.
    """
    import torch

    vectors = pool(states, mask, pooling)
    for layer in dense:
        vectors = layer(vectors)
    if normalizes:
        vectors = torch.nn.functional.normalize(vectors, dim=1)
    return vectors * mask.any(dim=1, keepdim=True)


def pool(states: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector [N, l] of the tokens' states [N, T, l]; zero for a text without tokens.

    The mask, bool [N, T], is True where there is a token; tokens come before padding. The pooling is the `mean`; the
    first state (`cls`); the last one (`lasttoken`); the largest values (`max`); the sum divided by the square root of
    the number of tokens (`mean_sqrt_len_tokens`); or the mean, in which the n-th token counts n times (`weightedmean`).
    """
    if pooling == "cls":
        return states[:, 0] * mask[:, :1]
    if pooling == "max":
        return states.masked_fill(~mask.unsqueeze(2), -float("inf")).amax(dim=1).where(mask[:, :1], 0.0)
    real = mask.unsqueeze(2).to(states.dtype)  # [N, T, 1]
    if pooling == "lasttoken":
        real = real * (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True)).unsqueeze(2)
    if pooling == "weightedmean":
        real = real * mask.cumsum(dim=1).unsqueeze(2)
    divisor = real.sum(dim=1)
    if pooling == "mean_sqrt_len_tokens":
        divisor = divisor.sqrt()
    return (states * real).sum(dim=1) / divisor.clamp(min=1)
