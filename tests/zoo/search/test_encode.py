"""`zoo encode` writes a table's embeddings, and `zoo index --embeddings` searches them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import zoo
from datamodules.retrieval import DenseRetriever, ElasticsearchDenseRetriever, Retriever, open_memory
from datamodules.retrieval.dense.embeddings import Embeddings
from tests.datamodules.corpus import indexed
from tests.zoo.conftest import Fit, Zoo, done, refusal, sentences, write_table
from tests.zoo.retrieval_runs import titles, trained
from zoo.search import index as vectors
from zoo.tasks.predictor import Predictor
from zoo.tasks.retrieval.predictor import RetrievalPredictor

CORPUS = Path("clicks")
TABLE = ["--input=clicks/corpus.jsonl", "--text_column=title", "--id_column=_id"]


def encode(zoo_command: Zoo, checkpoint: str, output: str, *options: object) -> Path:
    result = done(zoo_command("encode", "--ckpt_path", checkpoint, "--output", output, *TABLE, *options))
    assert result.out.startswith(f"{output}: 40 vectors of ")
    return Path(output)


@pytest.mark.parametrize("model", ["LSTMRNN", "RetrievalDSSM", "RetrievalCLSM"])
def test_the_vectors_are_the_models(zoo_command: Zoo, model: str) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run", "--model.tied=false", model=model)
    assert json.loads(Path(checkpoint, "summary.json").read_text())["best"]["epoch"] == 1
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


def test_a_text_has_one_vector_whatever_the_others(zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run", "--model.bidirectional=true")
    texts = ["rain", "", "apple " * 50, "old iron near the fog", "rain"]
    lines = [json.dumps({"text": text}) for text in texts]
    Path("texts.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(vectors, "BLOCK", 2)  # several blocks, none sorted with another
    done(zoo_command("encode", "--ckpt_path", checkpoint, "--input=texts.jsonl", "--output=out"))
    made = Embeddings.open(Path("out"))
    assert made.rows.ids == ["0", "1", "2", "3", "4"]
    predictor = zoo.load(checkpoint)
    for row, text in enumerate(texts):
        np.testing.assert_allclose(made.vectors[row], predictor.encode([text])[0], atol=1e-6)
    assert not made.vectors[1].any()


def test_it_is_whole_or_absent(zoo_command: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
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
    before = Path("out/vectors.npy").stat().st_ctime_ns
    encode(zoo_command, checkpoint, "out")  # done already
    assert Path("out/vectors.npy").stat().st_ctime_ns == before
    encode(zoo_command, checkpoint, "out", "--side=query")  # other vectors take their place
    assert Embeddings.open(Path("out")).made_by["side"] == "query"
    contents = bytearray((Path("out") / "vectors.npy").read_bytes())
    contents[200] ^= 1
    (Path("out") / "vectors.npy").write_bytes(contents)
    line = refusal(zoo_command("index", "--embeddings=out", "--memory=memory"))
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


@pytest.mark.parametrize(
    ("tied", "is_on_server"),
    [("true", False), ("false", False), pytest.param("false", True, marks=pytest.mark.server)],
)
def test_an_index_takes_them_and_encodes_queries_alone(
    zoo_command: Zoo,
    tied: str,
    is_on_server: bool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    checkpoint = trained(zoo_command, CORPUS, "run", f"--model.tied={tied}", "--data.query_length=3")
    encode(zoo_command, checkpoint, "out")
    place = {}
    options = []
    if is_on_server:
        place = {"url": request.getfixturevalue("elasticsearch_url")}
        place["index_prefix"] = request.getfixturevalue("index_prefix")
        options = ["--retriever=ElasticsearchDenseRetriever", f"--retriever.encoder={checkpoint}"]
        options += [f"--retriever.{name}={value}" for name, value in place.items()]
    encoded: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(RetrievalPredictor, "encode", lambda self, texts, *rest: encoded.extend(texts))
        result = done(zoo_command("index", "--embeddings=out", "--memory=memory", *options))
    assert encoded == []
    assert result.out == "memory: 40 memories, no labels\n"
    memory = open_memory("memory")
    assert isinstance(memory.retriever, ElasticsearchDenseRetriever if is_on_server else DenseRetriever)  # type: ignore[attr-defined]
    # A document's own words, too, are read as a query: with that side's weights, and no more than its words.
    queries = ["where is rain", "apple", [*titles(CORPUS).values()][3]]
    same_ranking(checkpoint, memory.retriever, queries)  # type: ignore[attr-defined]
    result = done(zoo_command("search", "where is rain", "--memory=memory", "--k=2"))
    neighbors = memory.search(["where is rain"], 2)
    shown = [line.split(maxsplit=2)[2] for line in result.out.splitlines()]
    assert shown == [neighbors.memories.texts[row] for row in neighbors.rows[0].tolist()]
    if is_on_server:
        return
    # The index is the one that encoding makes.
    retriever = DenseRetriever(str(Path(checkpoint).absolute()), device="cpu")
    indexed(retriever, [*titles(CORPUS).values()], Path("again"))
    np.testing.assert_allclose(np.load("again/vectors.npy"), np.load("out/vectors.npy"), atol=1e-6)


def test_a_classifiers_memory_with_labels(zoo_command: Zoo, fit: Fit) -> None:
    checkpoint = fit("m1", "--model.features=M1", "--data.num_memories=0")
    write_table(Path("rows.csv"), sentences(30, seed=7))
    options = ["--input=rows.csv", "--label_column=label", "--output=out"]
    done(zoo_command("encode", "--ckpt_path", checkpoint, *options))
    line = refusal(
        zoo_command("encode", "--ckpt_path", checkpoint, *options[:2], "--side=query", "--output=queries")
    )
    assert "encodes queries as it does all texts" in line
    assert not Path("queries").exists()
    result = zoo_command("index", "--embeddings=out", "--memory=memory")
    assert result.out == "memory: 30 memories, 3 labels\n", result.err
    texts = [text for text, _ in sentences(30, seed=7)]
    np.testing.assert_allclose(np.load("out/vectors.npy"), zoo.load(checkpoint).encode(texts), atol=1e-6)
    # An exported folder has the same encoder.
    done(zoo_command("export", checkpoint, "shared"))
    done(zoo_command("encode", "--ckpt_path=shared", *options[:2], "--output=again"))
    np.testing.assert_array_equal(np.load("again/vectors.npy"), np.load("out/vectors.npy"))


def test_mistakes_are_named(zoo_command: Zoo, tmp_path: Path) -> None:
    small, large = (
        trained(zoo_command, CORPUS, f"run{size}", "--data.num_hits=4", hidden_size=size) for size in (6, 8)
    )
    encode(zoo_command, small, "out")
    index = ["index", "--embeddings=out", "--memory=memory"]
    dense = "--retriever=DenseRetriever"
    line = refusal(zoo_command(*index, dense, f"--retriever.encoder={large}"))
    assert line.startswith(f"out: has vectors of 6 numbers, but the encoder {large} makes 8; ")
    other = trained(zoo_command, CORPUS, "other", "--seed_everything=2")
    line = refusal(zoo_command(*index, dense, f"--retriever.encoder={other}"))
    assert line.startswith(f"out: was not made by the encoder {other} with these options; ")
    refusal(zoo_command(*index, "--retriever.similarity=LMDirichlet"), "ranks by words")
    refusal(zoo_command("index", "--memory=memory"), "name a table with --file")
    assert not Path("memory").exists()
    encode(zoo_command, small, "queries", "--side=query")
    line = refusal(zoo_command("index", "--embeddings=queries", "--memory=memory"))
    assert line == "queries: embeddings of queries; encode with --side document"
    line = refusal(zoo_command("index", "--embeddings=clicks", "--memory=memory"))
    assert line.startswith("clicks: is unfinished")
    again = ["encode", "--ckpt_path", small, *TABLE]
    for place in ("clicks", "clicks/corpus.jsonl", str(tmp_path)):
        refusal(zoo_command(*again, f"--output={place}"), "contains no embeddings")
    assert (CORPUS / "corpus.jsonl").exists()
    refusal(zoo_command("encode", "--ckpt_path=gone.ckpt", "--output=new", *TABLE), "no such run folder")
    lexical = trained(zoo_command, CORPUS, "bm25", "--data.num_hits=4", model="RetrievalBM25")
    line = refusal(zoo_command("encode", "--ckpt_path", lexical, "--output=new", *TABLE))
    assert "makes no vectors of texts" in line or "no text encoder" in line
