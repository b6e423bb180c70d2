"""CharCNN, CharCRNN and VDCNN against plain versions over one text at a time, and against the papers' sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from datamodules.batch import ClassificationBatch, ClassificationSpec
from tests.zoo.baselines.helpers import network_of, with_short_texts
from zoo.baselines import character_networks as networks
from zoo.tasks.model import Given


@pytest.fixture
def made(adapters: Any) -> tuple[ClassificationSpec, ClassificationBatch]:
    """Texts of which one has an unknown character, too."""
    spec, batch = with_short_texts(adapters("classification of characters"))
    word = batch.word.clone()
    word[batch.text[4, 1]] = 1
    return spec, batch._replace(word=word)


def spec_of(num_chars: int, num_classes: int = 4) -> ClassificationSpec:
    labels = [str(number) for number in range(num_classes)]
    return ClassificationSpec(num_chars + networks.RESERVED, 0, labels, [], 0)


def ids_of(batch: ClassificationBatch) -> list[list[int]]:
    return [batch.word[text[text != 0]].tolist() for text in batch.text]


def empty_network_of(model: Any, spec: ClassificationSpec) -> Any:
    """A network whose weights have shapes and no values."""
    with torch.device("meta"):
        return model.build_network(Given(spec))


def numbers_in(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_char_cnn_is_plain_on_a_reversed_frame(made: tuple[ClassificationSpec, ClassificationBatch]) -> None:
    spec, batch = made
    network = network_of(networks.CharCNN(length=130, filters=5, hidden_size=7), spec)
    layers: list[nn.Module] = []
    for convolution, pooling in zip(network.convolutions, (3, 3, 0, 0, 0, 3), strict=True):
        layers += [convolution, nn.ReLU(), *([nn.MaxPool1d(pooling)] if pooling else [])]
    plain = nn.Sequential(*layers, nn.Flatten(), network.first, nn.ReLU(), network.second, nn.ReLU())
    expected = []
    for ids in ids_of(batch):
        frame = torch.zeros(1, spec.num_words - 2, 130)
        for position, number in enumerate(reversed(ids)):
            if number >= 2:
                frame[0, number - 2, position] = 1
        expected.append(plain(frame)[0])
    torch.testing.assert_close(network.encode_texts(batch), torch.stack(expected))
    assert 1 in ids_of(batch)[4]


def test_char_cnn_has_the_papers_sizes() -> None:
    # Section 2.3: (1014 - 96) / 27 frames; Tables 1 and 2, an alphabet of 70 (Section 2.2).
    assert networks.remaining_length(1014) == 34
    for filters, hidden in ((256, 1024), (1024, 2048)):
        network = empty_network_of(networks.CharCNN(filters=filters, hidden_size=hidden), spec_of(70))
        convolutions = (70 * 7 + 1) * filters + (filters * 7 + 1) * filters + 4 * (filters * 3 + 1) * filters
        linear = (34 * filters + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * 4
        assert numbers_in(network) == convolutions + linear
    assert convolutions + linear == pytest.approx(95.9e6, rel=0.01)


def plain_pool(states: Tensor) -> Tensor:
    """Max pooling by 2 of states [F, T]; the last of an odd number stays."""
    return functional.max_pool1d(states[None], 2, ceil_mode=True)[0]


def test_char_crnn(made: tuple[ClassificationSpec, ClassificationBatch]) -> None:
    spec, batch = made
    network = network_of(networks.CharCRNN(windows=(5, 2), filters=6, hidden_size=4), spec)
    lstm = nn.LSTM(6, 4, bidirectional=True)
    lstm.load_state_dict(network.lstm.state_dict())
    expected = []
    for ids in ids_of(batch):
        if not ids:
            expected.append(torch.zeros(8))
            continue
        states = network.characters(torch.tensor(ids)).T  # [size, T]
        for convolution, sides in zip(network.convolutions, ((2, 2), (0, 1)), strict=True):
            states = plain_pool(convolution(functional.pad(states, sides)).relu())
        expected.append(lstm(states.T)[1][0].flatten())
    torch.testing.assert_close(network.encode_texts(batch), torch.stack(expected))


@pytest.mark.parametrize(("filters", "millions"), [(128, 0.3), (1024, 20)])
def test_char_crnn_has_the_papers_sizes(filters: int, millions: float) -> None:
    # Table 3: C2R1D128 and C2R1D1024; an alphabet of 96.
    network = empty_network_of(networks.CharCRNN(filters=filters, hidden_size=filters), spec_of(96))
    assert numbers_in(network) / 1e6 == pytest.approx(millions, rel=0.07)


def test_vdcnn(made: tuple[ClassificationSpec, ClassificationBatch]) -> None:
    spec, batch = made
    network = network_of(networks.VDCNN(depth=17, filters=3, hidden_size=5), spec)
    for name, buffer in network.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    expected = [plain_vdcnn(network, ids) for ids in ids_of(batch)]
    torch.testing.assert_close(network.encode_texts(batch), torch.stack(expected))


def plain_vdcnn(network: Any, ids: list[int]) -> Tensor:
    pooled = torch.zeros(24, networks.K)
    if ids:
        states = network.lowest(network.characters(torch.tensor(ids)).T)
        for number, block in enumerate(network.blocks):
            if number in (2, 4, 6):
                states = functional.max_pool1d(states[None], 3, 2, 1)[0]
            for convolution, norm in zip(block.convolutions, block.norms, strict=True):
                states = convolution(states)
                scale = norm.weight / (norm.running_var + norm.eps).sqrt()
                states = (states - norm.running_mean[:, None]) * scale[:, None] + norm.bias[:, None]
                states = states.relu()
        for row, values in enumerate(states.tolist()):
            kept = sorted(range(len(values)), key=lambda position: -values[position])[: networks.K]
            pooled[row, : len(kept)] = torch.tensor([values[position] for position in sorted(kept)])
    return network.second_hidden(network.hidden(pooled.flatten()).relu()).relu()


@pytest.mark.parametrize("depth", [9, 17, 29, 49])
def test_vdcnn_has_the_papers_depths(depth: int) -> None:
    network = empty_network_of(networks.VDCNN(depth=depth), spec_of(69))
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv1d)]
    assert len(convolutions) == depth
    # Section 3.3: 4096 x 2048 and 2048 x 2048.
    assert network.hidden.weight.shape == (2048, 4096)
    assert network.second_hidden.weight.shape == (2048, 2048)


def test_batch_statistics_are_those_of_real_positions() -> None:
    torch.manual_seed(1)
    states, lengths = torch.randn(3, 4, 6), torch.tensor([6, 2, 0])
    real = torch.arange(6) < lengths[:, None]
    norm, plain = networks.RealBatchNorm(4), nn.BatchNorm1d(4)
    normalized = norm(states, real).transpose(1, 2)
    torch.testing.assert_close(normalized[real], plain(states.transpose(1, 2)[real]))
    assert not normalized[~real].any()
    torch.testing.assert_close(norm.running_var, plain.running_var)
    # One position has no variance.
    assert norm(states, real & (torch.arange(18).view(3, 6) == 0)).isfinite().all()


def test_of_equal_values_the_first_are_kept() -> None:
    states = torch.zeros(1, 1, 20)
    states[0, 0, 15] = 3
    real = torch.ones(1, 20, dtype=torch.bool)
    assert networks.k_max_pool(states, real)[0, 0].tolist() == [0, 0, 0, 0, 0, 0, 0, 3]
    real[0, 16:] = False
    longer = (functional.pad(each, (0, 50)) for each in (states, real))
    assert torch.equal(networks.k_max_pool(*longer), networks.k_max_pool(states, real))
