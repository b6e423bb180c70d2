from itertools import pairwise

import numpy as np
import pytest

from datamodules.text.counts import count_tokens


@pytest.mark.parametrize("seed", range(5))
def test_counts_equal_plain_python(seed: int) -> None:
    random = np.random.default_rng(seed)
    offsets = np.cumsum([0, *random.integers(0, 9, 40)])
    tokens = random.integers(0, 12, offsets[-1]).astype(np.int32)
    texts, occurrences = count_tokens(tokens, offsets, 15)
    rows = [tokens[start:end].tolist() for start, end in pairwise(offsets)]
    assert texts.tolist() == [sum(token in row for row in rows) for token in range(15)]
    assert occurrences.tolist() == [sum(row.count(token) for row in rows) for token in range(15)]
    assert (texts.dtype, occurrences.dtype) == (np.int64, np.int64)


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_no_tokens(offsets: list[int]) -> None:
    for counts in count_tokens(np.zeros(0, np.int32), np.array(offsets), 2):
        assert counts.tolist() == [0, 0]
