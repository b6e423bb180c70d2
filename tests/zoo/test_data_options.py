"""Every option of every data module and retriever changes batches or hits, is refused, or is logged as without effect.

The other value of an option is one of its type. `CASES` has another one where the type names none or other options are
needed, or the reason why no value changes a result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import datamodules
from datamodules.base import DataModule
from datamodules.batch import BatchContents
from datamodules.core.errors import InputError
from datamodules.retrieval import EmbeddedRetriever
from datamodules.retrieval.base import Collection
from datamodules.retrieval.registry import RETRIEVERS, retriever_class
from tests.clicks import write_collection
from tests.datamodules.corpus import labelled_texts
from tests.dialogues import MadeUp, made_up, write_jsonl, write_published
from tests.zoo import option_cases as cases
from tests.zoo.conftest import read_jsonl

#: No table of its own: rows are split off the training table.
SPLIT: dict[str, Any] = {"validation_file": None, "validation_split": 0.2}
VECTORS = {"word_vectors": "vectors.txt"}
OTHER = "other.csv"
NUMBERED = {"text_column": 0, "label_column": 1}
RETRIEVED = {"negatives": "retrieved"}
SEVERAL = {
    "layout": "table",
    "train_file": "turns.jsonl",
    "validation_file": "turns.jsonl",
    "turns_kept": "retrieved",
    "max_turns": 1,
}
TREC = {
    "layout": "trec",
    "train_file": "clicks/qrels.tsv",
    "validation_file": None,
    "test_file": None,
    "queries_file": "clicks/queries.jsonl",
    "documents_file": "clicks/corpus.jsonl",
}
HITS = {"num_hits": 5}
HIT_NEGATIVES = {**HITS, **RETRIEVED}
LIKELIHOOD = EmbeddedRetriever(similarity="LMDirichlet", mu=1.0)
PLAIN = {
    "train_file": "plain_pairs.tsv",
    "validation_file": None,
    "test_file": None,
    "first_column": 1,
    "second_column": 2,
    "label_column": 0,
}
DIALOGUES = {"layout": "table", "train_file": "table.jsonl", "validation_file": "table.jsonl"}

#: Class -> option -> case; of the classes that a class inherits from, the first with the option counts.
CASES: cases.Cases = {
    "DataOptions": {
        "lowercase": cases.Case(False),
        "min_count": cases.Case(25),
        "eval_batch_size": cases.Case(3),
        "validation_split": cases.Case(0.4, SPLIT),
        "split_seed": cases.Case(3, SPLIT),
        "tokenizer": cases.Case("whitespace"),
        "num_workers": cases.NoEffect("processes that build the same batches"),
        "cache_dir": cases.NoEffect("the place of the cache"),
    },
    "VectorOptions": {
        "word_vectors": cases.Case("vectors.txt"),
        "normalize_vectors": cases.Case(True, {**VECTORS, "normalize_vectors": False}),
        "characters": cases.Case(True, {"characters": False}),
    },
    "MemoryOptions": {
        "memory": cases.Case(OTHER),
        "memory_text_column": cases.Case("other_text", {"memory": OTHER}),
    },
    "TableOptions": {
        "train_file": cases.Case(OTHER),
        "validation_file": cases.Case(OTHER),
        "test_file": cases.Case(OTHER),
        "test_split": cases.Case(0.2, {"test_file": None}),
        "label_column": cases.Case("other_label"),
        "id_column": cases.Case("id"),
        "header": cases.Case(False, {**NUMBERED, "header": True}),
        "quotes": cases.Case(False, {**NUMBERED, "train_file": "quoted.csv"}),
    },
    "TextOptions": {
        "max_length": cases.Case(3),
        "memory_max_length": cases.Case(3),
        "text_column": cases.Case("other_text"),
    },
    "ClassificationOptions": {
        "rows_per_class": cases.Case(5),
        "class_names": cases.Case("names.txt", {"label_column": "number"}),
        "classes": cases.Case(["boats", "bread"]),
        "memory_label_column": cases.Case("label", {"memory": OTHER}),
        **dict.fromkeys(
            ("label_texts", "unlabelled_file"),
            cases.NoEffect("members read them, see tests/zoo/ensemble/test_guides.py"),
        ),
    },
    "MatchingOptions": {
        "goal": cases.Case("classification"),
        "layout": cases.Case("quora", {**PLAIN, "header": False}),
        "header": cases.Case(True, {**PLAIN, "header": False}),
        "quotes": cases.Case(
            False, {"train_file": "quoted_pairs.csv", "first_column": 0, "second_column": 1}
        ),
        "first_column": cases.Case("other_first"),
        "second_column": cases.Case("other_second"),
        "question_column": cases.Case("topic"),
        "queries_file": cases.Case("others/queries.jsonl", TREC),
        "documents_file": cases.Case("others/corpus.jsonl", {**TREC, "document_column": "title"}),
        "document_column": cases.Case("title", TREC),
        "batches": cases.Case("listwise", {"num_negatives": 1}),
        "negatives": cases.Case("random"),
        "num_negatives": cases.Case(1, {"negatives": "random"}),
        "candidates": cases.Case("retrieved"),
        "num_candidates": cases.Case(2, {"candidates": "retrieved"}),
        "train_file": cases.Case("pairs_other.csv"),
        "validation_file": cases.Case("pairs_other.csv"),
        "test_file": cases.Case("pairs_other.csv"),
        "memory": cases.Case(OTHER, RETRIEVED),
        "memory_text_column": cases.Case("other_text", {**RETRIEVED, "memory": OTHER}),
    },
    "MatchingDataModule": {"retriever": cases.Case(LIKELIHOOD, RETRIEVED)},
    "ClickthroughOptions": {
        "query_length": cases.Case(1),
        "document_length": cases.Case(2),
        "validation_split": cases.Case(0.4),
        "split_seed": cases.Case(3),
        "corpus_file": cases.Case("others/corpus.jsonl"),
        "train_queries": cases.Case("others/queries.jsonl"),
        "train_judgements": cases.Case("others/qrels.tsv"),
        "validation_queries": cases.Case(
            "others/queries.jsonl", {"validation_judgements": "clicks/qrels.tsv"}
        ),
        "validation_judgements": cases.Case("others/qrels.tsv"),
        "test_queries": cases.Case("others/queries.jsonl"),
        "test_judgements": cases.Case("others/qrels.tsv"),
        "query_column": cases.Case("other_text"),
        "document_column": cases.Case("text"),
        "tokenizer": cases.Case("words"),
        "negatives": cases.Case("random"),
        "num_negatives": cases.Case(1, {"negatives": "random"}),
        "num_hits": cases.Case(3, HIT_NEGATIVES),
        "skip_hits": cases.Case(2, HIT_NEGATIVES),
        "highest_hit_score": cases.Case(0.5, HIT_NEGATIVES),
        "evaluate": cases.Case("judged"),
        "memory": cases.Case("others/corpus.jsonl", HIT_NEGATIVES),
        "memory_text_column": cases.Case("about", {**HIT_NEGATIVES, "memory": "clicks/corpus.jsonl"}),
    },
    "ClickthroughDataModule": {"retriever": cases.Case(LIKELIHOOD, HIT_NEGATIVES)},
    "DialogueOptions": {
        "max_length": cases.Case(2),
        "lowercase": cases.Case(True),
        "min_count": cases.Case(1),
        "max_turns": cases.Case(2),
        "layout": cases.Case("table", {**DIALOGUES, "layout": "hmn4qa"}),
        "train_file": cases.Case("other.txt"),
        "validation_file": cases.Case("other.txt"),
        "test_file": cases.Case("other.txt"),
        "turns_column": cases.Case("other_turns", DIALOGUES),
        "question_column": cases.Case("other_question", DIALOGUES),
        "answer_column": cases.Case("other_answer", DIALOGUES),
        "id_column": cases.Case("id", DIALOGUES),
        "vocabulary_files": cases.Case("other.txt"),
        "turns_kept": cases.Case("retrieved", {"max_turns": 2}),
        "tokenizer": cases.Case("words"),
    },
    "DialogueDataModule": {"retriever": cases.Case(EmbeddedRetriever(b=0.0), SEVERAL)},
    "DataModule": {"retriever": cases.Case(LIKELIHOOD)},
}

LM = {"similarity": "LMDirichlet"}
OF_A_SERVER = cases.NoEffect("tested with a server, see tests/datamodules/retrieval/elasticsearch")
SPEED = cases.NoEffect("the same hits, in another time")
RETRIEVER_CASES: cases.Cases = {
    "EmbeddedRetriever": {
        "similarity": cases.Case("LMDirichlet"),
        "analyzer": cases.Case("english"),
        "k1": cases.Case(0.3),
        "b": cases.Case(0.1),
        "mu": cases.Case(5.0, LM),
        "threads": SPEED,
    },
    "EncodingRetriever": {
        "encoder": cases.Case("other-bert"),
        "pooling": cases.Case("max"),
        "max_length": cases.Case(3),
        "query_prompt": cases.Case("old "),
        "document_prompt": cases.Case("old "),
        "batch_size": SPEED,
        "device": SPEED,
    },
    "FusedRetriever": {
        "retrievers": cases.Case([EmbeddedRetriever(), EmbeddedRetriever(k1=0.1, b=0.0)]),
        "method": cases.Case("score"),
        "weights": cases.Case([0.2, 0.8]),
        "depth": cases.Case(5),
        "encoder": cases.Case("other-bert"),
    },
    "ServerRetriever": dict.fromkeys(("url", "index_prefix", "shards", "timeout", "threads"), OF_A_SERVER),
    "ElasticsearchRetriever": dict.fromkeys(
        (
            *("similarity", "analyzer", "k1", "b", "mu"),
            *("index", "text_field", "label_field", "id_field", "query"),
        ),
        OF_A_SERVER,
    ),
    "ElasticsearchDenseRetriever": dict.fromkeys(
        (
            *("encoder", "pooling", "max_length", "device", "query_prompt", "document_prompt"),
            *("num_candidates", "quantization"),
        ),
        OF_A_SERVER,
    ),
}
#: Retriever -> options with which most others have an effect.
RETRIEVER_BASES: dict[str, dict[str, Any]] = {
    "DenseRetriever": {"encoder": "tiny-bert"},
    "FusedRetriever": {"retrievers": [EmbeddedRetriever(), LIKELIHOOD]},
}


def write_texts_and_pairs() -> None:
    """Tables of texts and of pairs, names and word vectors."""
    for name, seed in (("train.csv", 0), ("validation.csv", 1), ("test.csv", 2), (OTHER, 3)):
        write_texts(Path(name), seed)
        write_pairs(Path(f"pairs_{name}"), seed)
    rows = [f'"{text}",{label}' for text, label in zip(*labelled_texts(20), strict=True)]
    Path("quoted.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    texts, _ = labelled_texts(40)
    pairs = [f'"{texts[i // 2]}",{texts[i]},{i % 2}' for i in range(40)]
    Path("quoted_pairs.csv").write_text("\n".join(["first,second,label", *pairs]) + "\n")
    plain = [f"{i % 2}\t{texts[i // 2]}\t{texts[i]}\t{i}" for i in range(40)]
    Path("plain_pairs.tsv").write_text("\n".join(plain) + "\n")
    Path("names.txt").write_text("one\ntwo\nthree\n")
    words = ("the", "of", "old", "lion", "mast", "rye", "good", "day", "apple", "iron", "never")
    Path("vectors.txt").write_text("".join(f"{word} {i + 1} {i % 3} 2\n" for i, word in enumerate(words)))


def write_texts(path: Path, seed: int) -> None:
    """Texts with capitals and punctuation, some of them twice."""
    texts, labels = labelled_texts(30, seed)
    texts, labels = [*texts, *texts[:6]], [*labels, *labels[:6]]
    others = labelled_texts(36, seed + 9)[0]
    rows = [
        f"{text.capitalize()}!,{label},{other},{'xyz'[i % 3]},{i % 3 + 1},id{seed}-{i}"
        for i, (text, label, other) in enumerate(zip(texts, labels, others, strict=True))
    ]
    path.write_text("\n".join(["text,label,other_text,other_label,number,id", *rows]) + "\n")


def write_pairs(path: Path, seed: int) -> None:
    """Questions with 4 candidates of grades 0 and 1; some are duplicates of others."""
    texts, _ = labelled_texts(96, seed)
    others, _ = labelled_texts(96, seed + 9)
    rows = [
        f"{'Which' if i < 64 else 'WHICH'} {texts[i // 4 % 16]}?,{others[i]},{int(i % 4 == 0)},{others[i // 4]},"
        f"{texts[i]},{i // 8},{i % 2},id{i}"
        for i in range(96)
    ]
    header = "first,second,label,other_first,other_second,topic,other_label,id"
    path.write_text("\n".join([header, *rows]) + "\n")


def write_clicks() -> None:
    """A collection, and other files with the same ids."""
    write_collection(Path("clicks"), documents=30, queries=16, seed=2)
    write_collection(Path("others"), documents=30, queries=16, seed=3)
    for name in ("corpus", "queries"):
        lines = read_jsonl(f"clicks/{name}.jsonl")
        for line in lines:
            line["other_text"] = f"{line['text']} again"
            line["about"] = line["text"] if "title" not in line else " ".join(line["title"].split()[:2])
        Path(f"clicks/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_dialogues() -> None:
    """Published files, and a table with two columns of each kind."""
    for name, seed in (("train", 3), ("validation", 4), ("other", 5)):
        write_published(Path(f"{name}.txt"), made_up(8, seed))
    turns = ["the name of the plant is the name of the day", "a name", "good day", "thank you"]
    write_jsonl(Path("turns.jsonl"), [MadeUp(turns, ["name"], ["day"])])
    write_jsonl(Path("table.jsonl"), made_up(8, seed=6))
    lines = read_jsonl("table.jsonl")
    for number, line in enumerate(lines):
        line |= {"other_turns": line["turns"][1:], "other_question": "which one ?", "other_answer": "day"}
        line["id"] = number
    Path("table.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


#: Data module -> options with which most others have an effect.
BASES: dict[str, dict[str, Any]] = {
    "ClassificationDataModule": {
        "train_file": "train.csv",
        "validation_file": "validation.csv",
        "test_file": "test.csv",
        "num_memories": 3,
        "batch_size": 8,
    },
    "MatchingDataModule": {
        "train_file": "pairs_train.csv",
        "validation_file": "pairs_validation.csv",
        "test_file": "pairs_test.csv",
        "batch_size": 4,
    },
    "ClickthroughDataModule": {
        "corpus_file": "clicks/corpus.jsonl",
        "train_queries": "clicks/queries.jsonl",
        "train_judgements": "clicks/qrels.tsv",
        "test_queries": "clicks/queries.jsonl",
        "test_judgements": "clicks/qrels.tsv",
        "document_column": "title",
        "validation_split": 0.2,
        "batch_size": 8,
    },
    "DialogueDataModule": {
        "layout": "hmn4qa",
        "train_file": "train.txt",
        "validation_file": "validation.txt",
        "batch_size": 4,
    },
}


def contents_of(data: DataModule) -> list[Any]:
    """All that a model may read: sizes, vocabulary, vectors, ids, and the batches of all splits."""
    data.prepare_data()
    data.setup("fit")
    contents: list[Any] = [data.spec, data.state().vocabulary, data.words.vectors()]
    loaders = {"train": data.train_dataloader, "validation": data.val_dataloader}
    if data.options.tables["test"] is not None or "test" in data.options.split_shares:
        loaders["test"] = data.test_dataloader
    for name, loader in loaders.items():
        split = data.split(name)
        contents += [list(part.ids) for part in vars(split).values() if hasattr(part, "ids")]
        contents += list(loader())
        dataset = data.dataset(split, BatchContents(strings=True))
        contents += dataset.__getitems__(range(min(3, len(dataset))))
    return list(cases.plain_values(contents))


@pytest.mark.slow
@pytest.mark.parametrize("name", datamodules.MODULES)
def test_every_option_of_the_data_has_an_effect(name: str) -> None:
    write_texts_and_pairs()
    write_clicks()
    write_dialogues()
    kind = datamodules.find(name)
    base = {**BASES[name], "cache_dir": "cache"}

    known: dict[str, tuple[Any, set[str]]] = {}

    def contents(options: Mapping[str, Any]) -> tuple[Any, set[str]]:
        """Contents of the data, or the refusal; options that are logged."""
        key = repr(sorted(options.items()))
        if key not in known:
            try:
                data = kind(**{**base, **options})
                known[key] = contents_of(data), {option for option, _ in data.idle_options()}
            except InputError as error:
                known[key] = error, set()
        return known[key]

    def effect(option: str, case: cases.Case) -> str:
        changed, logged = contents({**case.options, option: case.value})
        if isinstance(changed, InputError):
            return cases.REFUSED if case.effect == cases.REFUSED else f"{cases.REFUSED}: {changed}"
        if option in logged:
            return cases.LOGGED
        return "changes nothing" if changed == contents(case.options)[0] else cases.CHANGES

    types = get_type_hints(kind.options_type)
    options = {
        field.name: cases.Option(types[field.name], base.get(field.name, field.default))
        for field in fields(kind.options_type)
    }
    options["retriever"] = cases.Option(None, None)
    wrong = cases.wrong_options([kind, kind.options_type], options, CASES, effect)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", RETRIEVERS)
def test_every_option_of_a_retriever_has_an_effect(name: str, tiny_bert: Path) -> None:
    kind = retriever_class(name)
    cases.write_other_bert(tiny_bert)
    texts, _ = labelled_texts(30)

    def search(options: dict[str, Any]) -> tuple[Any, set[str]]:
        retriever = kind(**{**RETRIEVER_BASES.get(name, {}), **options})
        logged = {option for option, _ in retriever.idle_options()}
        retriever.index(Collection(texts, "f" * 64), Path(f"index-{len(list(Path().iterdir()))}"))
        hits = retriever.search(["old lion and the mast", "the rye crust", "near the far otters"], 5)
        retriever.close()
        return list(cases.plain_values(list(hits))), logged

    def effect(option: str, case: cases.Case) -> str:
        try:
            changed, logged = search({**case.options, option: case.value})
        except InputError as error:
            return cases.REFUSED if case.effect == cases.REFUSED else f"{cases.REFUSED}: {error}"
        if option in logged:
            return cases.LOGGED
        return "changes nothing" if changed == search(case.options)[0] else cases.CHANGES

    options = cases.constructor_options(kind, RETRIEVER_BASES.get(name, {}))
    wrong = cases.wrong_options([kind], options, RETRIEVER_CASES, effect)
    assert not wrong, "\n".join(wrong)
