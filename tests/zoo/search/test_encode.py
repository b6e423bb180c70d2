"""`zoo encode` writes a table's embeddings, and `zoo index --embeddings` searches them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import zoo
from datamodules.core.errors import InputError
from datamodules.retrieval import DenseRetriever, ElasticsearchDenseRetriever, Retriever, open_memory
from datamodules.retrieval.base import Collection
from datamodules.retrieval.dense.embeddings import Embeddings
from tests.zoo.conftest import Result, sentences, write_table
from tests.zoo.retrieval_runs import titles, trained
from zoo.run_folder import read_run
from zoo.search import encode as vectors
from zoo.tasks.predictor import Predictor
from zoo.tasks.retrieval.predictor import RetrievalPredictor

Command = Callable[..., Result]

CORPUS = Path("clicks")
TABLE = ["--input=clicks/corpus.jsonl", "--text_column=title", "--id_column=_id"]


def encode(zoo_command: Command, checkpoint: str, output: str, *options: object) -> Path:
    result = zoo_command("encode", "--ckpt_path", checkpoint, "--output", output, *TABLE, *options)
    assert result.code == 0, result.err
    assert result.out.startswith(f"{output}: 40 vectors of ")
    return Path(output)


def refused(zoo_command: Command, *arguments: object) -> str:
    result = zoo_command(*arguments)
    assert result.code == 2, (result.out, result.err)
    lines = [line for line in result.err.splitlines() if line.startswith("zoo: error: ")]
    assert len(lines) == 1, result.err
    return lines[0].removeprefix("zoo: error: ")


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_mtime_ns, path.stat().st_ino) for path in folder.iterdir()}


@pytest.mark.parametrize("model", ["LSTMRNN", "RetrievalDSSM", "RetrievalCLSM"])
def test_the_vectors_are_the_models(zoo_command: Command, model: str) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run", "--model.tied=false", model=model)
    assert read_run(Path(checkpoint)).settings
    documents, queries = (
        encode(zoo_command, checkpoint, side, "--side", side, "--batch_size=7")
        for side in ("document", "query")
    )
    texts = titles(CORPUS)
    predictor = zoo.load(checkpoint)
    for folder, expected in (
        (documents, predictor.encode([*texts.values()])),
        (queries, predictor.encode_queries([*texts.values()])),
    ):
        # Programs without this project read the files.
        vectors = np.load(folder / "vectors.npy")
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        rows = pa.ipc.open_file(folder / "rows.arrow").read_all()
        assert dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True)) == texts
    assert np.abs(np.load(documents / "vectors.npy") - np.load(queries / "vectors.npy")).max() > 0.01


def test_a_text_alone_has_the_vector_that_it_has_among_others(
    zoo_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run", "--model.bidirectional=true")
    texts = ["rain", "", "apple " * 50, "old iron near the fog", "rain"]
    lines = [json.dumps({"text": text}) for text in texts]
    Path("texts.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(vectors, "BLOCK", 2)  # several blocks, none sorted with another
    result = zoo_command("encode", "--ckpt_path", checkpoint, "--input=texts.jsonl", "--output=out")
    assert result.code == 0, result.err
    made = Embeddings.open(Path("out"))
    assert made.rows.ids == ["0", "1", "2", "3", "4"]
    predictor = zoo.load(checkpoint)
    for row, text in enumerate(texts):
        np.testing.assert_allclose(made.vectors[row], predictor.encode([text])[0], atol=1e-6)
    assert not made.vectors[1].any()


def test_it_is_whole_or_absent(zoo_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run")
    monkeypatch.setattr(vectors, "BLOCK", 16)
    encode_block, blocks = RetrievalPredictor.encode, []

    def stopped(self: Predictor, texts: list[str], *rest: Any) -> Any:
        blocks.append(texts)
        if len(blocks) == 2:
            raise KeyboardInterrupt
        return encode_block(self, texts, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(RetrievalPredictor, "encode", stopped)
        result = zoo_command("encode", "--ckpt_path", checkpoint, "--output=out", *TABLE)
    assert result.code == 130, result.err
    assert len(blocks) == 2
    assert not Path("out").exists()
    encode(zoo_command, checkpoint, "out")
    before = files_of(Path("out"))
    encode(zoo_command, checkpoint, "out")  # done already
    assert files_of(Path("out")) == before
    encode(zoo_command, checkpoint, "out", "--side=query")  # other vectors take their place
    assert Embeddings.open(Path("out")).made_by.side == "query"
    contents = bytearray((Path("out") / "vectors.npy").read_bytes())
    contents[200] ^= 1
    (Path("out") / "vectors.npy").write_bytes(contents)
    line = refused(zoo_command, "index", "--embeddings=out", "--memory=memory")
    assert line == "out/vectors.npy: damaged (its checksum has changed); run `zoo encode` again"
    encode(zoo_command, checkpoint, "out", "--side=query")
    Embeddings.open(Path("out"))


def same_ranking(checkpoint: str, retriever: Retriever, queries: list[str]) -> None:
    """The retriever ranks by the cosine of the query's own vector and the documents'."""
    predictor = zoo.load(checkpoint)
    cosine = predictor.encode_queries(queries) @ predictor.encode([*titles(CORPUS).values()]).T
    hits = retriever.search(queries, 40)
    for row, of_query in enumerate(cosine):
        expected = np.maximum((1 + of_query[hits.rows[row]]) / 2, 1e-6)
        np.testing.assert_allclose(hits.scores[row], expected, atol=2e-6)
        assert sorted(hits.rows[row].tolist()) == list(range(40))
        assert (np.diff(hits.scores[row]) <= 0).all()


@pytest.mark.parametrize("tied", ["true", "false"])
def test_an_index_takes_them_and_encodes_queries_alone(
    zoo_command: Command, tied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run", f"--model.tied={tied}", "--data.query_length=3")
    encode(zoo_command, checkpoint, "out")
    encoded: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(RetrievalPredictor, "encode", lambda self, texts, *rest: encoded.extend(texts))
        result = zoo_command("index", "--embeddings=out", "--memory=memory")
    assert result.code == 0, result.err
    assert encoded == []
    assert result.out == "memory: 40 memories, no labels\n"
    memory = open_memory("memory")
    assert isinstance(memory.retriever, DenseRetriever)  # type: ignore[attr-defined]
    # A document's own words, too, are read as a query: with that side's weights, and no more than its words.
    queries = ["where is rain", "apple", [*titles(CORPUS).values()][3]]
    same_ranking(checkpoint, memory.retriever, queries)  # type: ignore[attr-defined]
    result = zoo_command("search", "where is rain", "--memory=memory", "--k=2")
    assert result.code == 0, result.err
    neighbors = memory.search(["where is rain"], 2)
    shown = [line.split(maxsplit=2)[2] for line in result.out.splitlines()]
    assert shown == [neighbors.memories.texts[row] for row in neighbors.rows[0].tolist()]
    # The index is the one that encoding makes.
    retriever = DenseRetriever(str(Path(checkpoint).absolute()), device="cpu")
    retriever.index(Collection([*titles(CORPUS).values()], "f"), Path("again"))
    np.testing.assert_allclose(np.load("again/vectors.npy"), np.load("out/vectors.npy"), atol=1e-6)


def test_a_classifiers_memory_with_labels(zoo_command: Command, fit: Callable[..., Path]) -> None:
    checkpoint = fit("m1", "--model.features=M1", "--data.num_memories=0")
    write_table(Path("rows.csv"), sentences(30, seed=7))
    options = ["--input=rows.csv", "--label_column=label", "--output=out"]
    assert zoo_command("encode", "--ckpt_path", checkpoint, *options).code == 0
    line = refused(
        zoo_command, "encode", "--ckpt_path", checkpoint, *options[:2], "--side=query", "--output=queries"
    )
    assert "encodes queries as it does all texts" in line
    assert not Path("queries").exists()
    result = zoo_command("index", "--embeddings=out", "--memory=memory")
    assert result.out == "memory: 30 memories, 3 labels\n", result.err
    texts = [text for text, _ in sentences(30, seed=7)]
    np.testing.assert_allclose(np.load("out/vectors.npy"), zoo.load(checkpoint).encode(texts), atol=1e-6)
    # An exported folder has the same encoder.
    assert zoo_command("export", checkpoint, "shared").code == 0
    result = zoo_command("encode", "--ckpt_path=shared", *options[:2], "--output=again")
    assert result.code == 0, result.err
    np.testing.assert_array_equal(np.load("again/vectors.npy"), np.load("out/vectors.npy"))


def test_mistakes_are_named(zoo_command: Command, tmp_path: Path) -> None:
    small, large = (
        trained(zoo_command, CORPUS, f"run{size}", "--data.num_hits=4", hidden_size=size) for size in (6, 8)
    )
    encode(zoo_command, small, "out")
    index = ["index", "--embeddings=out", "--memory=memory"]
    dense = "--retriever=DenseRetriever"
    line = refused(zoo_command, *index, dense, f"--retriever.encoder={large}")
    assert line.startswith(f"out: has vectors of 6 numbers, but the encoder {large} makes 8; ")
    other = trained(zoo_command, CORPUS, "other", "--seed_everything=2")
    line = refused(zoo_command, *index, dense, f"--retriever.encoder={other}")
    assert line.startswith(f"out: was not made by the encoder {other} with these options; ")
    assert "ranks by words" in refused(zoo_command, *index, "--retriever.similarity=LMDirichlet")
    assert "name a table with --file" in refused(zoo_command, "index", "--memory=memory")
    assert not Path("memory").exists()
    encode(zoo_command, small, "queries", "--side=query")
    line = refused(zoo_command, "index", "--embeddings=queries", "--memory=memory")
    assert line == "queries: embeddings of queries; encode with --side document"
    line = refused(zoo_command, "index", "--embeddings=clicks", "--memory=memory")
    assert line.startswith("clicks: is unfinished")
    again = ["encode", "--ckpt_path", small, *TABLE]
    for place in ("clicks", "clicks/corpus.jsonl", str(tmp_path)):
        assert "contains no embeddings" in refused(zoo_command, *again, f"--output={place}")
    assert (CORPUS / "corpus.jsonl").exists()
    assert "no such run folder" in refused(
        zoo_command, "encode", "--ckpt_path=gone.ckpt", "--output=new", *TABLE
    )
    lexical = trained(zoo_command, CORPUS, "bm25", "--data.num_hits=4", model="RetrievalBM25")
    line = refused(zoo_command, "encode", "--ckpt_path", lexical, "--output=new", *TABLE)
    assert "makes no vectors of texts" in line or "no text encoder" in line
    # An index of other vectors than the model's.
    retriever = DenseRetriever(small, device="cpu")
    retriever.index(Collection(["rain", "snow"], "f"), tmp_path / "index")
    wrong = DenseRetriever(large, device="cpu")
    wrong.open(tmp_path / "index", "f")
    with pytest.raises(
        InputError, match=r"the index has vectors of 6 numbers, but .* makes 8; build"
    ) as caught:
        wrong.search(["rain"], 1)
    assert "\n" not in str(caught.value)


@pytest.mark.server
def test_on_a_server(
    zoo_command: Command, elasticsearch_url: str, index_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run", "--model.tied=false")
    encode(zoo_command, checkpoint, "out")
    place = [
        "--retriever=ElasticsearchDenseRetriever",
        f"--retriever.encoder={checkpoint}",
        f"--retriever.url={elasticsearch_url}",
        f"--retriever.index_prefix={index_prefix}",
    ]
    encoded: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(RetrievalPredictor, "encode", lambda self, texts, *rest: encoded.extend(texts))
        result = zoo_command("index", "--embeddings=out", "--memory=memory", *place)
    assert result.code == 0, result.err
    assert encoded == []
    memory = open_memory("memory")
    queries = ["where is rain", "apple", [*titles(CORPUS).values()][3]]
    same_ranking(checkpoint, memory.retriever, queries)  # type: ignore[attr-defined]
    result = zoo_command("search", "where is rain", "--memory=memory", "--k=2")
    assert result.code == 0, result.err
    expected = memory.search(["where is rain"], 2).memories.texts[:]
    assert {line.split(maxsplit=2)[2] for line in result.out.splitlines()} == set(expected)

    other = trained(zoo_command, CORPUS, "large", hidden_size=8)
    retriever: Any = ElasticsearchDenseRetriever(
        other, device="cpu", url=elasticsearch_url, index_prefix=index_prefix
    )
    retriever.open(Path("unused"), memory.fingerprint)
    with pytest.raises(InputError, match=r"has vectors of 6 numbers, but the encoder .* makes 8"):
        retriever.search(["rain"], 1)
