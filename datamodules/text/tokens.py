"""Tokenised texts on disk: every text once, as numbers of a lexicon that holds all its words.

The lexicon is the data's, not a model's: it holds every distinct word, so that one store serves any
vocabulary, and a vocabulary that arrives late, with a checkpoint, is applied through a table of the
lexicon's size (see `gather`). All processes of a machine share the same memory-mapped pages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from datamodules.core.arrays import ArrayWriter, offsets_of
from datamodules.core.errors import InputError
from datamodules.core.storage import Part, check_folder, is_whole, lock, new_folder
from datamodules.text.tokenization import Lexicon, Tokenizer

#: Tokens that go to the disk, or through a sum, in one go.
_BLOCK = 1 << 20


class TokenStore:
    """The tokens of n texts.

    Attributes:
        tokens: int32 [all tokens], positions in `lexicon`; the texts one after the other. Read-only.
        offsets: int64 [n + 1]; text i is `tokens[offsets[i]:offsets[i + 1]]`. Read-only.
        lexicon: the distinct tokens in order of first occurrence.
        cut_texts: how many texts had more than the tokens that are kept of one.
        dropped_tokens: how many tokens they lost together.
    """

    def __init__(
        self,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        lexicon: list[str],
        cut_texts: int,
        dropped_tokens: int,
    ) -> None:
        # The base class and the read-only flag are part of a kernel's type: one for all stores means that
        # each kernel is compiled once.
        self.tokens, self.offsets = np.asarray(tokens), np.asarray(offsets)
        self.tokens.flags.writeable = self.offsets.flags.writeable = False
        self.lexicon = lexicon
        self.cut_texts, self.dropped_tokens = cut_texts, dropped_tokens
        self._origin: tuple[Path, str] | None = None

    @classmethod
    def build(
        cls,
        texts: Iterable[str],
        tokenizer: Tokenizer,
        folder: Path,
        fingerprint: str,
        *,
        max_tokens: int = 512,
    ) -> TokenStore:
        """Tokenise texts into a folder and open it; only open it if it is there.

        Time is linear in the texts; memory holds the lexicon and one block.

        Args:
            texts: n texts; read once.
            tokenizer: what cuts them.
            folder: where the store goes. Processes that build the same one wait for the first.
            fingerprint: identifies texts, tokenizer and max_tokens; must change when one of them does.
            max_tokens: tokens kept of a text; further ones are dropped and counted.

        Raises:
            InputError: the folder can't be written, or holds a damaged store or one of another fingerprint.
        """
        with lock(folder):
            if not is_whole(folder, fingerprint):
                with new_folder(folder, fingerprint) as partial:
                    _write(texts, tokenizer, partial, max_tokens)
        return cls.open(folder, fingerprint)

    @classmethod
    def open(cls, folder: Path, fingerprint: str) -> TokenStore:
        """Open what `build` built with the same fingerprint.

        Every byte is checked against the manifest (about a second per GB): a wrong number would make the
        kernels read anywhere. What was read stays in the system's cache, where the training needs it.

        Raises:
            InputError: there is no store, or a damaged one, or one of another fingerprint.
        """
        check_folder(folder, fingerprint, contents=True)
        cut = json.loads((folder / "cut.json").read_text())
        tokens, offsets = _map(folder / "tokens.npy"), _map(folder / "offsets.npy")
        store = cls(tokens, offsets, _read_lexicon(folder), cut["texts"], cut["tokens"])
        store._origin = (folder, fingerprint)
        return store

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: Tokenizer, *, max_tokens: int = 512) -> TokenStore:
        """Tokenise in memory: for a prediction's texts."""
        lexicon = Lexicon()
        cutter = _Cutter(max_tokens)
        rows = list(cutter.cut(tokenizer.encode(texts, lexicon)))
        tokens = np.fromiter(chain.from_iterable(rows), dtype=np.int32)
        return cls(tokens, offsets_of([*map(len, rows)]), list(lexicon), cutter.texts, cutter.tokens)

    def __len__(self) -> int:
        """The number of texts."""
        return len(self.offsets) - 1

    @property
    def is_kept(self) -> bool:
        """Whether the store is on the disk, and not in memory only."""
        return self._origin is not None

    @property
    def part(self) -> Part:
        """Name and fingerprint of its folder; of a store on the disk."""
        if self._origin is None:
            raise ValueError("the texts were tokenised in memory: they have no folder")
        return self._origin[0].name, self._origin[1]

    def words(self, row: int) -> list[str]:
        """The tokens of one text."""
        return [self.lexicon[number] for number in self.tokens[self.offsets[row] : self.offsets[row + 1]]]

    def counts(self) -> NDArray[np.int64]:
        """int64 [len(lexicon)]: how often each token occurs."""
        counts = np.zeros(len(self.lexicon), dtype=np.int64)
        for start in range(0, len(self.tokens), _BLOCK):
            counts += np.bincount(self.tokens[start : start + _BLOCK], minlength=len(counts))
        return counts

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that is spawned (not forked) gets its data set pickled: let it map the same files.
        if self._origin:
            return TokenStore.open, self._origin
        return TokenStore, (self.tokens, self.offsets, self.lexicon, self.cut_texts, self.dropped_tokens)


def word_counts(stores: Iterable[TokenStore]) -> Counter[str]:
    """How often each word occurs in the texts of all stores."""
    counts: Counter[str] = Counter()
    for store in stores:
        counts.update(dict(zip(store.lexicon, store.counts().tolist(), strict=True)))
    return counts


class _Cutter:
    """Cuts long texts and counts what it cuts."""

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 1:
            raise InputError(f"max_tokens={max_tokens}: must be at least 1")
        self.max_tokens, self.texts, self.tokens = max_tokens, 0, 0

    def cut(self, rows: Iterable[list[int]]) -> Iterator[list[int]]:
        for row in rows:
            if len(row) > self.max_tokens:
                self.texts += 1
                self.tokens += len(row) - self.max_tokens
                del row[self.max_tokens :]
            yield row


def _write(texts: Iterable[str], tokenizer: Tokenizer, folder: Path, max_tokens: int) -> None:
    lexicon = Lexicon()
    cutter = _Cutter(max_tokens)
    lengths: list[int] = []
    total = len(texts) if isinstance(texts, Sequence) else None
    bar = tqdm(texts, "tokenising", total, delay=3, unit=" texts", disable=None)
    with ArrayWriter(folder / "tokens.npy", np.int32) as writer:
        block: list[int] = []
        for row in cutter.cut(tokenizer.encode(bar, lexicon)):
            block += row
            lengths.append(len(row))
            if len(block) >= _BLOCK:
                writer.write(np.array(block, dtype=np.int32))
                block.clear()
        writer.write(np.array(block, dtype=np.int32))
    np.save(folder / "offsets.npy", offsets_of(lengths))
    # A word may hold any code point, a line break or half a surrogate pair included, so the boundaries are
    # kept aside, in characters.
    (folder / "lexicon.utf8").write_bytes("".join(lexicon).encode("utf-8", "surrogatepass"))
    np.save(folder / "lexicon_offsets.npy", offsets_of([*map(len, lexicon)]))
    (folder / "cut.json").write_text(json.dumps({"texts": cutter.texts, "tokens": cutter.tokens}))


def _map(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _read_lexicon(folder: Path) -> list[str]:
    characters = (folder / "lexicon.utf8").read_bytes().decode("utf-8", "surrogatepass")
    offsets = np.load(folder / "lexicon_offsets.npy").tolist()
    return [characters[start:end] for start, end in pairwise(offsets)]
