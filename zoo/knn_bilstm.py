"""k-nearest-neighbor augmented text classification.

Zhiguo Wang, Wael Hamza, Linfeng Song: "k-Nearest Neighbor Augmented Neural Networks for Text
Classification", 2017. Equation numbers below are the paper's.

One network encodes a text and its K labelled neighbors. The neighbors are weighted by their similarity to the text,
from I perspectives, and summed into a label feature and a text feature; a linear layer classifies from any of these.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from datamodules.base import DataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.classification import ClassificationDataModule
from datamodules.core.errors import InputError
from datamodules.core.lightning import OptimizerCallable
from datamodules.core.types import Count, PlainDict, Probability
from datamodules.state import DataState
from zoo.layers.encoders import BiLSTMEncoder, TextDropout, TransformerEncoder
from zoo.layers.vote import vote
from zoo.tasks.classification.memory_vectors import ReadsMemoryVectors
from zoo.tasks.classification.multilabel import choose_labels, fit_rule, probabilities_of
from zoo.tasks.classification.predictor import ClassificationPredictor
from zoo.tasks.encoders import ReadsWordVectors
from zoo.tasks.model import Given
from zoo.tasks.outputs import ClassificationOutput

#: Contribution of a unanimous vote of the memories to a class's logit before training, where weights add up to 1.
VOTE_LOGIT = 3.0

#: Table 2: the features that the classifier reads.
FEATURES: dict[str, tuple[str, ...]] = {
    "M1": ("text",),
    "M2": ("label",),
    "M3": ("neighbor",),
    "M4": ("label", "neighbor"),
    "M5": ("text", "label"),
    "M6": ("text", "neighbor"),
    "M7": ("text", "label", "neighbor"),
}


class MultiPerspectiveCosine(nn.Module):
    """Similarities of two vectors from I perspectives (Equations 2 and 3)."""

    def __init__(self, num_perspectives: int, size: int) -> None:
        super().__init__()
        # 0 perspectives is the paper's baseline in Figure 3: one plain cosine, nothing to learn.
        weight = torch.empty(num_perspectives, size).uniform_(0.5, 1.5) if num_perspectives else None
        self.weight = None if weight is None else nn.Parameter(weight)
        self.size = size

    def forward(self, text: Tensor, memories: Tensor, memory: Tensor) -> Tensor:
        """Compare texts h [B, l] with rows `memory` [B, K] of distinct memories h' [M, l]: float32 [B, K, I] in -1..1.

        s_k^i = cosine(W_i * h, W_i * h'_k).
        """
        # In float32 whatever the precision: squares of half-precision numbers over- and underflow.
        with torch.autocast(text.device.type, enabled=False):
            text, memories = text.float(), memories.float()
            weight = text.new_ones(1, self.size) if self.weight is None else self.weight.float()
            squared = weight.square().T  # [l, I]; W appears in both factors of every product
            text_norm = (text.square() @ squared).clamp(min=1e-12).sqrt()  # [B, I]
            memory_norm = (memories.square() @ squared).clamp(min=1e-12).sqrt()  # [M, I]
            products = (text.unsqueeze(1) * memories[memory]) @ squared  # [B, K, I]
            return products / (text_norm.unsqueeze(1) * memory_norm[memory])


class SharpAttention(nn.Module):
    """Weights over a text's memories that add up to 1, in place of the paper's raw similarities.

    w_k^i = softmax_k(tau_i s_k^i + p log(score_k / score_1)), with a tau learned for each perspective. Raw cosines of
    a trained encoder hardly differ between memories, so their sum counts memories rather than weights them.
    """

    def __init__(self, num_perspectives: int) -> None:
        super().__init__()
        # tau = 1: at first the retriever's scores decide nearly alone.
        self.log_tau = nn.Parameter(torch.zeros(max(num_perspectives, 1)))

    def forward(self, similarity: Tensor, score: Tensor, mask: Tensor) -> Tensor:
        """Weigh the memories of bool [B, K] by similarity [B, K, I] and retrieval score [B, K]: float32 [B, K, I]."""
        taus = self.log_tau.exp()
        return torch.stack([vote(similarity[:, :, i], score, mask, tau) for i, tau in enumerate(taus)], dim=2)


class KNNNetwork(nn.Module):
    """Figure 1: encoder, neighbor attention, features, classifier."""

    def __init__(
        self, encoder: BiLSTMEncoder | TransformerEncoder, spec: ClassificationSpec, options: KNNBiLSTM
    ) -> None:
        super().__init__()
        num_perspectives, is_sharp = options.num_perspectives, options.attention == "softmax"
        self.encoder = encoder
        self.drop_text = TextDropout(options.text_dropout)
        self.features = FEATURES[options.features]
        views, classes = max(num_perspectives, 1), len(spec.memory_labels)
        self.num_memory_classes = classes
        sizes = {"text": encoder.size, "label": views * classes, "neighbor": views * encoder.size}
        self.attention: SharpAttention | None = None
        if self.features != ("text",):
            self.similarity = MultiPerspectiveCosine(num_perspectives, encoder.size)
            if is_sharp:
                self.attention = SharpAttention(num_perspectives)
        #: feature -> its width.
        self.sizes = {name: sizes[name] for name in self.features}
        self.classifier = nn.Linear(sum(self.sizes.values()), len(spec.labels))
        #: of sets of labels: a `SetRule`, fitted to the validation rows after the last epoch.
        self.rule: Tensor | None
        self.register_buffer("rule", None if spec.label_separator is None else torch.tensor([0.5, 0.0]))
        #: whether the label feature is a vote for the memories' classes before training.
        self.votes_at_first = is_sharp and "label" in self.features and spec.memory_labels == spec.labels
        if self.votes_at_first:
            with torch.no_grad():
                vote_for_own_class = torch.eye(len(spec.labels)).repeat(1, views) * (VOTE_LOGIT / views)
                start = self.sizes.get("text", 0)
                self.classifier.weight[:, start : start + self.sizes["label"]] = vote_for_own_class

    def forward(self, batch: ClassificationBatch) -> ClassificationOutput:
        """Classify the texts of a batch; a memory's weight is the mean over its perspectives."""
        if self.features == ("text",):
            text = self.encode_texts(batch)
            return self._classify([text], torch.zeros_like(batch.memory_score), text)
        text, memories = self.encode(batch)  # [B, l], [M, l]
        similarity = self.similarity(text, memories, batch.memory)  # [B, K, I]
        if self.attention is None:
            weights = similarity * batch.memory_mask.unsqueeze(2)
        else:
            weights = self.attention(similarity, batch.memory_score, batch.memory_mask)
        features = []
        for name in self.features:
            if name == "text":
                features.append(self.drop_text(text))
            elif name == "label":  # Equation 4
                known = batch.memory_target >= 0
                one_hot = functional.one_hot(batch.memory_target.clamp(min=0), self.num_memory_classes)
                labels = one_hot * known.unsqueeze(-1)  # [B, K, C], or of sets [B, K, L, C]
                labels = labels if known.ndim == 2 else labels.sum(dim=2)
                features.append(weighted_sums(weights, labels))  # [B, I*C]
            else:  # Equation 5
                features.append(weighted_sums(weights, memories[batch.memory]))  # [B, I*l]
        return self._classify(features, weights.mean(dim=2), text)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The texts' vectors [B, l] alone."""
        if batch.text_vector is not None:
            return batch.text_vector
        return self.encoder(batch.word, batch.char, batch.text)

    def encode(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """Encode the texts [B, l] and the distinct memories [M, l] in one call."""
        if batch.memory_vector is not None:
            text, memories = self.encode_texts(batch), batch.memory_vector
            return text, memories if len(memories) else text.new_zeros(1, self.encoder.size)
        (n, t), (m, s) = batch.text.shape, batch.memory_text.shape
        # One empty text stands for the memories where there are none: its vector is 0.
        texts = batch.text.new_zeros(n + max(m, 1), max(t, s))
        texts[:n, :t], texts[n : n + m, :s] = batch.text, batch.memory_text
        encoded = self.encoder(batch.word, batch.char, texts)
        return encoded[:n], encoded[n:]

    def _classify(self, features: list[Tensor], memory_weight: Tensor, text: Tensor) -> ClassificationOutput:
        # Scores are float32 whatever the precision.
        with torch.autocast(features[0].device.type, enabled=False):
            logits: Tensor = self.classifier(torch.cat([feature.float() for feature in features], dim=1))
        chosen = None
        if self.rule is not None:
            if not self.training:  # the rule would be copied from a GPU in each step
                threshold, fills = self.rule.tolist()
                chosen = choose_labels(logits.sigmoid(), (threshold, fills > 0))
            # That a label is missing, and that it is present.
            logits = torch.stack([torch.zeros_like(logits), logits], dim=1)
        return ClassificationOutput(logits, memory_weight, text_vector=text, chosen=chosen)


def weighted_sums(weights: Tensor, values: Tensor) -> Tensor:
    """Sums of values [B, K, d] with weights [B, K, I]: float32 [B, I*d] whatever the precision."""
    with torch.autocast(weights.device.type, enabled=False):
        return (weights.float().transpose(1, 2) @ values.float()).flatten(1)


class KNNBiLSTM(ReadsWordVectors, ReadsMemoryVectors):
    """The paper's model; `features="M1"` is its BiLSTM baseline without memory.

    Args:
        features: the classifier's input (Table 2): M1 text, M2 label, M3 neighbor text; M4 2+3, M5 1+2, M6 1+3, M7 all.
        num_perspectives: I of Equation 2; 0 is plain cosine.
        hidden_size: state size of one direction of the BiLSTM.
        dropout: on word vectors; the paper has none.
        attention: weights of the memories: `cosine`, the paper's raw similarities, or `softmax`, sharp weights from
            similarity and retrieval score that add up to 1: the memories' labels are a vote from the first step on.
        characters: append the last state of an LSTM over a word's characters to its vector.
        char_hidden_size: state size of the character LSTM.
        text_dropout: probability of hiding the text feature of a training example, which the encoder memorizes;
            without it, the classifier hardly learns to read memories. The paper has none.
        optimizer: makes the optimizer; the paper's is Adam at 1e-4.
        **shared: the paper keeps pre-trained vectors fixed.
    """

    takes_sets = True
    without_memory = "--model.features M1"

    def __init__(
        self,
        features: Literal["M1", "M2", "M3", "M4", "M5", "M6", "M7"] = "M7",
        num_perspectives: Count = 5,
        hidden_size: int = 100,
        dropout: float = 0.0,
        attention: Literal["cosine", "softmax"] = "cosine",
        characters: bool = True,
        char_hidden_size: int = 50,
        text_dropout: Probability = 0.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
        **shared: Any,
    ) -> None:
        super().__init__(optimizer=optimizer, **shared)
        self.uses_memory = features != "M1"
        self.features, self.num_perspectives, self.attention = features, num_perspectives, attention
        self.hidden_size, self.dropout = hidden_size, dropout
        self.characters, self.char_hidden_size = characters, char_hidden_size
        self.text_dropout = text_dropout
        self.memory_weight = "cosine similarity" if attention == "cosine" else "weight"

    @override
    def check_data(self, data: DataModule) -> None:
        super().check_data(data)
        if self.encoder_is_frozen and self.init_from is None and self.transformer is None:
            raise InputError(
                "model.freeze_encoder is on, but the encoder's weights are fresh: name a trained model with"
                " model.init_from, or a pre-trained transformer with model.transformer"
            )

    @override
    def build_network(self, given: Given[ClassificationSpec]) -> KNNNetwork:
        if "label" in FEATURES[self.features] and not given.spec.memory_labels:
            raise InputError(
                f"model.features={self.features} reads the memories' labels, but they have none; use M3 or M6, or give"
                " --data.memory_label_column"
            )
        encoder: BiLSTMEncoder | TransformerEncoder
        if self.transformer is not None:
            encoder = TransformerEncoder(self.transformer, given.transformer_config, self.lora_rank)
        else:
            encoder = BiLSTMEncoder(self.make_words(given), self.hidden_size, self.dropout)
        return KNNNetwork(encoder, given.spec, self)

    # --- sets of labels ---

    @property
    @override
    def finishes(self) -> bool:
        return self.network is None or self.network.rule is not None

    @override
    def finish(self, data: ClassificationDataModule) -> None:
        split, rule = data.split("validation"), self.network.rule
        if rule is None or not len(split.independent_rows):
            return
        dataset, size = data.dataset(split, self.batch_contents("validation")), data.options.batch_size
        outputs = ClassificationPredictor(self, data).outputs(dataset, size, split.independent_rows)
        parts = [(probabilities_of(output.logits).cpu(), batch.target.cpu()) for batch, output in outputs]
        probabilities, target = (torch.cat(each) for each in zip(*parts, strict=True))
        rule.copy_(torch.tensor(fit_rule(probabilities, target)))

    # --- starting from another model ---

    @override
    def describe_extras(self) -> PlainDict:
        return {"head": self.network.sizes}

    @override
    def column_names(self, name: str, data: DataState, extras: PlainDict) -> Mapping[Hashable, bool] | None:
        if not name.startswith("network.classifier.") or "head" not in extras:
            return super().column_names(name, data, extras)
        labels, columns = data.facts["memory_labels"], dict[Hashable, bool]()
        for feature, size in extras["head"].items():
            if feature == "label":  # those that vote already stay
                views = size // max(1, len(labels))
                names = [(feature, views, view, label) for view in range(views) for label in labels]
                columns |= dict.fromkeys(names, self.network.votes_at_first)
            else:
                columns |= {(feature, size, position): False for position in range(size)}
        return columns
