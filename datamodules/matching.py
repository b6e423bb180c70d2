"""Pairs of texts to match: from the user's files to batches of lists.

Rank 0 does the work once, in `prepare_data`: read and split the pairs, tokenise each distinct text, choose the
vocabulary. Every result is a folder in the cache under a fingerprint of what it was made from, so a second run
starts at once and a changed input makes new folders. Every rank then maps those folders in `setup`, and a batch
is put together by compiled code.

The unit is the list: all candidates of a question where a model is evaluated; in training a pair alone
(pointwise), a positive with negatives that are drawn anew in every epoch (pairwise), or all candidates
(listwise).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jsonargparse import lazy_instance  # type: ignore[attr-defined]
from numba import njit
from numpy.typing import NDArray
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor
from torch.utils.data import DataLoader

from datamodules.base import TextDataModule
from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.corpora.pairs import (
    Goal,
    Pairs,
    read_identified,
    read_pairs,
    read_quora,
    read_trec,
    read_wikiqa,
)
from datamodules.corpora.split import stratified_split
from datamodules.corpora.table import Column, EncodingErrors, Rows
from datamodules.errors import InputError
from datamodules.matching_dataset import Lists, MatchingDataset, MatchingSplit
from datamodules.negatives import (
    Negatives,
    PoolNegatives,
    RandomNegatives,
    foreign_texts,
    own_negatives,
    text_codes,
)
from datamodules.preparation import (
    are_whole,
    check_least,
    file_state,
    given_memory,
    kept_tokens,
    memory_folder,
    open_vocabulary,
    prepare_rows,
    prepare_tokens,
    prepare_vocabulary,
)
from datamodules.retrieval.base import Retriever
from datamodules.retrieval.embedded import EmbeddedRetriever
from datamodules.retrieval.memory import POINTER, FolderMemory, Memory, is_existing_index, open_memory
from datamodules.retrieval.neighbors import NeighborStore, build_neighbors
from datamodules.sampling import ListSampler
from datamodules.storage import (
    cache_folder,
    check_folder,
    fingerprint_of,
    is_whole,
    lock,
    named_disk_errors,
    new_folder,
    write_json,
)
from datamodules.text.gather import TextGroup, WordTable, gather
from datamodules.text.tokenization import WORD_TOKENIZERS, TransformersTokenizer, make_tokenizer
from datamodules.text.tokens import TokenStore
from datamodules.text.vocabulary import Vocabulary
from datamodules.token_vectors import TokenVectors

log = logging.getLogger(__name__)

#: What a training list holds.
Batches: TypeAlias = Literal["pointwise", "pairwise", "listwise"]
#: What a file looks like: columns that the user names, or a published release.
Layout: TypeAlias = Literal["table", "wikiqa", "quora", "trec"]
#: Where negatives come from, and the candidates that a model is evaluated on.
NegativesFrom: TypeAlias = Literal["own", "random", "retrieved"]
CandidatesFrom: TypeAlias = Literal["own", "retrieved"]
#: What a command line starts from when it sets `--data.retriever.similarity` alone.
DEFAULT_RETRIEVER: Retriever = lazy_instance(EmbeddedRetriever)

#: Smallest value of each option that is a number.
_LEAST = {
    "num_negatives": 1,
    "num_candidates": 1,
    "first_length": 1,
    "second_length": 1,
    "min_count": 1,
    "max_words": 1,
    "vector_words": 0,
    "max_characters": 1,
    "batch_size": 1,
    "eval_batch_size": 1,
    "num_workers": 0,
}
_CHOICES = {
    "layout": ("table", "wikiqa", "quora", "trec"),
    "goal": ("ranking", "classification"),
    "batches": (None, "pointwise", "pairwise", "listwise"),
    "negatives": ("own", "random", "retrieved"),
    "candidates": ("own", "retrieved"),
    "encoding_errors": ("strict", "replace"),
}


class MatchingDataModule(TextDataModule[MatchingSplit, MatchingDataset]):
    """Pairs of texts to rank or to classify.

    Example:
        >>> data = MatchingDataModule(
        ...     layout="wikiqa", train_file="WikiQA-train.tsv", validation_file="WikiQA-dev.tsv"
        ... )
    """

    spec_type = MatchingSpec

    def __init__(
        self,
        train_file: str | None = None,
        validation_file: str | None = None,
        test_file: str | None = None,
        goal: Goal | None = None,
        layout: Layout = "table",
        first_column: Column = "first",
        second_column: Column = "second",
        label_column: Column = "label",
        question_column: Column | None = None,
        id_column: Column | None = None,
        header: bool | None = None,
        quotes: bool | None = None,
        encoding_errors: EncodingErrors = "strict",
        queries_file: str | list[str] | None = None,
        documents_file: str | None = None,
        document_column: Column | list[Column] | None = None,
        validation_split: float = 0.1,
        test_split: float | None = None,
        split_seed: int = 0,
        batches: Batches | None = None,
        negatives: NegativesFrom = "own",
        num_negatives: int = 4,
        candidates: CandidatesFrom = "own",
        num_candidates: int = 50,
        keep_questions_without_positive: bool = False,
        memory: str | None = None,
        memory_text_column: Column | list[Column] = "text",
        retriever: Retriever = DEFAULT_RETRIEVER,
        tokenizer: str = "words",
        lowercase: bool | None = None,
        first_length: int = 40,
        second_length: int = 80,
        min_count: int = 1,
        max_words: int | None = None,
        word_vectors: str | None = None,
        normalize_vectors: bool = True,
        vector_words: int = 100_000,
        characters: bool = False,
        max_characters: int = 16,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        bucket_by_length: bool = True,
        num_workers: int = 0,
        seed: int | None = None,
        cache_dir: str | None = None,
    ) -> None:
        """Describe the data; nothing is read yet.

        Args:
            train_file: table of pairs: .csv, .tsv, .jsonl (also .gz, .xz), .parquet, a folder saved by
                `datasets`, or `hub:NAME[:SPLIT]`.
            validation_file: the same for validation; without it, questions are split off the training table.
            test_file: the same for the test.
            goal: `ranking` puts a question's candidates in order (labels are grades of 0 or more);
                `classification` tells whether two texts match (labels are 0 and 1). None = classification of
                Quora's pairs, ranking of all others.
            layout: `table` has the columns named below; `wikiqa` is the official release; `quora` is Quora's
                release, or label, two questions and id without a header; in `trec` the files are judgements
                (`query 0 document grade` or `query document grade`) of the texts in the two files below.
            first_column: name or number (from 0) of the first text (the question).
            second_column: of the second text (the answer).
            label_column: of the grade or label.
            question_column: of an id of the question; None = pairs of equal first texts are one question.
            id_column: of an id of the pair; None = row numbers.
            header: whether CSV files have a header line; None finds out.
            quotes: whether fields may stand in double quotes; None = in CSV files, not in TSV files.
            encoding_errors: `strict` refuses bytes that are not UTF-8, `replace` puts U+FFFD in their place.
            queries_file: with `trec`, the queries of all splits: .jsonl with `id` (or `_id`) and `text`, or .tsv
                with id and text and no header; one file or several.
            documents_file: with `trec`, the documents, likewise. All of them are then the memory.
            document_column: name or number of the documents' text, or several, which are joined; None =
                `text`, or the second column of a .tsv.
            validation_split: share of the questions (not pairs) that is split off for validation.
            test_split: share of the training table's questions that is split off for the test before that, to
                be used in place of a test file; None = no such test.
            split_seed: seed of these splits; independent of the training's seed.
            batches: what a training list is: `pointwise` a pair, `pairwise` a positive with negatives,
                `listwise` all candidates of a question. None = pairwise to rank, pointwise to classify.
            negatives: where negatives come from: the question's `own` candidates of a lower grade, `random` ones
                from other questions, or `retrieved` ones, which the retriever finds in the memory for the
                question. The latter two join a listwise list as well. Known positives and copies of them are
                left out.
            num_negatives: negatives of a list at most.
            candidates: what is ranked in validation and test: the question's `own` candidates, or also those
                that are `retrieved` from the memory, with grade 0. So retrieval's misses don't count: the
                figures are those of the order.
            num_candidates: hits that are `retrieved`.
            keep_questions_without_positive: count such questions as 0 in the means instead of leaving them out.
            memory: where candidates are retrieved: None = the distinct second texts of the training pairs (or
                the documents); a table; a folder that `zoo index` built. A retriever with an index of its own
                (`ElasticsearchRetriever(index=...)`) is its own memory.
            memory_text_column: text of the memory table.
            retriever: back end and ranking: EmbeddedRetriever or ElasticsearchRetriever.
            tokenizer: `words` (Unicode words and punctuation), `whitespace`, or a `transformers` tokenizer by
                name or folder.
            lowercase: fold case before words are looked up; None = yes, but a `transformers` tokenizer keeps
                to its own rule.
            first_length: words kept of a first text.
            second_length: words kept of a second text.
            min_count: words that occur less often in the distinct training texts are unknown words.
            max_words: largest vocabulary; None = no limit.
            word_vectors: file of pre-trained GloVe or word2vec vectors (text, plain, .gz, .xz, .zip).
            normalize_vectors: give each of these vectors the length 1.
            vector_words: how many of the most frequent words of that file join the vocabulary although the
                training texts lack them: they may come up later.
            characters: give the model the characters of words.
            max_characters: characters kept of a word.
            batch_size: lists a training batch of one device.
            eval_batch_size: lists a batch otherwise; None = `batch_size`.
            bucket_by_length: put lists of like length into a batch.
            num_workers: processes that put batches together; 0 = the training process.
            seed: of the training order and of drawn negatives; None = the run's seed.
            cache_dir: where prepared data is kept; None = $ZOO_CACHE_DIR or ~/.cache/memory-zoo.
        """
        super().__init__()
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        arguments.pop("retriever")
        # A retriever holds an open index: the default is a new one for each data module.
        self.retriever = EmbeddedRetriever() if retriever is DEFAULT_RETRIEVER else retriever
        arguments["goal"] = goal = goal or ("classification" if layout == "quora" else "ranking")
        self.options = arguments
        check_least(arguments, _LEAST)
        for name, allowed in _CHOICES.items():
            if arguments[name] not in allowed:
                choices = ", ".join(str(choice) for choice in allowed if choice)
                raise InputError(f"data.{name}={arguments[name]}: use one of {choices}")
        for name in ("validation_split", "test_split"):
            if arguments[name] is not None and not 0 < arguments[name] < 1:
                raise InputError(f"data.{name}={arguments[name]}: give a share between 0 and 1")
        if test_split is not None and test_file is not None:
            raise InputError("data.test_split and data.test_file: give one of them")
        if goal == "classification" and batches not in (None, "pointwise"):
            raise InputError(f"data.batches={batches}: pairs to classify are pointwise; leave the option out")
        if layout == "trec" and None in (queries_file, documents_file):
            raise InputError("data.layout=trec: name data.queries_file and data.documents_file")
        if goal == "classification" and (layout == "trec" or candidates != "own"):
            raise InputError(
                "data.goal=classification: pairs to classify have no candidates; set goal=ranking"
            )
        self.batches: Batches = batches or ("pairwise" if goal == "ranking" else "pointwise")
        if self.batches == "pointwise" and negatives != "own":
            raise InputError(f"data.negatives={negatives}: pointwise batches draw none; set batches=pairwise")
        self.keep_questions_without_positive = keep_questions_without_positive
        #: the validation figure, higher = better, by which an epoch is chosen.
        self.monitor = "val/map" if goal == "ranking" else "val/accuracy"
        self.cache = cache_folder(cache_dir)
        if lowercase is None:
            lowercase = tokenizer in WORD_TOKENIZERS
        self.tokenizer = make_tokenizer(tokenizer, lowercase)
        #: where the memory is, or will be when it is first needed; after `setup` or `use_state`.
        self.memory_location: str | None = None
        #: folder and fingerprint of the table that it is made of, if it is not the user's own.
        self._memory_rows: tuple[str, str] | None = None
        self._texts: tuple[Rows, Rows] | None = None
        #: texts, and how many of them have each word of the vocabulary.
        self._frequency: tuple[int, NDArray[np.int64]] = 0, np.zeros(0, np.int64)
        #: of a split (by its identity), see `cache_encodings`.
        self._vectors: dict[int, tuple[TokenVectors, TokenVectors]] = {}

    # --- reading the user's tables ---

    def _read(self, path: str) -> Pairs:
        options = self.options
        if options["layout"] == "wikiqa":
            return read_wikiqa(path, options["encoding_errors"])
        if options["layout"] == "quora":
            return read_quora(path, options["encoding_errors"])
        if options["layout"] == "trec":
            return read_trec(path, *self._collection(), options["encoding_errors"])
        names = ("first_column", "second_column", "label_column", "question_column", "id_column", "header")
        return read_pairs(
            path,
            **{name: options[name] for name in (*names, "quotes", "encoding_errors", "goal")},
        )

    def read_unlabelled(self, path: str) -> Pairs:
        """Pairs to score, of a table like the training table; labels need not be there."""
        options = self.options
        if options["layout"] == "wikiqa":
            return read_wikiqa(path, options["encoding_errors"], labelled=False)
        if options["layout"] == "quora":
            return read_quora(path, options["encoding_errors"], labelled=False)
        if options["layout"] == "trec":
            raise InputError(f"{path}: give the columns of the pairs with --first_column and --second_column")
        names = ("first_column", "second_column", "header", "quotes", "encoding_errors")
        return read_pairs(path, **{name: options[name] for name in names})

    def _collection(self) -> tuple[Rows, Rows]:
        """Queries and documents of a test collection."""
        if self._texts is None:
            files = self.options["queries_file"]
            queries = [read_identified(file) for file in ([files] if isinstance(files, str) else files)]
            documents = read_identified(self.options["documents_file"], self.options["document_column"])
            self._texts = Rows.concat(queries), documents
        return self._texts

    def _training_table(self) -> Pairs:
        if self.options["train_file"] is None:
            raise InputError("data.train_file: name a table of pairs")
        return self._read(self.options["train_file"])

    def _tables(self, wanted: Sequence[str]) -> dict[str, Pairs]:
        """The wanted splits; no question of the training table is in two of them."""
        options = self.options
        files = {"validation": options["validation_file"], "test": options["test_file"]}
        if "test" in wanted and files["test"] is None and options["test_split"] is None:
            raise InputError("data.test_file: name a table of pairs, or a share with data.test_split")
        if all(files.get(name) is not None for name in wanted):
            return {name: self._read(files[name]) for name in wanted}
        table = self._training_table()
        parts = {"train": np.arange(table.num_questions)}
        # Questions with a positive are shared out evenly: only these count.
        kinds = np.where(table.has_positive, "with a positive", "without").tolist()
        for name, share in (("test", options["test_split"]), ("validation", options["validation_split"])):
            if share is not None and files[name] is None:
                left = parts["train"]
                rest, chosen = stratified_split([kinds[q] for q in left], share, options["split_seed"])
                parts["train"], parts[name] = left[rest], left[chosen]
        return {
            name: (table if len(parts) == 1 else table.select_questions(parts[name]))
            if name in parts
            else self._read(files[name])
            for name in wanted
        }

    # --- rank 0: everything that takes long ---

    def prepare_data(self) -> None:
        """Read, split and tokenise what the stage needs, unless the cache has it."""
        wanted = self._wanted_splits()
        plan_file = self._plan_file(wanted)
        plan = self._whole_plan(plan_file)
        if plan is None:
            plan = self._make_plan(wanted)
            with lock(plan_file), named_disk_errors(plan_file):
                write_json(plan_file, plan)
        for level, line in plan["said"]:
            log.log(level, "%s", line)

    def _make_plan(self, wanted: Sequence[str]) -> dict[str, Any]:
        options = self.options
        tables = self._tables(wanted)
        plan: dict[str, Any] = {"splits": {}, "said": [], **self._plan_memory(tables.get("train"))}
        for name in wanted:
            if name == "validation":
                _check_validation(tables[name], options)
            parts, split = self._prepare_split(tables[name], name == "train", plan)
            plan["splits"][name] = parts
            plan["said"] += self._describe(split)
            if name == "train":
                self._check_training(split)
                plan["vocabulary"] = prepare_vocabulary(
                    [parts["first_tokens"], parts["second_tokens"]],
                    options,
                    self.tokenizer,
                    self.cache,
                    stores=[split.first_tokens, split.second_tokens],
                    normalize_vectors=options["normalize_vectors"],
                )
        self._texts = None
        # Training needs neither its connections nor the memory that an encoder takes.
        self.retriever.close()
        return plan

    def _plan_memory(self, train: Pairs | None) -> dict[str, Any]:
        """Where the memory is or will be, and the rows that it is made of."""
        options, retriever = self.options, self.retriever
        plan: dict[str, Any] = {"memory": self.memory_location, "memory_rows": self._memory_rows}
        if options["goal"] == "classification" or (train is None and not self._retrieves):
            return plan
        found = given_memory(retriever, options["memory"], options["memory_text_column"], None)
        if isinstance(found, Memory):
            return {"memory": found.location(), "memory_rows": None}
        if found is None and train is not None:
            found = self._collection()[1] if options["layout"] == "trec" else train.second
        if found is not None:
            plan["memory"] = str(memory_folder(found, retriever, self.cache))
            name, fingerprint = prepare_rows(found, self.cache)
            plan["memory_rows"] = str(self.cache / name), fingerprint
        return plan

    def open_memory(self, location: str | None = None, version: int | None = None) -> Memory:
        """The memory that candidates of a question alone come from; it is built when it is first needed.

        Args:
            location: a memory folder to use instead; None = the memory of the training.
            version: of a memory that has grown; None opens the current one.

        Raises:
            InputError: there is no memory, and nothing to build it of.
        """
        if location is not None and location != self.memory_location:
            return open_memory(
                location, self.retriever if is_existing_index(self.retriever) else None, version
            )
        return self._open_or_build(self.memory_location, self._memory_rows, version)

    def _open_or_build(
        self, location: str | None, rows: tuple[str, str] | None, version: int | None = None
    ) -> Memory:
        if location is None:
            raise InputError("there is no memory to find candidates in; name a folder that `zoo index` built")
        if rows is not None and not (Path(location) / POINTER).exists():
            check_folder(Path(rows[0]), rows[1])
            FolderMemory.build(Rows.load(Path(rows[0]) / "rows.arrow"), self.retriever, Path(location))
        return open_memory(location, self.retriever, version)

    def _wanted_splits(self) -> list[str]:
        """The tables that the trainer's stage needs; without a trainer, all that are named."""
        options = self.options
        function = self.trainer.state.fn if self.trainer is not None else None
        if function == TrainerFn.FITTING:
            return ["train", "validation"]
        if function == TrainerFn.VALIDATING:
            # Validation rows may have to be split off the training table.
            return ["validation"] if options["validation_file"] is not None else ["train", "validation"]
        if function == TrainerFn.TESTING:
            return ["test"]
        named = ["train", "validation"] if options["train_file"] else []
        return [*named, "test"] if options["test_file"] or options["test_split"] else named

    def _plan_file(self, splits: Sequence[str]) -> Path:
        """Where rank 0 tells the others what it prepared: named by options, sizes and times of the files."""
        no_effect = ("batch_size", "eval_batch_size", "num_workers", "seed", "bucket_by_length", "cache_dir")
        options = {key: value for key, value in self.options.items() if key not in no_effect}
        files = ("train_file", "validation_file", "test_file", "word_vectors", "documents_file", "memory")
        queries = options["queries_file"] or []
        description = {
            "task": "matching",
            "options": options,
            "files": {name: file_state(options[name]) for name in files},
            "queries": [file_state(name) for name in ([queries] if isinstance(queries, str) else queries)],
            "splits": list(splits),
            "retriever": self.retriever.describe(),
            "ranking": self.retriever.ranking.describe() if self._retrieves else None,
            "memory": None if "train" in splits else self.memory_location,
            "tokenizer": self.tokenizer.describe(),
        }
        return self.cache / f"plan-{fingerprint_of(description)[:16]}.json"

    @property
    def _retrieves(self) -> bool:
        return "retrieved" in (self.options["negatives"], self.options["candidates"])

    def _whole_plan(self, plan_file: Path) -> dict[str, Any] | None:
        """A plan whose folders are all there; a damaged one is named."""
        try:
            plan: dict[str, Any] = json.loads(plan_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        if self._retrieves and is_existing_index(self.retriever):
            return None  # An index that is not ours may have changed: ask it again.
        parts = [split[name] for split in plan["splits"].values() for name in split if name != "source"]
        return plan if are_whole(self.cache, [*parts, plan["memory_rows"], plan.get("vocabulary")]) else None

    def _prepare_split(
        self, pairs: Pairs, training: bool, plan: Mapping[str, Any]
    ) -> tuple[dict[str, Any], MatchingSplit]:
        """Folder names and fingerprints of a split's parts, and the split."""
        options = self.options
        pool, pool_part = None, None
        if options["candidates" if not training else "negatives"] == "retrieved":
            memory = self._open_or_build(plan["memory"], plan["memory_rows"])
            folder, mark = build_neighbors(pairs.first, memory, options["num_candidates"], False, self.cache)
            store = NeighborStore.open(folder, mark)
            pairs, rows_of = pairs.with_second_texts(store.memories.texts[:])
            # A question's first text is that of its first pair.
            rows, offsets = pairs.lists
            hits = np.append(rows_of, -1)[store.rows[pairs.first_row[rows[offsets[:-1]]]]]
            # Evaluation adds what the question lacks; so does a listwise list, which has its own candidates.
            everything = not training or self.batches == "listwise"
            pool = foreign_texts(pairs, hits, np.ones(len(pairs), bool) if everything else pairs.target > 0)
            if training:
                pool_part = self._prepare_pool(pool, pairs, mark)
            else:
                pairs = pairs.with_pairs(np.repeat(np.arange(len(hits)), np.diff(pool[1])), pool[0])
                pool = None
        fingerprint = pairs.fingerprint
        folder = self.cache / f"pairs-{fingerprint[:16]}"
        with lock(folder):
            if not is_whole(folder, fingerprint):
                with new_folder(folder, fingerprint) as partial:
                    pairs.save(partial)
        first_part, first = prepare_tokens(pairs.first, self.tokenizer, self.cache, options["first_length"])
        second_part, second = prepare_tokens(
            pairs.second, self.tokenizer, self.cache, options["second_length"]
        )
        parts = {
            "source": pairs.source,
            "pairs": (folder.name, fingerprint),
            "first_tokens": first_part,
            "second_tokens": second_part,
            "pool": pool_part,
        }
        return parts, MatchingSplit(pairs, first, second, pool)

    def _prepare_pool(
        self, pool: tuple[NDArray[np.int64], NDArray[np.int64]], pairs: Pairs, neighbors: str
    ) -> tuple[str, str]:
        description = {
            "pairs": pairs.fingerprint,
            "neighbors": neighbors,
            "listwise": self.batches == "listwise",
        }
        fingerprint = fingerprint_of(description)
        folder = self.cache / f"pool-{fingerprint[:16]}"
        with lock(folder):
            if not is_whole(folder, fingerprint):
                with new_folder(folder, fingerprint) as partial:
                    np.save(partial / "rows.npy", pool[0])
                    np.save(partial / "offsets.npy", pool[1])
        return folder.name, fingerprint

    def _describe(self, split: MatchingSplit) -> Iterator[tuple[int, str]]:
        """What deserves a word about a table: level and line of the log."""
        pairs, options = split.pairs, self.options
        if options["goal"] == "ranking":
            single = int((np.diff(pairs.lists[1]) == 1).sum())
            without = int((~pairs.has_positive).sum())
            yield (
                logging.INFO,
                f"{pairs.source}: {len(pairs)} pairs of {pairs.num_questions} questions; {without} questions have"
                f" no positive, {single} have one candidate",
            )
            if empty := int(split.empty_questions.sum()):
                rows, offsets = pairs.lists
                row = rows[offsets[int(split.empty_questions.argmax())]]
                question = pairs.first.texts[int(pairs.first_row[row])]
                yield (
                    logging.WARNING,
                    f"{pairs.source}: no candidate of {empty} questions has a word (the first is {question!r});"
                    " training leaves them out, and to rank them is to guess",
                )
        for side, tokens in (("first", split.first_tokens), ("second", split.second_tokens)):
            limit = options[f"{side}_length"]
            special = 0
            if isinstance(self.tokenizer, TransformersTokenizer):
                special = len(self.tokenizer.prefix) + len(self.tokenizer.suffix)
            if cut := int((np.diff(tokens.offsets) > limit - special).sum()):
                yield (
                    logging.INFO,
                    f"{pairs.source}: {cut} of {len(tokens)} distinct {side} texts are cut to"
                    f" data.{side}_length={limit} words",
                )

    def _check_training(self, split: MatchingSplit) -> None:
        if len(self._training_lists(split, seed=0)) == 0:
            pairs = split.pairs
            missing = (
                "no pair has a label above 0; check data.label_column"
                if not (pairs.target > 0).any()
                else "no question has both a positive and a candidate of a lower grade; set data.negatives=random"
            )
            raise InputError(f"{pairs.source}: {missing}")

    # --- every rank: open the maps ---

    def setup(self, stage: str) -> None:
        """Map what `prepare_data` made."""
        plan = self._read_plan(self._plan_file(self._wanted_splits()))
        rows = plan["memory_rows"]
        self.memory_location, self._memory_rows = plan["memory"], rows and (rows[0], rows[1])
        self._splits.update(
            {name: MatchingSplit.open(self.cache, parts) for name, parts in plan["splits"].items()}
        )
        self._vectors.clear()  # of splits that may be gone: another object may get a dead one's identity
        if self._spec is None and "vocabulary" in plan:
            vocabulary, self._vectors_file = open_vocabulary(self.cache, plan["vocabulary"])
            train = self._splits["train"]
            stores = [train.first_tokens, train.second_tokens]
            self._bind(vocabulary, sum(map(len, stores)), document_frequency(stores, vocabulary))

    def _bind(self, vocabulary: Vocabulary, num_texts: int, frequency: NDArray[np.int64]) -> None:
        options = self.options
        self._vocabulary = vocabulary
        self._words = WordTable(vocabulary, options["max_characters"])
        self._frequency = num_texts, frequency
        self._spec = MatchingSpec(
            num_words=len(vocabulary),
            num_chars=len(vocabulary.characters or ()),
            goal=options["goal"],
            first_length=options["first_length"],
            second_length=options["second_length"],
            unknown=vocabulary.unk_id,
            special=(*vocabulary.prefix, *vocabulary.suffix),
        )

    # --- what a model asks, and what it keeps in its checkpoint ---

    @property
    def spec(self) -> MatchingSpec:
        """Sizes and goal; after `setup` or `use_state`."""
        spec: MatchingSpec = self._known_spec()
        return spec

    @property
    def idf(self) -> NDArray[np.float32]:
        """float32 [num_words]: ln((n + 1) / (d + 1)) for a word that d of the n distinct training texts have.

        So a word of every text has 0, and one of none, such as the unknown word, ln(n + 1). Padding and the
        special tokens that a `transformers` tokenizer puts around each text have 0.
        """
        num_texts, frequency = self._frequency
        vocabulary = self.vocabulary
        idf = np.log((num_texts + 1) / (frequency + 1)).astype(np.float32)
        idf[[vocabulary.pad_id, *vocabulary.prefix, *vocabulary.suffix]] = 0
        return idf

    def state(self) -> dict[str, Any]:
        """Plain values that make this data again for new texts; they go into a model's checkpoint."""
        return {
            "class": type(self).__name__,
            "options": self.options,
            "retriever": self.retriever.describe(),
            "memory": self.memory_location,
            "memory_rows": None if self._memory_rows is None else list(self._memory_rows),
            "vocabulary": self.vocabulary.to_dict(),
            "num_texts": self._frequency[0],
            "document_frequency": self._frequency[1].tolist(),
        }

    def use_state(self, state: Mapping[str, Any]) -> None:
        """Take vocabulary and frequencies of a trained model and, unless another is configured, the memory."""
        if self.memory_location is None:
            rows = state["memory_rows"]
            self.memory_location, self._memory_rows = state["memory"], rows and (rows[0], rows[1])
        frequency = np.array(state["document_frequency"], np.int64)
        if self._vocabulary is not None and self._vocabulary.to_dict() == state["vocabulary"]:
            # Of other training texts, although the words are the same: those of a transformer always are.
            self._frequency = state["num_texts"], frequency
            return
        self._bind(Vocabulary.from_dict(state["vocabulary"]), state["num_texts"], frequency)

    # --- batches ---

    def split_of(self, pairs: Pairs) -> MatchingSplit:
        """A split in memory, for pairs that come now (prediction)."""
        first, second = (
            TokenStore.from_texts(
                rows.texts, self.tokenizer, max_tokens=kept_tokens(self.options[f"{side}_length"])
            )
            for side, rows in (("first", pairs.first), ("second", pairs.second))
        )
        return MatchingSplit(pairs, first, second)

    def dataset(self, split: MatchingSplit, lists: Lists | None = None) -> MatchingDataset:
        """Lists of a split under the vocabulary in use; None = the lists that a model is evaluated on."""
        assert self.spec is not None
        assert self._words is not None
        if lists is None:
            lists = self._evaluation_lists(split)
        return MatchingDataset(split, self._words, self.idf, self.spec, lists, self._vectors.get(id(split)))

    def cache_encodings(self, encode: Callable[[MatchingBatch], Tensor], fingerprint: str) -> None:
        """Encode every text of the open splits once, for a model whose encoder of tokens is frozen.

        Batches made afterwards carry `first_vector` and `second_vector` besides everything else. The vectors
        are kept in the cache folder, for this and every later run of the same encoder: 2 l bytes a token.

        Args:
            encode: token vectors [n, T, l] of the n texts of `first_text` [n, T] of a batch, which has no
                second texts. It is called with texts of like length, cut to `first_length` or
                `second_length`, special tokens included; vectors where `first_text` is 0 are not read.
            fingerprint: of the encoder: another encoder, another fingerprint.
        """
        assert self._words is not None
        for split in self._splits.values():
            if id(split) in self._vectors:
                continue
            sides = (
                ("first_tokens", split.first_tokens, self.spec.first_length),
                ("second_tokens", split.second_tokens, self.spec.second_length),
            )
            assert split.origin is not None
            first, second = (
                self._encode_all(tokens, split.origin[1][name][1], length, encode, fingerprint)
                for name, tokens, length in sides
            )
            self._vectors[id(split)] = first, second

    def _encode_all(
        self,
        tokens: TokenStore,
        tokens_fingerprint: str,
        length: int,
        encode: Callable[[MatchingBatch], Tensor],
        fingerprint: str,
    ) -> TokenVectors:
        assert self._words is not None
        vocabulary = self.vocabulary
        table = self._words.add(tokens)
        special = len(vocabulary.prefix) + len(vocabulary.suffix)
        size = np.minimum(np.diff(tokens.offsets) + special, length)

        def encode_rows(rows: NDArray[np.int64]) -> Tensor:
            return encode(self._batch_of_texts(TextGroup(table, rows, length)))

        description = {
            "encoder": fingerprint,
            "tokens": tokens_fingerprint,
            "vocabulary": vocabulary.fingerprint,
            "length": length,
        }
        mark = fingerprint_of(description)
        return TokenVectors.build(size, encode_rows, self.cache / f"encodings-{mark[:16]}", mark)

    def _batch_of_texts(self, texts: TextGroup) -> MatchingBatch:
        """A batch of first texts alone."""
        gathered = gather([texts])
        nothing, numbers = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
        return MatchingBatch(
            word=torch.from_numpy(gathered.word),
            char=torch.from_numpy(gathered.char),
            idf=torch.from_numpy(self.idf[gathered.word]),
            first_text=torch.from_numpy(gathered.texts[0]),
            second_text=torch.zeros(0, 1, dtype=torch.int64),
            first=nothing,
            second=nothing,
            list=nothing,
            place=nothing,
            target=numbers,
            weight=numbers,
            index=nothing,
        )

    def _evaluation_lists(self, split: MatchingSplit) -> Lists:
        """All candidates of a question together; a pair to classify alone."""
        if self.options["goal"] == "classification":
            return Lists.single(np.arange(len(split.pairs)))
        return Lists.of_questions(split.pairs)

    def _training_lists(self, split: MatchingSplit, seed: int) -> Lists:
        """The lists that something can be learned from."""
        pairs, options = split.pairs, self.options
        if self.batches == "pointwise":
            return Lists.single(np.arange(len(pairs)))
        usable = ~split.empty_questions
        draws = options["negatives"] != "own"
        if self.batches == "listwise":
            highest, lowest = np.zeros(pairs.num_questions), np.full(pairs.num_questions, np.inf)
            np.maximum.at(highest, pairs.question, pairs.target)
            np.minimum.at(lowest, pairs.question, pairs.target)
            # Candidates of one grade alone say nothing about an order.
            questions = np.flatnonzero(usable & (highest > 0) & ((lowest < highest) | draws))
            drawn = self._foreign_negatives(split, questions, seed) if draws else None
            return Lists.of_questions(pairs, questions, drawn)
        positives = np.flatnonzero((pairs.target > 0) & usable[pairs.question])
        if not draws:
            positives, own = own_negatives(pairs, positives, options["num_negatives"], seed)
            return Lists.single(positives, own)
        if split.pool is not None:
            positives = positives[np.diff(split.pool[1])[pairs.question[positives]] > 0]
        return Lists.single(positives, self._foreign_negatives(split, pairs.question[positives], seed))

    def _foreign_negatives(self, split: MatchingSplit, question: NDArray[Any], seed: int) -> Negatives:
        """Texts that are not the question's, for a list of each of these questions."""
        pairs, count = split.pairs, self.options["num_negatives"]
        if split.pool is None:
            codes = text_codes(pairs)
            order = np.lexsort((codes[pairs.second_row], pairs.question))
            own = codes[pairs.second_row][order]
            return RandomNegatives(codes, own, pairs.lists[1], question.astype(np.int64), count, seed)
        rows, offsets = split.pool
        return PoolNegatives(
            rows,
            np.zeros(len(rows), np.float32),
            np.full(len(rows), -1),
            offsets[question],
            np.diff(offsets)[question],
            count,
            seed,
        )

    def _loader(self, name: str, training: bool) -> DataLoader[MatchingBatch]:
        options, split = self.options, self._splits[name]
        seed = self._seed()
        dataset = self.dataset(split, self._training_lists(split, seed) if training else None)
        sampler = ListSampler(
            dataset.lengths,
            options["batch_size"] if training else options["eval_batch_size"] or options["batch_size"],
            training=training,
            bucket=options["bucket_by_length"],
            seed=seed,
            **self._place(),
        )
        return self._load(dataset, sampler)


def document_frequency(stores: Sequence[TokenStore], vocabulary: Vocabulary) -> NDArray[np.int64]:
    """int64 [num_words]: how many texts of the stores have a word; 0 for the unknown word."""
    frequency = np.zeros(len(vocabulary), np.int64)
    for store in stores:
        counts = _texts_with_token(store.tokens, store.offsets, len(store.lexicon))
        np.add.at(frequency, vocabulary.lookup(store.lexicon), counts)
    frequency[vocabulary.unk_id] = 0
    return frequency


@njit(cache=True, nogil=True)
def _texts_with_token(tokens, offsets, num_tokens):  # type: ignore[no-untyped-def]
    counts = np.zeros(num_tokens, np.int64)
    last = np.full(num_tokens, -1, np.int64)
    for text in range(len(offsets) - 1):
        for position in range(offsets[text], offsets[text + 1]):
            token = tokens[position]
            if last[token] != text:
                last[token] = text
                counts[token] += 1
    return counts


def _check_validation(pairs: Pairs, options: Mapping[str, Any]) -> None:
    """Refuse a validation table that could not choose an epoch."""
    if len(pairs) == 0:
        raise InputError(
            f"{pairs.source}: no question is left for validation; give more questions, a larger"
            " data.validation_split, or a data.validation_file"
        )
    if options["goal"] == "ranking" and not pairs.has_positive.any():
        raise InputError(
            f"{pairs.source}: no question of the validation pairs has a positive, so no epoch would be better than"
            " another; give a data.validation_file whose questions have one, or a larger data.validation_split"
        )
