"""Both modes against the transformer, for one pair or one text at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from datamodules.batch import MatchingBatch, MatchingSpec
from datamodules.core.errors import InputError
from datamodules.matching import MatchingDataModule
from tests.datamodules.checks import refused
from zoo.baselines.transformer_matcher import CrossEncoder, TransformerMatcher
from zoo.layers.encoders import positions_of
from zoo.tasks.model import Given

CLS, SEP, WORDS = 2, 3, 38
#: Token ids of texts, without and with words.
FIRST = [[5, 9, 11], [7], []]
SECOND = [[12, 5], [20, 21, 22, 23, 24], [], [8]]
PAIRS = [(0, 0), (0, 1), (1, 2), (2, 3), (2, 2), (1, 1)]
SPEC = MatchingSpec(WORDS, 0, "ranking")
every_mode = pytest.mark.parametrize("mode", ["cross", "bi"])


def make_batch(extra: int = 0, pairs: list[tuple[int, int]] = PAIRS) -> MatchingBatch:
    """The texts as in a data module: special tokens around each, words numbered within the batch."""
    order = torch.randperm(WORDS - 1, generator=torch.Generator().manual_seed(0))
    word = torch.cat([torch.tensor([0]), order + 1])
    position = {int(id): row for row, id in enumerate(word)}

    def texts(rows: list[list[int]]) -> Tensor:
        full = [torch.tensor([position[id] for id in (CLS, *row, SEP)]) for row in rows]
        return functional.pad(torch.nn.utils.rnn.pad_sequence(full, batch_first=True), (0, extra))

    first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
    number = torch.arange(len(pairs))
    return MatchingBatch(
        word=word,
        char=torch.zeros(WORDS, 0, dtype=torch.long),
        idf=torch.ones(WORDS),
        first_text=texts(FIRST),
        second_text=texts(SECOND),
        first=first,
        second=second,
        query=first,
        place=number,
        target=(number % 2).float(),
        weight=torch.ones(len(pairs)),
        row=number,
    )


def make_network(folder: Path, **options: Any) -> Any:
    torch.manual_seed(1)
    return TransformerMatcher(str(folder), **options).build_network(Given(SPEC)).eval()


def plain_vector(network: Any, ids: list[int], types: list[int]) -> Tensor:
    states: Tensor = network.encoder.transformer(
        input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])
    ).last_hidden_state[0]
    return states.mean(dim=0)


def plain_logit(network: Any, first: list[int], second: list[int]) -> Tensor:
    left, right = [CLS, *first, SEP], [*second, SEP]
    if isinstance(network, CrossEncoder):
        return network.out(plain_vector(network, left + right, [0] * len(left) + [1] * len(right)))
    vectors = [plain_vector(network, ids, [0] * len(ids)) for ids in (left, [CLS, *right])]
    return 20 * functional.cosine_similarity(*vectors, dim=0)[None]


@every_mode
def test_logits_whatever_the_padding_and_the_rest_of_the_batch(mode: str, tiny_bert: Path) -> None:
    network, batch = make_network(tiny_bert, mode=mode), make_batch()
    assert isinstance(network, CrossEncoder) == (mode == "cross")
    with torch.no_grad():
        expected = torch.stack([plain_logit(network, FIRST[i], SECOND[j]) for i, j in PAIRS])
        alone = [network(make_batch(pairs=[pair])).logits for pair in PAIRS]
        for logits in (network(batch).logits, network(make_batch(extra=3)).logits, torch.cat(alone)):
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    # Rows without even special tokens, such as those that pad a distributed evaluation.
    empty = {name: torch.zeros_like(getattr(batch, name)) for name in ("first_text", "second_text")}
    assert network(batch._replace(**empty)).logits.isfinite().all()


@every_mode
def test_every_weight_learns(mode: str, tiny_bert: Path) -> None:
    network = make_network(tiny_bert, mode=mode)
    logits = network(make_batch()).logits
    (logits[:, 0] * torch.linspace(-1, 2, len(logits))).sum().backward()
    for name, weight in network.named_parameters():
        if "pooler" in name:  # in the checkpoint, but not used
            continue
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
    # A bi-encoder reads the first segment only; a cross-encoder learns the second, too.
    types = network.encoder.transformer.embeddings.token_type_embeddings.weight.grad
    assert types[0].any()
    assert types[1].any() == (mode == "cross")


def test_restored_from_a_checkpoint(tiny_bert: Path) -> None:
    """From the configuration and the weights alone: the folder is not read."""
    network = make_network(tiny_bert, mode="cross")
    config = network.encoder.transformer.config.to_dict()
    again = TransformerMatcher("no-such-folder").build_network(Given(SPEC, None, config)).eval()
    again.load_state_dict(network.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(again(make_batch()).logits, network(make_batch()).logits)


@every_mode
def test_pairs_to_classify(mode: Any, tiny_bert: Path) -> None:
    model = TransformerMatcher(str(tiny_bert), mode=mode, loss="cross_entropy")
    network = model.build_network(Given(SPEC._replace(goal="classification")))
    assert network(make_batch()).logits.shape == (len(PAIRS), 2)


def test_impossible_options(tiny_bert: Path, tmp_path: Path) -> None:
    model = TransformerMatcher(str(tiny_bert))
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tiny_bert))
    tokenizer.save_pretrained(tmp_path / "same")
    tokenizer.add_tokens(["unknown"])
    tokenizer.save_pretrained(tmp_path / "other")

    def data_of(folder: Path, first: int, second: int) -> MatchingDataModule:
        return MatchingDataModule(tokenizer=str(folder), first_length=first, second_length=second)

    model.check_data(data_of(tmp_path / "same", 8, 8))
    with pytest.raises(InputError, match=r"not the transformer's tokens: set"):
        model.check_data(data_of(tmp_path / "other", 8, 8))
    positions = positions_of(str(tiny_bert))
    model.check_data(data_of(tiny_bert, positions // 2, positions // 2))
    more = data_of(tiny_bert, positions, 1)
    with refused(match=rf"data\.first_length \+ data\.second_length: .* {positions} tokens"):
        model.check_data(more)
    TransformerMatcher(str(tiny_bert), mode="bi").check_data(more)
    with pytest.raises(InputError, match="no-such-folder"):
        TransformerMatcher("no-such-folder").build_network(Given(SPEC))
