"""k-nearest-neighbour augmented text classification.

Zhiguo Wang, Wael Hamza, Linfeng Song: "k-Nearest Neighbor Augmented Neural Networks for Text
Classification", 2017. Equation numbers below are the paper's.

A text and its K labelled neighbours are encoded by one network. The neighbours are weighed by their
similarity to the text, seen from I perspectives, and summed into a label feature and a text feature; a
linear layer classifies from any of the three.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.errors import InputError
from zoo.layers.encoders import BiLSTMEncoder, TransformerEncoder, WordEncoder
from zoo.tasks.classification import ClassificationTask
from zoo.warm_start import columns_of

Features: TypeAlias = Literal["M1", "M2", "M3", "M4", "M5", "M6", "M7"]
Attention: TypeAlias = Literal["cosine", "softmax"]

#: What a unanimous vote of the memories adds to a class's logit, before training, where their weights add up to 1.
VOTE_LOGIT = 3.0

#: Table 2: which of the three features the classifier reads.
FEATURES: dict[str, tuple[str, ...]] = {
    "M1": ("text",),
    "M2": ("label",),
    "M3": ("neighbor",),
    "M4": ("label", "neighbor"),
    "M5": ("text", "label"),
    "M6": ("text", "neighbor"),
    "M7": ("text", "label", "neighbor"),
}


class KNNOutput(NamedTuple):
    """What the network returns: the prediction and its evidence."""

    #: float32 [B, C].
    logits: Tensor
    #: float32 [B, K]: a memory's weight (with `attention="cosine"` its similarity to the text), mean over
    #: the perspectives; 0 where there is no memory.
    memory_weight: Tensor


class MultiPerspectiveCosine(nn.Module):
    """Similarities of two vectors from I perspectives (Equations 2 and 3)."""

    def __init__(self, num_perspectives: int, size: int) -> None:
        super().__init__()
        # 0 perspectives is the paper's baseline in Figure 3: one plain cosine, nothing to learn.
        weight = torch.empty(num_perspectives, size).uniform_(0.5, 1.5) if num_perspectives else None
        self.weight = None if weight is None else nn.Parameter(weight)
        self.size = size

    def forward(self, text: Tensor, memories: Tensor, memory: Tensor) -> Tensor:
        """Compare texts with their memories.

        Args:
            text: [B, l] text vectors h.
            memories: [M, l] vectors h' of the distinct memories.
            memory: [B, K] rows of `memories`.

        Returns:
            float32 [B, K, I]: s_k^i = cosine(W_i * h, W_i * h'_k), in -1..1.
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

    w_k^i = softmax_k(tau_i s_k^i + p log(score_k / score_1)): a sharp mix of what the network and what the
    retriever say, tau learned for each perspective. Raw cosines of a trained encoder hardly differ between
    memories, so their sum counts memories rather than weighs them.
    """

    def __init__(self, num_perspectives: int, score_power: float = 3.0) -> None:
        super().__init__()
        # tau = 1: at first the retriever's scores decide nearly alone. The encoder has fitted the training texts,
        # so its cosines look more telling in training than they are later.
        self.log_tau = nn.Parameter(torch.zeros(max(num_perspectives, 1)))
        self.score_power = score_power

    def forward(self, similarity: Tensor, score: Tensor, mask: Tensor) -> Tensor:
        """Weigh memories.

        Args:
            similarity: float32 [B, K, I].
            score: float32 [B, K] retrieval scores.
            mask: bool [B, K], True where there is a memory.

        Returns:
            float32 [B, K, I]; a text without memories has weights of 0.
        """
        views = [
            vote(similarity[:, :, i], score, mask, tau, self.score_power)
            for i, tau in enumerate(self.log_tau.exp())
        ]
        return torch.stack(views, dim=2)


def vote(
    similarity: Tensor, score: Tensor, mask: Tensor, tau: Tensor | float, score_power: float = 3.0
) -> Tensor:
    """Memories' shares of a vote: softmax_k(tau s_k + p log(score_k / score_1)).

    Args:
        similarity: float32 [B, K].
        score: float32 [B, K] retrieval scores.
        mask: bool [B, K], True where there is a memory.
        tau: sharpness.
        score_power: p.

    Returns:
        float32 [B, K]; a text without memories has shares of 0.
    """
    if similarity.shape[1] == 0:
        return similarity
    top = score.amax(dim=1, keepdim=True).clamp(min=1e-6)
    # A score of 0 (LMDirichlet has such hits) is a weak memory, not an impossible one.
    energy = similarity * tau + (score / top).clamp(min=1e-3).log() * score_power
    return energy.masked_fill(~mask, torch.finfo(energy.dtype).min).softmax(dim=1) * mask


def count_votes(shares: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """Shares [B, K] added up by the memories' classes `target` [B, K] (negative: none): [B, C]."""
    votes = shares.new_zeros(len(shares), num_classes)
    return votes.scatter_add_(1, target.clamp(min=0), shares * (target >= 0))


def mix_in(logits: Tensor, votes: Tensor, mix: Tensor | float) -> Tensor:
    """Log of (1 - mix) softmax(logits) + mix votes, for logits and votes [B, C].

    A text whose memories cast no vote keeps its own distribution.
    """
    cast = votes.sum(dim=1, keepdim=True)
    own = logits.softmax(dim=1)
    mixed = (1 - mix) * own + mix * torch.where(cast > 0, votes / cast.clamp(min=1e-6), own)
    return mixed.clamp(min=1e-9).log()


class KNNNetwork(nn.Module):
    """Figure 1: encoder, neighbour attention, features, classifier."""

    def __init__(
        self,
        encoder: BiLSTMEncoder | TransformerEncoder,
        features: Features,
        num_perspectives: int,
        num_classes: int,
        num_memory_classes: int,
        attention: Attention = "cosine",
        text_dropout: float = 0.0,
        mix: float = 0.0,
        freeze_encoder: bool = False,
        detach_memories: bool = False,
        same_task: bool = False,
    ) -> None:
        super().__init__()
        self.text_dropout = text_dropout
        self.freeze_encoder = freeze_encoder
        self.detach_memories = detach_memories
        if freeze_encoder:
            encoder.requires_grad_(False)
        # Fitted on validation rows by `zoo.tuning`, not by gradients.
        self.mix: Tensor
        self.mix_tau: Tensor
        self.register_buffer("mix", torch.tensor(mix))
        self.register_buffer("mix_tau", torch.tensor(10.0))
        self.plain_cosine = MultiPerspectiveCosine(0, encoder.size)
        self.encoder = encoder
        self.features = FEATURES[features]
        self.num_memory_classes = num_memory_classes
        views = max(num_perspectives, 1)
        sizes = {"text": encoder.size, "label": views * num_memory_classes, "neighbor": views * encoder.size}
        if self.features != ("text",):
            self.similarity = MultiPerspectiveCosine(num_perspectives, encoder.size)
            self.attention = SharpAttention(num_perspectives) if attention == "softmax" else None
        self.sizes = {name: sizes[name] for name in self.features}
        self.classifier = nn.Linear(sum(self.sizes.values()), num_classes)
        #: features whose columns of the classifier mean something before training.
        self.ready = {"label"} & self.sizes.keys() if attention == "softmax" and same_task else set()
        if self.ready:
            with torch.no_grad():
                vote_for_own_class = torch.eye(num_classes).repeat(1, views) * (VOTE_LOGIT / views)
                self.classifier.weight[:, columns_of(self.sizes)["label"]] = vote_for_own_class

    def train(self, mode: bool = True) -> KNNNetwork:
        """A frozen encoder has no training mode: its encodings are the same every time."""
        super().train(mode)
        if self.freeze_encoder:
            self.encoder.eval()
        return self

    def forward(self, batch: ClassificationBatch) -> KNNOutput:
        """Classify the texts of a batch; see `ClassificationBatch` for the shapes."""
        mixed = not self.training and bool(self.mix > 0)
        if self.features == ("text",) and not mixed:
            text = self.encode_texts(batch)
            return KNNOutput(self._classify([text]), torch.zeros_like(batch.memory_score))

        text, memories = self.encode(batch)  # [B, l], [M, l]
        logits, weights = self.head(text, memories, batch)
        if not mixed:
            return KNNOutput(logits, weights)
        similarity = self.plain_cosine(text, memories, batch.memory).squeeze(2)
        vote_weights = vote(similarity, batch.memory_score, batch.memory_mask, self.mix_tau)
        votes = count_votes(vote_weights, batch.memory_target, logits.shape[1])
        shown = vote_weights if self.features == ("text",) else weights
        return KNNOutput(mix_in(logits, votes, self.mix), shown)

    def head(self, text: Tensor, memories: Tensor, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """Logits [B, C] and memory weights [B, K] from encodings: neighbour attention, features, classifier."""
        if self.features == ("text",):
            return self._classify([text]), torch.zeros_like(batch.memory_score)
        similarity = self.similarity(text, memories, batch.memory)  # [B, K, I]
        if self.attention is None:
            weights = similarity * batch.memory_mask.unsqueeze(2)
        else:
            weights = self.attention(similarity, batch.memory_score, batch.memory_mask)
        by_view = weights.transpose(1, 2)  # [B, I, K]
        features = []
        for name in self.features:
            if name == "text":
                features.append(self._drop_text(text))
            elif name == "label":  # Equation 4
                known = batch.memory_target >= 0
                one_hot = functional.one_hot(batch.memory_target.clamp(min=0), self.num_memory_classes)
                features.append((by_view @ (one_hot * known.unsqueeze(2)).float()).flatten(1))  # [B, I*C]
            else:  # Equation 5
                features.append((by_view @ memories[batch.memory].float()).flatten(1))  # [B, I*l]
        return self._classify(features), weights.mean(dim=2)

    def encode_texts(self, batch: ClassificationBatch) -> Tensor:
        """The texts' vectors [B, l] alone."""
        if batch.text_vector is not None:
            return batch.text_vector
        vectors: Tensor = self.encoder(batch.word, batch.char, batch.text)
        return vectors

    def encode(self, batch: ClassificationBatch) -> tuple[Tensor, Tensor]:
        """Encode the texts [B, l] and the distinct memories [M, l] in one call."""
        if batch.text_vector is not None and batch.memory_vector is not None:
            nothing = batch.text_vector.new_zeros(1, self.encoder.size)
            return batch.text_vector, batch.memory_vector if len(batch.memory_vector) else nothing
        n, length = batch.text.shape
        m, memory_length = batch.memory_text.shape
        # One empty text stands for the memories where there are none: its vector is 0.
        texts = batch.text.new_zeros(n + max(m, 1), max(length, memory_length))
        texts[:n, :length] = batch.text
        texts[n : n + m, :memory_length] = batch.memory_text
        encoded = self.encoder(batch.word, batch.char, texts)
        memories = encoded[n:]
        return encoded[:n], memories.detach() if self.detach_memories else memories

    def _drop_text(self, text: Tensor) -> Tensor:
        """Zero the text feature of some training examples: their class must be read off the memories."""
        if not self.training or self.text_dropout == 0:
            return text
        return text * (torch.rand(len(text), 1, device=text.device) >= self.text_dropout)

    def _classify(self, features: list[Tensor]) -> Tensor:
        # Scores are float32 whatever the precision.
        with torch.autocast(features[0].device.type, enabled=False):
            logits: Tensor = self.classifier(torch.cat([feature.float() for feature in features], dim=1))
            return logits


class KNNBiLSTM(ClassificationTask):
    """The paper's model; `features="M1"` is its BiLSTM baseline without memory.

    Example:
        >>> model = KNNBiLSTM(features="M7", num_perspectives=5)
    """

    paper = "Wang, Hamza, Song: k-Nearest Neighbor Augmented Neural Networks for Text Classification (2017)"

    def __init__(
        self,
        features: Features = "M7",
        num_perspectives: int = 5,
        hidden_size: int = 100,
        word_size: int = 300,
        train_word_vectors: bool = False,
        characters: bool = True,
        char_size: int = 20,
        char_hidden_size: int = 50,
        dropout: float = 0.0,
        transformer: str | None = None,
        pooling: Literal["mean", "cls"] = "mean",
        attention: Attention = "cosine",
        text_dropout: float = 0.0,
        mix: float = 0.0,
        init_from: str | None = None,
        freeze_encoder: bool = False,
        detach_memories: bool = False,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=1e-4),
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            features: what the classifier reads (Table 2): M1 text, M2 label, M3 neighbour text, M4 = 2+3,
                M5 = 1+2, M6 = 1+3, M7 = all.
            num_perspectives: I of Equation 2; 0 is plain cosine.
            hidden_size: state size of one direction of the BiLSTM.
            word_size: size of word vectors, where the data brings none (`--data.word_vectors`).
            train_word_vectors: train the word vectors; the paper keeps pre-trained ones fixed. Vectors
                that are not pre-trained are always trained.
            characters: add the last state of an LSTM over a word's characters to its vector.
            char_size: size of a character's vector.
            char_hidden_size: state size of the character LSTM.
            dropout: on word vectors; the paper has none.
            transformer: Hub name or folder of a pre-trained transformer that takes the BiLSTM's place;
                give the same name as `--data.tokenizer`.
            pooling: how the transformer's states become a text's vector.
            attention: how memories are weighed: `cosine`, the paper's raw similarities, or `softmax`, sharp
                weights from similarity and retrieval score that add up to 1 (see `SharpAttention`); the memories'
                labels then count as a vote from the first step on.
            text_dropout: probability of hiding the text feature of a training example from the classifier,
                which otherwise learns to trust the text alone: the encoder has fitted it by heart, while the
                memories look in training as they do later. The paper has none.
            mix: share of a plain vote of the memories in every prediction (not in training): probabilities are
                (1 - mix) times the classifier's plus mix times the vote, whose weights come from cosine and
                retrieval score and are not trained. `zoo memory tune` fits it on validation rows, again
                whenever the memory has grown.
            init_from: a checkpoint whose weights the model starts from: encoder, vectors of shared words, and
                the classifier's part for the features that both have. `--ckpt_path` resumes a run instead.
            freeze_encoder: train the classifier and the attention only. All texts are then encoded once, and
                an epoch takes a fraction of the time; the memories' encodings no longer move.
            detach_memories: no gradient goes through the memories' encodings: the encoder learns from the texts
                alone, as in M1, and the head learns to read memories that it can't change.
            optimizer: makes the optimizer; the paper's is Adam at 1e-4.
            lr_scheduler: makes a schedule, stepped once an epoch.
        """
        super().__init__(optimizer, lr_scheduler)
        if features not in FEATURES:
            raise InputError(f"model.features={features!r}: choose one of {', '.join(FEATURES)}")
        if not 0 <= mix <= 1:
            raise InputError(f"model.mix={mix}: must be in 0..1")
        for name, value, known in (
            ("attention", attention, ("cosine", "softmax")),
            ("pooling", pooling, ("mean", "cls")),
        ):
            if value not in known:
                raise InputError(f"model.{name}={value!r}: choose one of {', '.join(known)}")
        if not 0 <= text_dropout < 1:
            raise InputError(f"model.text_dropout={text_dropout}: must be 0 or more and below 1")
        if freeze_encoder and init_from is None and transformer is None:
            raise InputError(
                "model.freeze_encoder is on, but the encoder's weights are fresh: name a trained model with"
                " model.init_from, or a pre-trained transformer with model.transformer"
            )
        if num_perspectives < 0:
            raise InputError(f"model.num_perspectives={num_perspectives}: must be 0 or more")
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])

    @property
    def uses_memory(self) -> bool:
        """False for M1 (without `mix`), which reads no memory: its data need not retrieve any."""
        return bool(self.hparams["features"] != "M1" or self.hparams["mix"] > 0)

    def check_data(self, data: Any) -> None:
        """See `Task.check_data`: memories to read, and characters."""
        super().check_data(data)
        options = self.hparams
        if self.uses_memory and data.num_memories == 0:
            raise InputError(
                f"model.features={options['features']} reads memories, but data.num_memories is 0; use M1 or"
                " set --data.num_memories"
            )
        if options["transformer"] is None and options["characters"] and not data.options["characters"]:
            raise InputError("model.characters is on, but data.characters is off; make them agree")

    def build_network(
        self, spec: ClassificationSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> KNNNetwork:
        """Figure 1 for the data's sizes; see `ClassificationTask.build_network`."""
        options = self.hparams
        if "label" in FEATURES[options["features"]] and not spec.memory_labels:
            raise InputError(
                f"model.features={options['features']} reads the memories' labels, but they have none; use M3"
                " or M6, or give --data.memory_label_column"
            )
        if options["mix"] > 0 and spec.memory_labels != spec.labels:
            raise InputError("model.mix: the memories have no labels or another task's, so they can't vote")
        encoder: BiLSTMEncoder | TransformerEncoder
        if options["transformer"] is not None:
            encoder = TransformerEncoder(options["transformer"], options["pooling"], transformer_config)
        else:
            words = WordEncoder.of_vocabulary(
                spec.num_words,
                word_vectors,
                options["word_size"],
                options["train_word_vectors"],
                num_chars=spec.num_chars if options["characters"] else 0,
                char_size=options["char_size"],
                char_hidden_size=options["char_hidden_size"],
            )
            encoder = BiLSTMEncoder(words, options["hidden_size"], options["dropout"])
        return KNNNetwork(
            encoder,
            options["features"],
            options["num_perspectives"],
            num_classes=len(spec.labels),
            num_memory_classes=len(spec.memory_labels),
            attention=options["attention"],
            text_dropout=options["text_dropout"],
            mix=options["mix"],
            freeze_encoder=options["freeze_encoder"],
            detach_memories=options["detach_memories"],
            same_task=spec.memory_labels == spec.labels,
        )

    def on_fit_start(self) -> None:
        """Encode everything once if the encoder is frozen."""
        super().on_fit_start()
        if not self.hparams["freeze_encoder"]:
            return
        network = cast(KNNNetwork, self.network)

        @torch.no_grad()
        def encode(batch: ClassificationBatch) -> Tensor:
            return network.encode_texts(self.transfer_batch_to_device(batch, self.device, 0))

        training = network.training
        network.eval()
        self.trainer.datamodule.cache_encodings(encode)  # type: ignore[attr-defined]
        network.train(training)
