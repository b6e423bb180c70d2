"""Folders of sentence encoders as sentence-transformers writes them, and their vectors by plain loops."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

#: The modules of most published encoders, and their folders.
MODULES = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"), ("Normalize", "3_Normalize")]
POOLINGS = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")


def write_modules(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    entries = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)


def write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


def write_dense(folder: Path, sizes: tuple[int, int], activation: str, has_bias: bool = True) -> None:
    """Write a Dense module with random weights."""
    config = {
        "in_features": sizes[0],
        "out_features": sizes[1],
        "bias": has_bias,
        "activation_function": f"torch.nn.modules.activation.{activation}",
    }
    write_json(folder / "config.json", config)
    weights = {"linear.weight": torch.randn(sizes[1], sizes[0])}
    if has_bias:
        weights["linear.bias"] = torch.randn(sizes[1])
    save_file(weights, folder / "model.safetensors")


def write_static(folder: Path, tokenizer: Path, size: int = 6) -> Tensor:
    """Write a StaticEmbedding with the tokenizer of another folder; return its table."""
    folder.mkdir(exist_ok=True)
    content = json.loads((tokenizer / "tokenizer.json").read_text())
    write_json(folder / "tokenizer.json", content)
    table = torch.randn(len(content["model"]["vocab"]), size)
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    return table


def write_tokenizer(folder: Path, words: Sequence[str], pad: str = "[PAD]", has_ends: bool = True) -> int:
    """Write a tokenizer of these words after four special tokens; return the number of its tokens.

    `has_ends` puts `[CLS]` and `[SEP]` around a text.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([pad, "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "[UNK]"}
    if has_ends:
        special |= {"pad_token": pad, "cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return len(vocabulary)


def save_tokenizer(folder: Path, special: bool = True, extra: str = "zoo") -> str:
    """Write a WordPiece tokenizer of ten words; return the name of its folder."""
    write_tokenizer(folder, ["the", "cat", "s", "##s", "sat", extra], "<p>", special)
    return str(folder)


def write_bert(folder: Path, words: Sequence[str], **sizes: float) -> Path:
    """Write a BERT with random weights and a tokenizer of these words; return the folder.

    `sizes` are arguments of `BertConfig`.
    """
    from transformers import BertConfig, BertModel

    number = write_tokenizer(folder, words)
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=number, **{**small, **sizes})).save_pretrained(folder)
    return folder


def plain_pool(states: Sequence[Sequence[float]], pooling: str) -> list[float]:
    """One vector of the states of a text without padding."""
    if pooling == "cls":
        return list(states[0])
    if pooling == "lasttoken":
        return list(states[-1])
    if pooling == "max":
        return [max(column) for column in zip(*states, strict=True)]
    weights = [n + 1 if pooling == "weightedmean" else 1 for n in range(len(states))]
    divisor = math.sqrt(len(states)) if pooling == "mean_sqrt_len_tokens" else sum(weights)
    columns = zip(*states, strict=True)
    return [sum(w * x for w, x in zip(weights, column, strict=True)) / divisor for column in columns]


def unit(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]
