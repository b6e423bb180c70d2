"""Text matching as image recognition.

Liang Pang, Yanyan Lan, Jiafeng Guo, Jun Xu, Shengxian Wan, Xueqi Cheng: "Text Matching as Image Recognition",
AAAI 2016.

The similarities of all words of one text to all words of the other are an image, in which phrases that match
are diagonal strokes. Convolutions look for such patterns, dynamic pooling brings images of all sizes to one,
and an MLP scores what is there.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.errors import InputError
from zoo.baselines.convolution import inside, pool_grid
from zoo.layers.encoders import WordEncoder
from zoo.layers.interactions import cosine_interaction, dot_interaction, word_pair_mask
from zoo.tasks.base import check_sizes
from zoo.tasks.ranking import Loss, MatchingOutput, MatchingTask

Similarity = Literal["cosine", "dot", "indicator"]


class MatchPyramidNetwork(nn.Module):
    """Figure 2: image, convolutions, dynamic pooling, MLP."""

    def __init__(
        self,
        words: WordEncoder | None,
        similarity: Similarity,
        filters: tuple[int, ...],
        kernel: int,
        grid: tuple[int, int],
        hidden_size: int,
        dropout: float,
        num_outputs: int,
        bias: bool,
        unknown: int,
    ) -> None:
        super().__init__()
        self.words = words
        self.unknown = unknown
        self.similarity = similarity
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel) for before, after in zip((1, *filters), filters, strict=False)
        )
        self.sides = ((kernel - 1) // 2, kernel // 2) * 2
        self.grid = grid
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(grid[0] * grid[1] * filters[-1], hidden_size)
        self.out = nn.Linear(hidden_size, num_outputs, bias=bias)

    def forward(self, batch: MatchingBatch) -> MatchingOutput:
        """Score the pairs of a batch; see `MatchingBatch` for the shapes."""
        interaction = self.compare(batch)  # [P, T, S]
        heights = (batch.first_text != 0).sum(dim=1)[batch.first]
        widths = (batch.second_text != 0).sum(dim=1)[batch.second]
        image = interaction.unsqueeze(3)  # [P, T, S, 1], zero outside the texts
        for number, convolution in enumerate(self.convolutions):
            if number > 0:
                # What a convolution left beyond the texts must not come back through the next one.
                image = inside(image, heights, widths)
            padded = nn.functional.pad(image.permute(0, 3, 1, 2), self.sides)
            image = torch.relu(convolution(padded)).permute(0, 2, 3, 1)
        with torch.autocast(interaction.device.type, enabled=False):
            pooled = pool_grid(image.float().contiguous(), heights, widths, self.grid)
            hidden = torch.relu(self.hidden(self.dropout(pooled.flatten(1))))
            return MatchingOutput(self.out(self.dropout(hidden)), interaction.detach())

    def compare(self, batch: MatchingBatch) -> Tensor:
        """The image: float32 [P, T, S], 0 where a place is padding or both words are unknown."""
        mask = word_pair_mask(batch, self.unknown)
        if self.words is None:
            first = batch.first_text[batch.first].unsqueeze(2)
            second = batch.second_text[batch.second].unsqueeze(1)
            return ((first == second) & mask).float()
        vectors = self.words(batch.word, batch.char)
        interact = cosine_interaction if self.similarity == "cosine" else dot_interaction
        return interact(vectors[batch.first_text], vectors[batch.second_text], batch) * mask


class MatchPyramid(MatchingTask):
    """The paper's model.

    Example:
        >>> model = MatchPyramid(similarity="cosine", filters=(16,), grid=(3, 10))
    """

    paper = "Pang et al.: Text Matching as Image Recognition (2016)"

    def __init__(
        self,
        similarity: Similarity = "cosine",
        filters: tuple[int, ...] = (16,),
        kernel: int = 3,
        grid: tuple[int, int] = (3, 10),
        hidden_size: int = 64,
        word_size: int = 300,
        train_word_vectors: bool = False,
        dropout: float = 0.3,
        init_from: str | None = None,
        loss: Loss = "hinge",
        margin: float = 1.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=1e-3, fused=True),
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        """Configure the model; its network is built when the data is known.

        Args:
            similarity: of two words: `cosine` or `dot` product of their vectors, or `indicator`: 1 if they are
                the same word, which reads no vectors.
            filters: of each convolution.
            kernel: side of the convolutions.
            grid: parts of the first and of the second text that the last convolution is pooled into.
            hidden_size: units of the MLP's hidden layer.
            word_size: size of word vectors, where the data brings none (`--data.word_vectors`).
            train_word_vectors: train the word vectors. Vectors that are not pre-trained are always trained.
            dropout: in the MLP.
            init_from: a checkpoint whose weights the model starts from. `--ckpt_path` resumes a run instead.
            loss: see `MatchingTask`; the paper's is `cross_entropy`.
            margin: of the hinge loss.
            optimizer: makes the optimizer. Adam's `fused=True` does the same in one pass: with a trained table
                the update is most of a step on a CPU.
            lr_scheduler: makes a schedule, stepped once an epoch.
        """
        super().__init__(optimizer, lr_scheduler, loss, margin)
        if similarity not in ("cosine", "dot", "indicator"):
            raise InputError(f"model.similarity={similarity!r}: must be cosine, dot or indicator")
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])
        check_sizes(self.hparams, "filters", "grid", "kernel", "hidden_size")

    def build_network(
        self, spec: MatchingSpec, word_vectors: Tensor | None, transformer_config: dict[str, Any] | None
    ) -> MatchPyramidNetwork:
        """Figure 2 for the data's sizes; see `Task.build_network`."""
        options = self.hparams
        words = None
        if options["similarity"] != "indicator":
            words = WordEncoder.of_vocabulary(
                spec.num_words, word_vectors, options["word_size"], options["train_word_vectors"]
            )
        return MatchPyramidNetwork(
            words,
            options["similarity"],
            options["filters"],
            options["kernel"],
            options["grid"],
            options["hidden_size"],
            options["dropout"],
            spec.num_outputs,
            bias=self.sees_constants,
            unknown=spec.unknown,
        )
