"""Bodies of the requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from typing_extensions import Self

from datamodules.core.errors import InputError
from datamodules.corpora.rows import Rows
from datamodules.retrieval.base import MOST_HITS
from datamodules.retrieval.memories.memory import Addition, Change
from zoo.memory.opened import OpenedMemory


def _filled(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty; give a text, or omit it")
    return value


#: Characters of the longest text, far above short ones: about 15,000 words, in less than a second.
LONGEST_TEXT = 100_000
_Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(_filled)]
#: A label or an id.
_Name = Annotated[str, Field(max_length=1_000), AfterValidator(_filled)]


class _Body(BaseModel):
    """Base: an unknown field is an error, so that a misspelled one changes nothing."""

    model_config = ConfigDict(extra="forbid")


class _OneOrMore(_Body):
    text: _Text | None = Field(None, description="one text; or give `texts`")
    texts: list[_Text] | None = Field(None, description="several texts; or give `text`")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        return self

    def all_texts(self) -> list[str]:
        return list(self.texts or ()) if self.text is None else [self.text]


class Predicted(_OneOrMore):
    """Texts to predict."""

    memories: bool = Field(True, description="answer with the memories that the prediction read")
    max_error: float | None = Field(None, description="abstain (label null) for an error below this level")
    confidence: float = Field(0.95, description="of this promise, over the draw of the held-out rows")
    label_sets: float | None = Field(None, description="add the labels that a text may have, at this level")
    unknown: float | None = Field(None, description="abstain for texts of no known class, at this level")


class Search(_OneOrMore):
    """Texts to search the memory for."""

    k: int = Field(10, ge=1, le=MOST_HITS, description="number of memories for a text")
    exclude_duplicates: bool = Field(False, description="without duplicates of the text")


class NewRow(_Body):
    """A row for the memory."""

    text: _Text
    label: _Name | None = None
    id: _Name | None = None


class _Edit(_Body):
    note: str | None = Field(None, description="a reason, which is kept with the new version")


class Added(_Edit):
    """Rows to add."""

    rows: list[NewRow] = Field(min_length=1)
    new_labels: bool = Field(False, description="add rows with labels that the model does not know yet")
    relabel: bool = Field(False, description="rows of the memory with the text of a new one get its label")

    def values(self) -> list[str]:
        """Return the texts or names that the limits of a request count."""
        return [row.text for row in self.rows]

    def edit(self, opened: OpenedMemory) -> Addition:
        """Make the edit."""
        ids = [row.id for row in self.rows if row.id is not None]
        if len(ids) not in (0, len(self.rows)):
            raise InputError(f"{len(ids)} of {len(self.rows)} rows have an id; give it to all or to none")
        labels = [row.label for row in self.rows]
        rows = Rows.from_lists(self.values(), labels, ids or None, source="rows to add")
        return opened.add(rows, self.new_labels, bool(ids), self.relabel, self.note)


class Removed(_Edit):
    """Rows to remove."""

    ids: list[str] = Field(min_length=1)

    def values(self) -> list[str]:
        """Return the texts or names that the limits of a request count."""
        return self.ids

    def edit(self, opened: OpenedMemory) -> Change:
        """Make the edit."""
        return opened.folder.remove(self.ids, self.note)


class Labels(_Edit):
    """Rows to relabel."""

    labels: dict[str, _Name | None] = Field(
        min_length=1, description="id of a row: its new label; null: none, of rows with sets of labels"
    )
    new_labels: bool = Field(False, description="also labels that the model does not know yet")

    def values(self) -> list[str]:
        """Return the texts or names that the limits of a request count."""
        return list(self.labels)

    def edit(self, opened: OpenedMemory) -> Change:
        """Make the edit."""
        if opened.separator is None and None in self.labels.values():
            raise InputError("labels: null is an empty set of labels, and these rows have one label each")
        changes = {name: label or "" for name, label in self.labels.items()}
        return opened.relabel(changes, self.new_labels, self.note)


def _kind_of(edit: object) -> str:
    """Return the field that only this kind of edit has."""
    return next((name for name in ("ids", "labels") if isinstance(edit, Mapping) and name in edit), "rows")


class Previewed(_Body):
    """An edit to try on a copy: the body of `/memory/add`, `/memory/remove` or `/memory/relabel`."""

    edit: Annotated[
        Annotated[Added, Tag("rows")] | Annotated[Removed, Tag("ids")] | Annotated[Labels, Tag("labels")],
        Discriminator(_kind_of),
    ]
    texts: list[_Text] = Field(default_factory=list, description="texts whose answers are compared")


class Reverted(_Edit):
    """A version to revert the memory to."""

    version: int = Field(strict=True)
