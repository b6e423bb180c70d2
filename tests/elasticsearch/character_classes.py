"""Finds the classes of characters by which Lucene's tokenizer cuts texts, from a real server.

    ELASTICSEARCH_URL=http://localhost:9200 python -m tests.elasticsearch.character_classes

Each character is put into many contexts; those that are cut alike in all of them are one class. The file of the
embedded retriever is written (a minute), and differs only if the server's Lucene knows another Unicode.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import numpy as np
from tqdm import tqdm

from datamodules.retrieval.embedded import analysis

FILE = Path(analysis.__file__).with_name("character_classes.txt")
#: Class -> one of its characters; all others are `-`.
CLASSES = {
    "L": "a", "H": "א", "W": "한", "K": "カ", "G": "あ", "C": "世", "S": "ก", "s": "\u0e31", "N": "\u0660", "D": "1",
    "J": "_", ":": ":", ".": ".", "'": "'", '"': '"', ",": ",", "x": "\u0301", "z": "\u200d", "E": "❤", "O": "Ⓜ",
    "M": "\U0001f3fb", "R": "\U0001f1e9", "#": "#", "k": "\u20e3", "t": "\ufe0e", "T": "\ufe0f",
}  # fmt: skip
#: All that may have a class but surrogates and the blank, which separates contexts: later planes have none.
CHARACTERS = [
    c for c in (*range(1, 0x34000), *range(0xE0000, 0xE1000)) if not 0xD800 <= c < 0xE000 and c != 32
]
#: In contexts, the place of the character.
PLACE = "\0"
CONTEXTS = [
    PLACE, PLACE * 2, PLACE * 3,
    *(each + PLACE for each in CLASSES.values()),
    *(PLACE + each for each in CLASSES.values()),
    *(a + PLACE + b for a, b in ("aa", "11", "אא", "カカ", "1a", "a1", "__", "世世", "ああ", "한한", "กก", "aカ")),
    *(f"❤\u200d{PLACE}", f"{PLACE}\u200d❤", f"☝{PLACE}\U0001f3fb", f"{PLACE}\ufe0f\u20e3", f"1{PLACE}\u20e3"),
    *(f"\U0001f1e9{PLACE}\U0001f1ea", f"❤{PLACE}\ufe0f", f'א"{PLACE}', f'{PLACE}"א', f"a.{PLACE}", f"1,{PLACE}"),
    *(f"{PLACE}.a", f"{PLACE},1", f"_{PLACE}\u20e3"),
]  # fmt: skip


class Token(NamedTuple):
    """A token of a text, with its place in characters and Lucene's name of its kind."""

    start: int
    end: int
    kind: str


def tokens_of(url: str, texts: Sequence[str]) -> Iterator[list[Token]]:
    """Ask a server for the tokens of texts without blanks, of which some thousands fit into a request."""
    joined = " ".join(texts)
    body = json.dumps({"tokenizer": "standard", "text": joined}).encode()
    with urlopen(Request(f"{url}/_analyze", body, {"Content-Type": "application/json"})) as answer:
        found = json.load(answer)["tokens"]
    # The server counts UTF-16 units.
    characters = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    units = np.concatenate([[0], np.cumsum(1 + (characters > 0xFFFF))])
    starts = np.searchsorted(units, [token["start_offset"] for token in found]).tolist()
    ends = np.searchsorted(units, [token["end_offset"] for token in found]).tolist()
    place, begin = 0, 0
    for text in texts:
        own = []
        while place < len(found) and starts[place] < begin + len(text):
            own.append(Token(starts[place] - begin, ends[place] - begin, found[place]["type"]))
            place += 1
        yield own
        begin += len(text) + 1


def classes_of_server(url: str) -> dict[str, list[int]]:
    """Class -> its characters in order."""
    cuts: dict[int, int] = defaultdict(int)
    for context in tqdm(CONTEXTS):
        for start in range(0, len(CHARACTERS), 2000):
            some = CHARACTERS[start : start + 2000]
            for character, cut in zip(
                some, tokens_of(url, [context.replace(PLACE, chr(c)) for c in some]), strict=True
            ):
                cuts[character] = hash((cuts[character], *cut))
    by_cut: dict[int, list[int]] = defaultdict(list)
    for character in CHARACTERS:
        by_cut[cuts[character]].append(character)
    classes = {name: by_cut.pop(cuts[ord(example)]) for name, example in CLASSES.items()}
    if list(by_cut) != [cuts[1]]:
        raise SystemExit(f"{len(by_cut) - 1} classes of the server are unknown here: {list(by_cut.values())}")
    return classes


def ranges_of(characters: Sequence[int]) -> Iterator[str]:
    """Hexadecimal ranges `first-last`, or single numbers, of sorted numbers."""
    numbers = np.array(characters)
    for part in np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1):
        yield f"{part[0]:x}" if len(part) == 1 else f"{part[0]:x}-{part[-1]:x}"


def main() -> None:
    classes = classes_of_server(os.environ["ELASTICSEARCH_URL"])
    lines = [" ".join([name, *ranges_of(characters)]) for name, characters in classes.items()]
    FILE.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


if __name__ == "__main__":
    main()
