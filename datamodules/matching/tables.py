"""Tables of pairs: read, and compared for duplicates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datamodules.core.errors import InputError
from datamodules.corpora.pair_readers import Goal, read_pairs, read_quora, read_wikiqa
from datamodules.corpora.pairs import Pairs
from datamodules.duplicates import duplicate_codes
from datamodules.matching.options import MatchingOptions
from datamodules.retrieval.folding import fold_hashes


def read_pair_table(
    path: str, options: MatchingOptions, labelled: bool = True, with_ids: bool = False
) -> Pairs:
    """Read a table of any layout but `trec`; without `labelled`, labels and ids may be missing (prediction).

    With `with_ids`, an `InputError` is raised for a table whose questions and texts have no ids.
    """
    if with_ids and (
        options.chosen_goal == "classification"
        or (options.layout == "table" and None in (options.question_column, options.id_column))
    ):
        raise InputError(
            f"{path}: a ranking with ids needs those of the questions and of the texts: name --question_column and"
            " --id_column; pairs to classify have no ranking"
        )
    if options.layout == "wikiqa":
        return read_wikiqa(path, labelled)
    if options.layout == "quora":
        return read_quora(path, labelled)
    if options.layout == "trec":
        raise InputError(f"{path}: give the columns of the pairs with --first_column and --second_column")
    return read_pairs(
        path,
        options.first_column,
        options.second_column,
        label_column=options.label_column if labelled else None,
        question_column=options.question_column if labelled or with_ids else None,
        id_column=options.id_column if labelled or with_ids else None,
        header=options.header,
        quotes=options.quotes,
        goal=options.chosen_goal,
    )


def duplicate_keys(table: Pairs, goal: Goal) -> NDArray[np.uint64]:
    """A key for each question to rank, or for each pair to classify, independent of the order of its texts."""
    first = fold_hashes(table.first.texts)
    if goal == "ranking":
        by_question: NDArray[np.uint64] = first[table.question_row]
        return by_question
    firsts, seconds = first[table.first_row], fold_hashes(table.second.texts)[table.second_row]
    # The factor distinguishes a pair from another pair of the same sum.
    by_pair: NDArray[np.uint64] = np.minimum(firsts, seconds) * np.uint64(0x9E3779B97F4A7C15) + np.maximum(
        firsts, seconds
    )
    return by_pair


def question_groups(table: Pairs, goal: Goal) -> NDArray[np.int64]:
    """int64 [questions]: equal for questions that are duplicates or share a duplicate of a pair."""
    numbers = np.arange(table.num_questions)
    links = [(numbers, duplicate_codes(table.first.texts)[table.question_row])]
    if goal == "classification":
        pairs = np.unique(duplicate_keys(table, goal), return_inverse=True)[1]
        links.append((table.question.astype(np.int64), pairs))
    groups = numbers
    while True:
        before = groups
        for question, code in links:
            lowest = np.full(code.max(initial=0) + 1, len(numbers))
            np.minimum.at(lowest, code, groups[question])
            groups = groups.copy()
            np.minimum.at(groups, question, lowest[code])
        if np.array_equal(before, groups):
            return groups
