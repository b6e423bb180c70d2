"""Options of data of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from datamodules.core.errors import InputError
from datamodules.corpora.pairs import Goal
from datamodules.corpora.records import Column
from datamodules.options import TableOptions, check_least

#: Content of a training list.
Batches: TypeAlias = Literal["pointwise", "pairwise", "listwise"]


@dataclass(frozen=True, kw_only=True)
class MatchingOptions(TableOptions):
    """Options of `MatchingDataModule`; splits take shares of the questions, not of the pairs.

    Attributes:
        goal: `ranking` orders a question's candidates (labels are grades from 0); `classification` decides whether two
            texts match (labels 0 and 1). None = classification for the layout `quora`, otherwise ranking.
        layout: a `table` with the columns below; the official `wikiqa` release; the `quora` release, or label, two
            questions and id without a header; or `trec` judgements (`query 0 document grade` or without the 0).
        first_column: name or number (from 0) of the first text (the question).
        second_column: name or number of the second text (the answer).
        question_column: name or number of an id of the question; None = pairs of equal first texts are one question.
        queries_file: with `trec`, the queries of all splits, in one file or several: .jsonl with `id` (or `_id`) and
            `text`, or .tsv with id and text and no header.
        documents_file: with `trec`, the documents, in the same formats. All of them are then the memory.
        document_column: name or number of the documents' text, or several, which are joined; None = `text`, or the
            second column of a .tsv.
        batches: a training list: `pointwise` a pair, `pairwise` a positive with negatives, `listwise` all candidates of
            a question. None = pairwise to rank, pointwise to classify.
        negatives: the question's `own` candidates of a lower grade; or other questions' `random` texts, or `retrieved`
            ones from the memory, which also join a listwise list. Known positives are excluded, with duplicates.
        num_negatives: maximum number of negatives in a list.
        candidates: texts that validation and test rank: the question's `own` candidates, or also those `retrieved` from
            the memory, with grade 0; the scores do not count what the retrieval misses.
        num_candidates: number of hits that are `retrieved`.
        first_length: number of words kept of a first text.
        second_length: number of words kept of a second text.
        memory_text_column: text of the memory table; without one, the training's second texts or the documents are it.
    """

    goal: Goal | None = None
    layout: Literal["table", "wikiqa", "quora", "trec"] = "table"
    first_column: Column = "first"
    second_column: Column = "second"
    question_column: Column | None = None
    queries_file: str | list[str] | None = None
    documents_file: str | None = None
    document_column: Column | list[Column] | None = None
    batches: Batches | None = None
    negatives: Literal["own", "random", "retrieved"] = "own"
    num_negatives: int = 4
    candidates: Literal["own", "retrieved"] = "own"
    num_candidates: int = 50
    first_length: int = 40
    second_length: int = 80
    memory_text_column: Column | list[Column] | None = "text"
    normalize_vectors: bool = True
    batch_size: int = 32

    files: ClassVar[tuple[str, ...]] = (*TableOptions.files, "queries_file", "documents_file")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "num_negatives", "num_candidates", "first_length", "second_length")
        self._check_lists()
        for name in ("validation_split", "test_split"):
            share = getattr(self, name)
            if share is not None and not 0 < share < 1:
                raise InputError(f"data.{name}={share}: give a share between 0 and 1")

    def _check_lists(self) -> None:
        if self.chosen_goal == "classification":
            if self.layout == "trec" or self.candidates != "own":
                raise InputError("data.goal=classification: pairs have no candidates; set goal=ranking")
            if self.batches not in (None, "pointwise"):
                raise InputError(f"data.batches={self.batches}: pairs to classify are pointwise; omit it")
        if self.chosen_batches == "pointwise" and self.negatives != "own":
            raise InputError(f"data.negatives={self.negatives}: pointwise draws none; set batches=pairwise")

    @property
    def chosen_goal(self) -> Goal:
        """The goal, after the default of the layout."""
        return self.goal or ("classification" if self.layout == "quora" else "ranking")

    @property
    def chosen_batches(self) -> Batches:
        """The content of a training list, after the default of the goal."""
        return self.batches or ("pairwise" if self.chosen_goal == "ranking" else "pointwise")
