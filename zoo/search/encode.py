"""`zoo encode`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datamodules.core.errors import InputError, check_count
from datamodules.core.shards import Shard
from datamodules.corpora.records import Column, TextColumn
from datamodules.corpora.table import read_table
from datamodules.retrieval.dense.embeddings import Embeddings, MadeBy, Side, check_output
from datamodules.retrieval.dense.retriever import DenseRetriever
from datamodules.retrieval.dense.text_vectors import TextVectors
from zoo.model_folder.folder import ModelFolder

#: Number of texts that are sorted by length, encoded and written together; only their vectors are in memory.
BLOCK = 1 << 14


def encode(
    input: str,
    output: str,
    ckpt_path: str | None = None,
    encoder: str | None = None,
    side: Side = "document",
    text_column: TextColumn = "text",
    id_column: Column | None = None,
    label_column: Column | None = None,
    quotes: bool | None = None,
    batch_size: int = 256,
    device: str = "cpu",
    shard: str | None = None,
    **of_encoder: Any,
) -> None:
    """Write the embeddings of a table's texts, with its ids: a folder that `zoo index --embeddings` takes.

    The folder has `vectors.npy` (float32, a row for each text, of length 1; 0 for a text without words), `rows.arrow`
    (ids, texts and labels in the same order) and `manifest.json`.

    Args:
        input: a table (CSV, TSV, JSONL, Parquet, a saved data set, hub:NAME).
        output: folder to make; only earlier embeddings are replaced.
        ckpt_path: a model that encodes texts, such as a KNNBiLSTM or an LSTMRNN.
        encoder: in place of a model, a sentence encoder: its name on the Hub, or its folder.
        side: the encoder, of a model with one for queries and one for documents.
        text_column: name or number of the text, or several, which are joined.
        id_column: name or number of an id; null numbers the rows.
        label_column: name or number of a label, for a memory with labels.
        quotes: whether fields may stand in double quotes; null = in CSV files, not in TSV files.
        batch_size: texts that go through the network together.
        device: cpu, cuda, cuda:1, ...
        shard: encode one of several parts of the table, such as 3/16, into a folder such as OUTPUT.03-of-16;
            `zoo index --embeddings OUTPUT` joins them to the rows and vectors of one process, bit by bit.
        **of_encoder: options of a sentence encoder, see `DenseRetriever`.
    """
    check_count("batch_size", batch_size)
    part = None if shard is None else Shard.parse(shard)
    # Checked before hours of encoding.
    folder = Path(output) if part is None else part.part_of(Path(output))
    check_output(folder)
    if (ckpt_path is None) == (encoder is None):
        raise InputError("zoo encode: name a model with --ckpt_path, or a sentence encoder with --encoder")
    if ckpt_path is not None:
        encoder, of_encoder = str(ModelFolder.open(ckpt_path).path), {}
    assert encoder is not None
    encoder = str(Path(encoder).absolute()) if Path(encoder).exists() else encoder
    retriever = DenseRetriever(encoder, batch_size=batch_size, device=device, **of_encoder)
    made_by = MadeBy(encoder, retriever.ranking.vectors_fingerprint, side, of_encoder)
    vectors = TextVectors(retriever.ranking, batch_size, device)
    queries = side == "query"
    if queries and not vectors.has_query_side:
        raise InputError("--side query: the model encodes queries as it does all texts; omit the option")
    rows = read_table(input, text_column, label_column, id_column, quotes=quotes)
    if part is not None:
        rows = rows.part(part.rows(len(rows), BLOCK))
    blocks = vectors.blocks(rows.texts, BLOCK, queries=queries)
    Embeddings.write(folder, rows, blocks, vectors.size, made_by)
    print(f"{folder}: {len(rows)} vectors of {vectors.size} numbers")
