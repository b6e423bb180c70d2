"""Readers of tables of texts: a user's own files, published data sets, and splits of both."""

from datamodules.corpora.published import PUBLISHED, load_published
from datamodules.corpora.split import limit_classes, select_classes, stratified_split
from datamodules.corpora.table import Rows, read_table

__all__ = [
    "PUBLISHED",
    "Rows",
    "limit_classes",
    "load_published",
    "read_table",
    "select_classes",
    "stratified_split",
]
