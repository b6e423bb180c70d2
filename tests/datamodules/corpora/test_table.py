import gzip
import json
import logging
import lzma
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table
from tests.datamodules.checks import write

TEXTS = ["a first text", 'with "quotes", and a comma', "Grüße 你好 🙂"]
LABELS = ["News", "Sport", "News"]
CSV = 'text,label\na first text,News\n"with ""quotes"", and a comma",Sport\nGrüße 你好 🙂,News\n'
TSV = 'text\tlabel\na first text\tNews\nwith "quotes", and a comma\tSport\nGrüße 你好 🙂\tNews\n'
JSONL = "".join(
    json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n"
    for text, label in zip(TEXTS, LABELS, strict=True)
)


def parquet(columns: dict[str, object] | list[object], names: list[str] | None = None) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, names=names), buffer)
    return buffer.getvalue().to_pybytes()


def error(path: str | Path, **arguments: object) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path, **arguments)
    message = str(caught.value)
    assert "\n" not in message
    # Every message names the file.
    assert Path(path).name in message
    return message


# --- formats ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [None, gzip.compress, lzma.compress])
@pytest.mark.parametrize(
    ("name", "content"),
    [("t.csv", CSV), ("t.tsv", TSV), ("t.jsonl", JSONL), ("t.ndjson", JSONL), ("t.json", JSONL)],
)
def test_formats(tmp_path, name, content, compress):
    if compress:
        name += ".gz" if compress is gzip.compress else ".xz"
        content = compress(content.encode())
    rows = read_table(write(tmp_path / name, content))
    assert list(rows.texts) == TEXTS
    assert rows.labels == LABELS
    assert rows.ids == ["0", "1", "2"]
    assert rows.source == str(tmp_path / name)
    assert rows.fingerprint == Rows.from_lists(TEXTS, LABELS).fingerprint


def test_parquet(tmp_path):
    table = pa.table({"label": pa.array(LABELS).dictionary_encode(), "text": TEXTS, "other": [1, 2, 3]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    rows = read_table(tmp_path / "t.parquet")
    assert list(rows.texts) == TEXTS
    assert rows.labels == LABELS


def saved_dataset(text: list[str] = TEXTS) -> datasets.Dataset:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["News", "Sport"])}
    )
    return datasets.Dataset.from_dict({"text": text, "label": [0, 1, 0]}, features=features)


def test_saved_data_set_with_class_names(tmp_path):
    saved_dataset().save_to_disk(tmp_path / "saved")
    rows = read_table(tmp_path / "saved")
    assert list(rows.texts) == TEXTS
    assert rows.labels == LABELS
    assert read_table(tmp_path / "saved", class_names=["A", "B"]).labels == ["A", "B", "A"]
    named = {"News": "A", "Sport": "B"}
    assert read_table(tmp_path / "saved", class_names=named).labels == ["A", "B", "A"]
    assert "2 classes but 3 class_names" in error(tmp_path / "saved", class_names=["A", "B", "C"])


def test_folders_of_saved_data_sets(tmp_path):
    saved_dataset().select([2, 0]).save_to_disk(tmp_path / "saved")
    assert list(read_table(tmp_path / "saved").texts) == [TEXTS[2], TEXTS[0]]
    next((tmp_path / "saved").glob("*.arrow")).write_bytes(b"broken")
    assert "damaged data set" in error(tmp_path / "saved")
    assert "name a file in it" in error(tmp_path)
    unlabelled = saved_dataset().map(lambda row, i: {"label": -1 if i == 1 else 0}, with_indices=True)
    unlabelled.save_to_disk(tmp_path / "unlabelled")
    assert "row 2: no label" in error(tmp_path / "unlabelled")
    datasets.DatasetDict(train=saved_dataset(), test=saved_dataset()).save_to_disk(tmp_path / "splits")
    assert str(tmp_path / "splits" / "test") in error(tmp_path / "splits")
    assert read_table(tmp_path / "splits" / "test").labels == LABELS


@pytest.fixture
def hub_folder(tmp_path, monkeypatch):
    """A folder that load_dataset reads like a data set of the Hub, with a cache of its own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "reviews"
    folder.mkdir()
    for split in ("train", "test"):
        saved_dataset([f"{split} {text}" for text in TEXTS]).to_parquet(folder / f"{split}.parquet")
    return folder


def test_hub_names_may_have_a_configuration_and_a_split(hub_folder):
    rows = read_table(f"hub:{hub_folder}")
    assert list(rows.texts) == [f"train {text}" for text in TEXTS]
    assert rows.labels == LABELS
    assert rows.source == f"hub:{hub_folder}"
    assert list(read_table(f"hub:{hub_folder}:test").texts) == [f"test {text}" for text in TEXTS]
    assert list(read_table(f"hub:{hub_folder}:default:test[:1]").texts) == [f"test {TEXTS[0]}"]


@pytest.mark.parametrize("rest", [":validation", ":plain:test", "-missing"])
def test_hub_errors_name_the_data_set(hub_folder, rest):
    assert "check name, configuration, split and network" in error(f"hub:{hub_folder}{rest}")
    for path in ("hub:", "hub:name:", "hub:a:b:c:d"):
        assert "write hub:NAME" in error(path)


def test_scripts_of_data_sets_are_not_run(hub_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_TRUST_REMOTE_CODE", True, raising=False)
    write(hub_folder / "reviews.py", f"open({str(tmp_path / 'executed')!r}, 'w')")
    error(f"hub:{hub_folder}")
    assert not (tmp_path / "executed").exists()


# --- columns ------------------------------------------------------------------------------------------------


def test_headerless_file_by_numbers(tmp_path):
    path = write(tmp_path / "t.csv", "1,Title,Body\n2, ,  Only a body \n1,Only a title,\n")
    for numbers in ([1, 2], ["1", "2"]):
        rows = read_table(path, text_column=numbers, label_column=0)
        assert list(rows.texts) == ["Title Body", "Only a body", "Only a title"]
        assert rows.labels == ["1", "2", "1"]


def test_header_decides_whether_the_first_line_is_a_row(tmp_path):
    path = write(tmp_path / "t.csv", "text,label\na,x\n")
    assert len(read_table(path, text_column=0, label_column=1)) == 2
    assert len(read_table(path, text_column=0, label_column=1, header=True)) == 1
    # One name is enough to assume a header.
    assert len(read_table(path, text_column=0)) == 1
    assert "there are columns 0 to 1" in error(path, header=False)


def test_a_name_of_digits_comes_before_a_number(tmp_path):
    path = write(tmp_path / "t.csv", "label,0\nx,a\n")
    assert list(read_table(path, text_column="0", header=True).texts) == ["a"]
    assert list(read_table(path, text_column=0, header=True).texts) == ["x"]


@pytest.mark.parametrize(
    ("name", "content"), [("t.jsonl", JSONL), ("t.parquet", parquet({"text": TEXTS, "label": LABELS}))]
)
def test_other_formats_have_numbers_too(tmp_path, name, content):
    write(tmp_path / name, content)
    assert read_table(tmp_path / name, text_column="1", label_column=None).texts[1] == "Sport"
    assert "'text', 'label'" in error(tmp_path / name, text_column=2)


def test_ids(tmp_path):
    path = write(tmp_path / "t.csv", "id,text\nA7,a\nB1,b\n")
    assert read_table(path, label_column=None, id_column="id").ids == ["A7", "B1"]
    # The same column may serve twice.
    path = write(tmp_path / "t.parquet", parquet({"text": TEXTS}))
    assert read_table(path, label_column=None, id_column="text").ids == TEXTS
    with pytest.raises(InputError, match="text_column"):
        read_table(path, text_column=[])


def test_ids_count_on_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("datamodules.corpora.readers.BLOCK", 2)
    rows = read_table(write(tmp_path / "t.csv", CSV))
    assert rows.table.column("id").num_chunks == 2
    assert rows.ids == ["0", "1", "2"]
    assert list(rows.texts) == TEXTS
    assert rows.fingerprint == Rows.from_lists(TEXTS, LABELS).fingerprint


def test_semicolons_between_the_wanted_names(tmp_path, caplog):
    path = write(tmp_path / "t.csv", 'number;text;label\n1;"one; two, three";News\n2;four;Sport\n')
    with caplog.at_level("INFO"):
        rows = read_table(path, id_column="number")
    assert list(rows.texts) == ["one; two, three", "four"]
    assert rows.labels == ["News", "Sport"]
    assert rows.ids == ["1", "2"]
    assert "separated by semicolons" in caplog.text
    # In a table with commas, semicolons are characters, in names and in texts.
    path = write(tmp_path / "u.csv", '"a;text",text,label\nx;y,one; two,News\n')
    assert list(read_table(path).texts) == ["one; two"]
    path = write(tmp_path / "b.csv", "\ntext;label\na;News\n")
    assert read_table(path).labels == ["News"]
    assert "put fields with a ';'" in error(write(tmp_path / "m.csv", "text;label\na;b;News\n"))
    # Numbers of columns do not reveal the delimiter.
    path = write(tmp_path / "v.csv", "one; two\nthree; four\n")
    assert list(read_table(path, text_column=0, label_column=None).texts) == ["one; two", "three; four"]


def test_class_names_from_a_file(tmp_path):
    names = write(tmp_path / "classes.txt", "World\nSci/Tech\n\n")
    path = write(tmp_path / "t.csv", "2,a\n1,b\n")
    rows = read_table(path, text_column=1, label_column=0, class_names=names)
    assert rows.labels == ["Sci/Tech", "World"]


def test_a_name_for_each_label(tmp_path):
    path = write(tmp_path / "t.csv", "1,a\n0,b\n-,c\n")
    names = {0: "World", "1": "Sports", "-": "none"}
    rows = read_table(path, text_column=1, label_column=0, class_names=names)
    assert rows.labels == ["Sports", "World", "none"]
    message = error(path, text_column=1, label_column=0, class_names={"1": "Sports", "-": "none"})
    assert "line 2: label '0' has no name" in message
    # A list may count from 0 or 1; the message shows the unambiguous form.
    message = error(path, text_column=1, label_column=0, class_names=["World", "Sports"])
    assert message.endswith("where labels count from 0, name each: '{0: World, 1: Sports}'")


# --- dialect ------------------------------------------------------------------------------------------------


def test_a_backslash_escapes_nothing(tmp_path):
    path = write(tmp_path / "t.csv", '"1","a line\\","b \\""quoted\\"" c"\n"2","d","e\\\\"\n')
    rows = read_table(path, text_column=[1, 2], label_column=0)
    assert list(rows.texts) == ['a line\\ b \\"quoted\\" c', "d e\\\\"]


@pytest.mark.parametrize(("name", "content"), [("t.csv", CSV), ("t.jsonl", JSONL)])
def test_line_ends_byte_order_marks_and_blank_lines_are_no_text(tmp_path, name, content):
    for other in (
        b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode(),
        "\n" + content.replace("\n", "\n\n"),
    ):
        assert list(read_table(write(tmp_path / name, other)).texts) == TEXTS


def test_tsv_quotes_are_characters_by_default(tmp_path):
    path = write(tmp_path / "t.tsv", 'text\tlabel\n"open\tx\n"a ""b""\tc"\ty\n')
    assert "line 3: 3 fields" in error(path)
    path = write(tmp_path / "u.tsv", 'text\tlabel\n"a ""b""\tc"\ty\n')
    assert list(read_table(path, quotes=True).texts) == ['a "b"\tc']
    path = write(tmp_path / "v.csv", 'text,label\n"open,x\n')
    assert list(read_table(path, quotes=False).texts) == ['"open']


def test_a_text_of_a_megabyte(tmp_path):
    long = "word " * 250_000 + "end"
    for name, content in (
        ("t.csv", f"text,label\n{long},x\n"),
        ("t.jsonl", json.dumps({"text": long, "label": "x"})),
    ):
        assert read_table(write(tmp_path / name, content)).texts[0] == long


CLASSES = {"text_column": 1, "label_column": 0, "class_names": ["World", "Sports"]}
LATIN1 = parquet({"text": pa.array([b"fine", b"Gr\xfc\xdfe"]).view(pa.string())})
IN_CLASSES = "line 2: label {!r} is not a number from 1 to 2"
#: Name and contents of a file, arguments, and parts of the message.
REFUSED = [
    *((name, CSV, {}, ".jsonl") for name in ("t.txt", "t", "t.xlsx", "t.gz", "t.parquet.gz", "t.csv.bz2")),
    *((name, "", {}, "empty file") for name in ("t.csv", "t.tsv", "t.jsonl", "t.parquet")),
    ("t.csv.gz", gzip.compress(b"", mtime=0), {}, "empty file"),
    ("t.csv", "\n\n", {}, "no rows"),
    ("t.csv", "text,label\n", {}, "a header and no rows"),
    ("t.csv", "text,label\na,x\nonly text\nb,y\n", {}, "line 3: 1 fields, but line 1 has 2"),
    ("t.csv", "text,label\na,x\na,x,too many\nb,y\n", {}, "line 3: 3 fields, but line 1 has 2"),
    ("t.csv", 'text,label\n"two\nlines",x\na,y,z\n', {}, "line 4: 3 fields, but line 1 has 2"),
    (
        "t.csv",
        'text,label\na,x\n"b,y\nc,z\n',
        {},
        "line 3: a quoted field starts in this record and is never",
    ),
    ("t.csv", 'text,label\na,x\n"b" c,y\n', {}, "line 3"),
    ("t.csv", 'text,label\na,x\n"b" c,y\n', {}, "set quotes to false"),
    ("t.csv", "text,label\ra,x\r", {}, "carriage return"),
    ("t.csv", CSV.encode().replace("ü".encode(), b"\xfc"), {}, "line 4: not UTF-8"),
    ("t.jsonl", JSONL.encode().replace("ü".encode(), b"\xfc"), {}, "line 3: not UTF-8"),
    *(
        ("t.jsonl", f"{JSONL.splitlines()[0]}\n{line}\n", {}, "line 2: not JSON (")
        for line in ('{"text": "a"', "text", '{"text": "a"} {"text": "b"}', "[" * 100_000)
    ),
    ("t.json", '[\n{"text": "a"}]', {}, "line 1: a JSON array"),
    ("t.json", '"a"', {}, "line 1: not a JSON object"),
    ("t.jsonl", JSONL + '{"text": "a", "lable": "x"}\n', {}, "line 4: no 'label', only 'text', 'lable'"),
    ("t.jsonl", '{"text": ["a"], "label": "x"}', {}, "line 1: list instead of a string"),
    ("t.jsonl", '{"text": {"b": 1}, "label": "x"}', {}, "line 1: dict instead of a string"),
    *(("t.csv", f"text,label\na,x\n{row}\n", {}, "line 3: no label") for row in ("b,", "b,  ", 'b,""')),
    ("t.csv", CSV, {"text_column": "body"}, "no column 'body'; there are 'text', 'label'"),
    ("t.csv", CSV, {"text_column": "text,label"}, "name it with text_column, several as [one,other]"),
    ("t.csv", CSV, {"label_column": "class"}, "name it with label_column"),
    ("t.csv", CSV, {"label_column": [*"ab"], "label_separator": ";"}, "with label_columns, or null"),
    ("t.csv", CSV, {"id_column": "number"}, "name it with id_column"),
    ("t.csv", "id,text\nA7,a\n,b\n", {"label_column": None, "id_column": "id"}, "line 3: no id"),
    *(
        (name, content, {}, "'label' more than once")
        for name, content in (
            ("t.csv", "text,label,label\na,b,c\n"),
            ("t.jsonl", '{"text": "a", "label": "b", "label": "c"}\n'),
            ("t.parquet", parquet([pa.array(["a"])] * 3, ["text", "label", "label"])),
        )
    ),
    ("t.parquet", parquet({"text": pa.array([], pa.string())}), {"label_column": None}, "no rows"),
    ("t.parquet", parquet({"text": TEXTS, "label": LABELS})[:-10], {}, "not a whole Parquet file"),
    *(
        ("t.parquet", parquet({"text": ["a", "b"], "label": labels}), {}, "row 2: no label")
        for labels in (["x", None], [1.0, float("nan")])
    ),
    ("t.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": null}\n', {}, "line 2: no label"),
    ("t.parquet", LATIN1, {"label_column": None}, "row 2: not UTF-8"),
    *(
        ("t.csv", f"1,a\n{label},b\n", CLASSES, IN_CLASSES.format(label))
        for label in ("3", "World", "²", "-1")
    ),
]


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"), REFUSED, ids=lambda value: str(value)[:40]
)
def test_a_bad_file_is_refused(tmp_path, name, content, arguments, message):
    assert message in error(write(tmp_path / name, content), **arguments)


def test_white_space_around_names_and_labels_is_theirs(tmp_path, caplog):
    lines = '" lead",lead,"label"\nfirst,second, lead\nthird,fourth,lead\n'
    path = write(tmp_path / "t.csv", lines)
    rows = read_table(path, text_column=" lead", label_column="label")
    assert rows.texts[:] == ["first", "third"]
    assert read_table(path, text_column="lead", label_column="label").texts[:] == ["second", "fourth"]
    assert rows.labels == [" lead", "lead"]
    assert f"{path}: the labels ' lead' and 'lead' are two classes" in caplog.text
    # A carriage return ends a line, and a number that names a class is a number.
    table = write(tmp_path / "t.tsv", "text\tlabel\r\na\tlead\r\nb\t 2\r\n")
    assert read_table(table).labels == ["lead", " 2"]
    numbered = write(tmp_path / "n.tsv", "text\tlabel\r\na\t1\r\nb\t 2\r\n")
    assert read_table(numbered, class_names=["one", "two"]).labels == ["one", "two"]
    assert read_table(numbered, class_names={1: "one", "2": "two"}).labels == ["one", "two"]


# --- labels and repairs -------------------------------------------------------------------------------------


def test_labels_that_are_no_strings(tmp_path):
    lines = [{"text": "a", "label": label} for label in (1, True, 1.0, "1", " x ", 0, False)]
    rows = read_table(write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines))))
    assert rows.labels == ["1", "True", "1.0", "1", " x ", "0", "False"]


def test_nuls_become_spaces_and_are_counted(tmp_path, caplog):
    write(tmp_path / "t.csv", "text,label\na\0b\0c,x\nd,y\ne\0f,z\n")
    write(tmp_path / "t.jsonl", '{"text": "a\\u0000b\\u0000c", "label": "x"}\n{"text": "d", "label": "y"}\n')
    write(tmp_path / "t.parquet", parquet({"text": ["a\0b\0c", "d"], "label": ["x", "y"]}))
    for name, count in (("t.csv", 2), ("t.jsonl", 1), ("t.parquet", 1)):
        caplog.clear()
        assert list(read_table(tmp_path / name).texts)[:2] == ["a b c", "d"]
        (message,) = [record.getMessage() for record in caplog.records]
        assert f"NUL characters in {count}" in message
        assert name in message


def test_lone_surrogates_are_replaced_and_counted(tmp_path, caplog):
    lines = ['{"text": "a \\ud800 b", "label": "x\\udc00"}', '{"text": "\\ud83d\\ude42", "label": "y"}']
    rows = read_table(write(tmp_path / "t.jsonl", "\n".join(lines)))
    assert list(rows.texts) == ["a \ufffd b", "🙂"]
    assert rows.labels == ["x\ufffd", "y"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "surrogates in 2 fields" in message
    assert list(Rows.from_lists(["\ud83d\ude42"]).texts) == ["🙂"]


def test_empty_texts_are_kept_and_counted(tmp_path, caplog):
    path = write(tmp_path / "t.jsonl", '{"text": "", "label": "x"}\n{"text": null, "label": "y"}\n' + JSONL)
    rows = read_table(path)
    assert rows.texts[:3] == ["", "", TEXTS[0]]
    assert caplog.messages == [f"{path}, line 1, 2: 2 of 5 texts are empty; they are kept"]


def test_duplicates_are_kept_and_counted(tmp_path, caplog):
    path = write(tmp_path / "t.csv", "text,label\na,x\na,y\na,x\nb,x\na,x\n")
    with caplog.at_level(logging.INFO):
        assert len(read_table(path)) == 5
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "2 of 5 rows repeat an earlier row" in record.getMessage()


def test_a_clean_table_logs_nothing(tmp_path, caplog, capsys):
    with caplog.at_level(logging.INFO):
        read_table(write(tmp_path / "t.csv", CSV))
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


def test_rows_without_a_label_are_named_at_once(tmp_path):
    lines = [f"text {row},{'' if row % 2 else 'x'}" for row in range(30)]
    path = write(tmp_path / "t.csv", "\n".join(["text,label", *lines]))
    numbers = ", ".join(str(number) for number in range(3, 23, 2))
    advice = "add labels, or remove these rows; for a set of labels"
    assert f"t.csv, line {numbers} and 5 more: no label; {advice}" in error(path)


def test_several_labels_in_a_row(tmp_path, caplog):
    path = write(tmp_path / "t.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", "label": ["x", "y"]}\n')
    assert "line 2: 2 labels in one row; for a set of labels a text" in error(path)
    path = write(tmp_path / "t.csv", 'text,label\na,x\nb,y\nc,x;y\nd,"R&D, sales"\n')
    for separator in (None, "|"):
        read_table(path, label_separator=separator)
    assert ["the label 'x;y' is a class of its own" in each for each in caplog.messages] == [True] * 2


def test_equal_ids_are_named(tmp_path, caplog):
    path = write(tmp_path / "t.csv", "id,text,label\n7,a,x\n8,b,y\n7,c,x\n")
    assert read_table(path, id_column="id").ids == ["7", "8", "7"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "1 ids stand for several rows ('7')" in message
