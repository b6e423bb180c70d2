"""The eight data sets of Zhang, Zhao and LeCun (2015) by name, from the Hub or from the published folders.

X. Zhang, J. Zhao, Y. LeCun: Character-level Convolutional Networks for Text Classification, NIPS 2015. Each
published folder holds train.csv and test.csv without a header: the class's number (from 1), then one to three
columns of text. Labels have the same names whether a set comes from the Hub or from its folder.
"""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from pathlib import Path

from datamodules.core.errors import InputError
from datamodules.corpora.readers import HUB, hub_fingerprint
from datamodules.corpora.rows import Rows
from datamodules.corpora.table import read_table

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublishedSet:
    """Where a data set is and what it holds.

    Attributes:
        folder: name of the folder in the published archive.
        num_texts: how many columns of text its files have.
        hub: name on the Hub; None where the Hub has no copy that we know to be whole.
        text_columns: its text columns on the Hub, in the order of the published CSV.
        classes: names of the classes, in the order of their numbers.
        train: published number of training rows.
        test: published number of test rows.
        label_column: its label column on the Hub.
    """

    folder: str
    num_texts: int
    hub: str | None
    text_columns: tuple[str, ...]
    classes: tuple[str, ...]
    train: int
    test: int
    label_column: str = "label"


_POLARITY = ("negative", "positive")
_STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")

PUBLISHED: dict[str, PublishedSet] = {
    "ag_news": PublishedSet(
        # On the Hub title and description are one column already; the folder has two columns.
        folder="ag_news_csv", num_texts=2, hub="fancyzhx/ag_news", text_columns=("text",),
        classes=("World", "Sports", "Business", "Sci/Tech"), train=120_000, test=7_600,
    ),
    "sogou_news": PublishedSet(
        folder="sogou_news_csv", num_texts=2, hub="community-datasets/sogou_news",
        text_columns=("title", "content"),
        classes=("sports", "finance", "entertainment", "automobile", "technology"),
        train=450_000, test=60_000,
    ),
    "dbpedia": PublishedSet(
        folder="dbpedia_csv", num_texts=2, hub="fancyzhx/dbpedia_14", text_columns=("title", "content"),
        classes=(
            "Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation",
            "Building", "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork",
        ),
        train=560_000, test=70_000,
    ),
    "yelp_polarity": PublishedSet(
        folder="yelp_review_polarity_csv", num_texts=1, hub="fancyzhx/yelp_polarity", text_columns=("text",),
        classes=_POLARITY, train=560_000, test=38_000,
    ),
    "yelp_full": PublishedSet(
        folder="yelp_review_full_csv", num_texts=1, hub="Yelp/yelp_review_full", text_columns=("text",),
        classes=_STARS, train=650_000, test=50_000,
    ),
    "yahoo_answers": PublishedSet(
        folder="yahoo_answers_csv", num_texts=3, hub="community-datasets/yahoo_answers_topics",
        text_columns=("question_title", "question_content", "best_answer"), label_column="topic",
        classes=(
            "Society & Culture", "Science & Mathematics", "Health", "Education & Reference",
            "Computers & Internet", "Sports", "Business & Finance", "Entertainment & Music",
            "Family & Relationships", "Politics & Government",
        ),
        train=1_400_000, test=60_000,
    ),
    "amazon_polarity": PublishedSet(
        folder="amazon_review_polarity_csv", num_texts=2, hub="fancyzhx/amazon_polarity",
        text_columns=("title", "content"), classes=_POLARITY, train=3_600_000, test=400_000,
    ),
    "amazon_full": PublishedSet(
        folder="amazon_review_full_csv", num_texts=2, hub=None,
        text_columns=("title", "content"), classes=_STARS, train=3_000_000, test=650_000,
    ),
}  # fmt: skip


def load_published(name: str, folder: str | Path | None = None) -> tuple[Rows, Rows]:
    """Read training and test rows of a published data set.

    Args:
        name: one of `PUBLISHED`.
        folder: the unpacked folder (or the one above it) with train.csv and test.csv, each perhaps .gz or
            .xz; None reads from the Hub.

    Returns:
        Training and test rows. Other numbers of rows than the published ones are logged as a warning.

    Raises:
        InputError: unknown name, missing files, no copy on the Hub, or a table that can't be read.
    """
    if name not in PUBLISHED:
        near = difflib.get_close_matches(name, PUBLISHED, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(PUBLISHED)}"
        raise InputError(f"data set {name!r} is unknown; {hint}")
    published = PUBLISHED[name]
    if folder is not None:
        train, test = (_read_folder(published, Path(folder), split) for split in ("train", "test"))
    elif published.hub is not None:
        train, test = (_read_hub(published, split) for split in ("train", "test"))
    else:
        raise InputError(f"data set {name!r} is not on the Hub; give the folder of {published.folder}")
    for rows, expected in ((train, published.train), (test, published.test)):
        if len(rows) != expected:
            log.warning("%s: %d rows, but %s was published with %d", rows.source, len(rows), name, expected)
    return train, test


def published_contents(name: str) -> list[str]:
    """Identifies what the Hub holds of a published data set now."""
    hub = PUBLISHED[name].hub if name in PUBLISHED else None
    return [] if hub is None else [hub_fingerprint(f"{HUB}{hub}:{split}") for split in ("train", "test")]


def _read_folder(published: PublishedSet, folder: Path, split: str) -> Rows:
    inner = folder / published.folder
    place = inner if inner.is_dir() else folder
    found = [file for end in ("", ".gz", ".xz") if (file := place / f"{split}.csv{end}").is_file()]
    if not found:
        raise InputError(f"{place}: no {split}.csv; give the unpacked folder {published.folder}")
    return read_table(
        found[0],
        text_column=list(range(1, 1 + published.num_texts)),
        label_column=0,
        header=False,
        class_names=published.classes,
    )


def _read_hub(published: PublishedSet, split: str) -> Rows:
    return read_table(
        f"{HUB}{published.hub}:{split}",
        text_column=published.text_columns,
        label_column=published.label_column,
        class_names=published.classes,
    )
