import gzip
import json
import logging
from pathlib import Path

import datasets
import pytest

from datamodules.core.errors import InputError
from datamodules.corpora import PUBLISHED, load_published


def make_folder(folder: Path, name: str) -> Path:
    """A folder laid out like the published one: a row a class for training, one row for the test."""
    published = PUBLISHED[name]
    folder.mkdir(parents=True)
    fields = [f'"part {number}"' for number in range(published.num_texts)]
    lines = [",".join([f'"{label}"', *fields]) for label in range(1, len(published.classes) + 1)]
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    (folder / "test.csv").write_text(lines[-1] + "\n")
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_folders(tmp_path, name):
    published = PUBLISHED[name]
    train, test = load_published(name, make_folder(tmp_path / "data", name))
    assert train.labels == list(published.classes)
    assert test.labels == [published.classes[-1]]
    assert test.texts[0] == " ".join(f"part {number}" for number in range(published.num_texts))


def test_folder_above_and_compressed_files(tmp_path):
    folder = make_folder(tmp_path / "ag_news_csv", "ag_news")
    (folder / "train.csv.gz").write_bytes(gzip.compress((folder / "train.csv").read_bytes()))
    (folder / "train.csv").unlink()
    train, _ = load_published("ag_news", str(tmp_path))
    assert train.labels == ["World", "Sports", "Business", "Sci/Tech"]
    assert train.source == str(folder / "train.csv.gz")


def test_other_sizes_are_a_warning(tmp_path, caplog):
    load_published("ag_news", make_folder(tmp_path / "data", "ag_news"))
    warnings = [record.getMessage() for record in caplog.records if "was published" in record.getMessage()]
    assert len(warnings) == 2
    assert "train.csv: 4 rows, but ag_news was published with 120000" in warnings[0]


def test_published_sizes_are_no_warning(tmp_path, caplog):
    folder = make_folder(tmp_path / "data", "ag_news")
    published = PUBLISHED["ag_news"]
    for split, count in (("train", published.train), ("test", published.test)):
        (folder / f"{split}.csv").write_text('"1","a","b"\n' * count)
    load_published("ag_news", folder)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_class_number_that_is_not_there(tmp_path):
    folder = make_folder(tmp_path / "data", "ag_news")
    (folder / "train.csv").write_text('"5","a","b"\n')
    with pytest.raises(InputError, match=r"train.csv, line 1: label '5' is no number from 1 to 4"):
        load_published("ag_news", folder)


def test_folder_without_files(tmp_path):
    with pytest.raises(InputError, match=r"no train.csv; give the unpacked folder yelp_review_full_csv"):
        load_published("yelp_full", tmp_path)


def test_unknown_name():
    with pytest.raises(InputError, match=r"did you mean ag_news\?"):
        load_published("agnews")
    with pytest.raises(InputError, match=r"choose one of ag_news, .*amazon_full"):
        load_published("zzz")


def test_no_copy_on_the_hub():
    with pytest.raises(InputError, match="amazon_review_full_csv"):
        load_published("amazon_full")


def test_from_the_hub_with_the_names_of_the_folder(tmp_path, monkeypatch):
    """A local folder with the Hub's columns and the Hub's own class names stands in for the Hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    features = datasets.Features(
        {
            "id": datasets.Value("int32"),
            "label": datasets.ClassLabel(names=["1", "2"]),
            "text": datasets.Value("string"),
        }
    )
    folder = tmp_path / "fancyzhx" / "yelp_polarity"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        rows = {"id": [7, 8], "label": [1, 0], "text": [f"good {split}", f"bad {split}"]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{split}.parquet")
    files = [{"split": split, "path": f"{split}.parquet"} for split in ("train", "test")]
    configs = [{"config_name": "plain_text", "data_files": files}]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    train, test = load_published("yelp_polarity")
    assert list(train.texts) == ["good train", "bad train"]
    assert list(test.texts) == ["good test", "bad test"]
    assert train.labels == ["positive", "negative"]


def test_every_hub_copy_has_a_place():
    for name, published in PUBLISHED.items():
        assert len(set(published.classes)) == len(published.classes), name
        assert (published.hub is None) == (name == "amazon_full")
