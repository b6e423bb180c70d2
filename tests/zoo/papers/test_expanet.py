"""ExpaNet and MemNet: the papers' equations as plain loops over numbers in float64, hard attention, runs, options."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

import zoo
from datamodules import ClassificationDataModule
from datamodules.batch import ClassificationBatch, ClassificationSpec
from datamodules.core.errors import InputError
from tests.zoo.conftest import QUIET_TRAINER, Zoo, done, read_jsonl, sentences, trainer, write_table
from tests.zoo.papers.test_knn_bilstm import CLASSES, B, K, U, make_batch
from tests.zoo.plain import Vector, enlarge, numbers, sigmoid, softmax
from zoo import ExpaNet, MemNet
from zoo.expanet import MemoryNetwork, drawn_weights
from zoo.layers.bags import bigram_buckets
from zoo.layers.vote import masked_softmax
from zoo.tasks.model import Given

LABELS = [str(c) for c in range(CLASSES)]


def make_network(
    kind: type[MemNet] = ExpaNet, memory_labels: list[str] | None = None, **options: Any
) -> MemoryNetwork:
    spec = ClassificationSpec(U, 0, LABELS, LABELS if memory_labels is None else memory_labels, K)
    torch.manual_seed(0)
    network = kind(word_size=5, **options).build_network(Given(spec))
    enlarge(network)
    return network.eval()


def plain_text(weights: dict[str, Vector], part: str, batch: ClassificationBatch, text: list[int]) -> Vector:
    """Equations 1 and 2, with pairs of neighboring words as further words of a text."""
    tied = f"{part}.words.table" not in weights
    ids = [int(batch.word[position]) for position in text if position != 0]
    vectors = [weights["text.words.table" if tied else f"{part}.words.table"][i] for i in ids]
    if (pairs := weights.get(f"{part}.bigrams.table")) is not None:
        for first, second in itertools.pairwise(ids):
            pair = torch.tensor([0, first, second]), torch.tensor([[1, 2]])
            vectors.append(pairs[int(bigram_buckets(*pair, len(pairs) - 1))])
    return np.mean(vectors, axis=0)


def plain_gru(weights: dict[str, Vector], q: Vector, o: Vector) -> Vector:
    """Equations 8 to 11."""
    wz, wr, w = np.split(weights["expand.of_text.weight"], 3)
    uz, ur, u = np.split(weights["expand.of_memories.weight"], 3)
    z, r = sigmoid(wz @ q + uz @ o), sigmoid(wr @ q + ur @ o)
    return (1 - z) * q + z * np.tanh(w @ q + r * (u @ o))


def plain_forward(
    network: MemoryNetwork, batch: ClassificationBatch, row: int, hard: bool = False
) -> tuple[Vector, Vector]:
    """A text's logits, and the attention of each hop on its K memories."""
    weights, mask = numbers(network), batch.memory_mask[row].numpy()
    q = expanded = plain_text(weights, "text", batch, batch.text[row].tolist())
    keys, values = np.zeros((K, 5)), np.zeros((K, 5))
    for k in np.flatnonzero(mask):
        text, target = batch.memory_text[batch.memory[row, k]].tolist(), int(batch.memory_target[row, k])
        label = weights["label"][target] if network.label is not None and target >= 0 else 0
        parts = ("memory", "memory" if network.output is None else "output")
        keys[k], values[k] = (plain_text(weights, part, batch, text) + label for part in parts)
    attention = np.zeros((network.hops, K))
    for of_hop in attention:
        energies = keys @ expanded
        if network.score_power:
            scores = batch.memory_score[row].double().numpy()
            energies += network.score_power * np.log(np.maximum(1e-3, scores / max(1e-6, scores.max())))
        if hard and mask.any():
            of_hop[np.where(mask, energies, -np.inf).argmax()] = 1
        elif mask.any():
            of_hop[mask] = softmax(energies[mask])
        o = of_hop @ values
        expanded = plain_gru(weights, expanded, o) if network.expand is not None else expanded + o
    head = weights["classifier.weight"]
    return head @ (expanded if network.expand is None else np.concatenate([q, expanded])), attention


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ExpaNet, {"hops": 0}),
        (ExpaNet, {"hops": 1}),
        (ExpaNet, {"hops": 4, "label_vectors": True, "bigrams": 30}),
        (ExpaNet, {"hops": 2, "tie_matrices": True, "bigrams": 30}),
        (ExpaNet, {"hops": 2, "score_power": 1.5, "text_dropout": 0.9}),
        (ExpaNet, {"hops": 2, "read": "hard"}),
        (MemNet, {"hops": 0}),
        (MemNet, {"hops": 3}),
        (MemNet, {"hops": 2, "tie_matrices": True, "label_vectors": True}),
    ],
)
def test_equations(kind: type[MemNet], options: dict[str, Any]) -> None:
    network, batch = make_network(kind, **options), make_batch()
    with torch.no_grad():
        output = network(batch)
    for row in range(B):
        logits, attention = plain_forward(network, batch, row, options.get("read") == "hard")
        np.testing.assert_allclose(output.logits[row], logits, rtol=1e-4, atol=1e-5)
        if options["hops"]:
            np.testing.assert_allclose(output.hop_weight[row], attention, rtol=1e-4, atol=1e-6)
            mean = attention.mean(axis=0)
            np.testing.assert_allclose(output.memory_weight[row], mean, rtol=1e-4, atol=1e-6)


def test_text_dropout_hides_the_text_from_the_classifier_but_not_from_the_attention() -> None:
    network, batch = make_network(hops=1, text_dropout=0.999999), make_batch()
    shown = network(batch)
    network.train()
    hidden = network(batch)
    torch.testing.assert_close(hidden.hop_weight, shown.hop_weight)
    has_memory = batch.memory_mask.any(dim=1)
    assert has_memory.any()
    assert not has_memory.all()
    # A text without memories has no other features.
    assert hidden.logits[has_memory].any(dim=1).all()
    assert not hidden.logits[~has_memory].any()
    assert shown.logits.any(dim=1).all()


def test_matrices() -> None:
    """A and B are two unless they are tied; MemNet sums by a third; without hops, nothing reads memories."""

    def names(network: MemoryNetwork) -> list[str]:
        return [name for name, _ in network.named_parameters()]

    expected = ["text.words.table", "memory.words.table"]
    assert [name for name in names(make_network()) if name.endswith("table")] == expected
    tied = names(make_network(tie_matrices=True))
    assert [name for name in tied if name.endswith("table")] == ["text.words.table"]
    expected = ["text.words.table", "memory.words.table", "output.words.table", "classifier.weight"]
    assert names(make_network(MemNet)) == expected
    assert names(make_network(hops=0)) == ["text.words.table", "classifier.weight"]


def test_initial_vectors_have_the_papers_deviation() -> None:
    spec = ClassificationSpec(3000, 0, LABELS, LABELS, K)
    torch.manual_seed(0)
    network = ExpaNet(word_size=100, label_vectors=True, bigrams=3000).build_network(Given(spec))
    for name in ("text.words", "memory.words", "text.bigrams"):
        table = network.get_submodule(name).table.detach()
        assert not table[0].any()
        assert float(table[1:].std()) == pytest.approx(0.1, rel=0.02)


def test_pretrained_vectors_start_every_matrix() -> None:
    spec = ClassificationSpec(U, 0, LABELS, LABELS, K)
    vectors = torch.randn(U, 5)
    network = ExpaNet(train_word_vectors=True).build_network(Given(spec, vectors))
    assert torch.equal(network.text.words.table, vectors)
    assert torch.equal(network.memory.words.table, vectors)
    assert network.memory.words.table is not network.text.words.table


def test_hard_training_draws_memories_by_their_attention() -> None:
    """Each memory wins with its soft attention, whatever the temperature."""
    energy = torch.tensor([[0.3, -0.5, 1.1, 0.0]])
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, True, False]])
    drawn = drawn_weights(energy.expand(20_000, 4), mask.expand(20_000, 4), 0.7, True).mean(dim=0)
    torch.testing.assert_close(drawn, masked_softmax(energy, mask)[0], atol=0.015, rtol=0)


def test_hard_training_mixes_more_at_a_higher_temperature() -> None:
    energy, mask = torch.zeros(5000, 6), torch.ones(5000, 6, dtype=torch.bool)
    largest = []
    for tau in (0.05, 0.5, 2.0, 50.0):
        torch.manual_seed(0)
        weights = drawn_weights(energy, mask, tau, straight_through=False)
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(5000))
        largest.append(float(weights.amax(dim=1).mean()))
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 0.95
    assert largest[-1] == pytest.approx(1 / 6, abs=0.02)


def test_straight_through_reads_one_memory_with_the_gradient_of_the_mixture() -> None:
    energy, values = torch.randn(9, 5, requires_grad=True), torch.randn(5)
    mask = torch.ones(9, 5, dtype=torch.bool)
    weights, gradients = [], []
    for straight_through in (True, False):
        torch.manual_seed(1)
        weights.append(drawn_weights(energy, mask, 1.5, straight_through))
        gradients += torch.autograd.grad((weights[-1] @ values).sum(), energy)
    torch.testing.assert_close(weights[0].detach().amax(dim=1), torch.ones(9))
    assert torch.equal((weights[0].detach() > 0.5).sum(dim=1), torch.ones(9, dtype=torch.long))
    torch.testing.assert_close(gradients[0], gradients[1])


def make_data(folder: Path, **options: Any) -> ClassificationDataModule:
    given: dict[str, Any] = {
        "train_file": str(write_table(folder / "train.csv", sentences(90, seed=3))),
        "validation_split": 0.2,
        "num_memories": 4,
        "batch_size": 16,
        "characters": False,
        **options,
    }
    return ClassificationDataModule(**given)


def fit(model: MemNet, data: ClassificationDataModule, folder: Path, **options: Any) -> pl.Trainer:
    run: pl.Trainer = trainer(folder, **{"max_epochs": 1, **options})
    run.fit(model, datamodule=data)
    return run


def test_the_temperature_falls_by_the_same_factor_in_each_step(tmp_path: Path) -> None:
    temperatures = []

    class Temperatures(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
            temperatures.append(pl_module.network.tau)

    model = ExpaNet(word_size=6, read="hard", tau=2.0, final_tau=0.5)
    steps = fit(model, make_data(tmp_path), tmp_path, max_epochs=2, callbacks=[Temperatures()]).global_step
    assert steps == 10
    assert temperatures == pytest.approx([2.0 * 0.25 ** (step / steps) for step in range(steps)])


def test_attention_by_rank_is_logged(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    model = ExpaNet(word_size=6, hops=2, log_attention=True)
    figures = fit(model, data, tmp_path).callback_metrics
    batch = data.dataset(data.split("validation")).__getitems__(range(len(data.split("validation").rows)))
    with torch.no_grad():
        weights = model.eval()(batch).hop_weight
    for hop in (1, 2):
        for rank in range(1, 5):
            expected = weights[:, hop - 1, rank - 1].double().sum() / batch.memory_mask[:, rank - 1].sum()
            logged = float(figures[f"val/hop{hop}_attention@{rank}"])
            assert logged == pytest.approx(float(expected), rel=1e-5)
    assert "val/hop1_attention@1" not in fit(ExpaNet(word_size=6), data, tmp_path).callback_metrics


def test_predictions_have_the_weights_of_each_hop(zoo_command: Zoo, train_csv: Path, tmp_path: Path) -> None:
    model = ["--model=ExpaNet", "--model.hops=3", "--model.word_size=8", "--model.label_vectors=true"]
    data = ["--data=ClassificationDataModule", "--data.num_memories=4", "--data.characters=false"]
    table = f"--data.train_file={train_csv}"
    done(zoo_command("fit", *model, *data, table, *QUIET_TRAINER, "--trainer.max_epochs=1", "--run_dir=run"))
    texts = ["the iron of some gold", "words without any memory"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    done(zoo_command("predict", "--ckpt_path=run", "--input=texts.txt", "--output=predictions.jsonl"))
    records = read_jsonl("predictions.jsonl")
    predictions = zoo.load("run").predict(texts)
    memories = predictions[0].memories
    assert len(memories) == 4
    for hop in range(3):
        assert sum(memory.hop_weights[hop] for memory in memories) == pytest.approx(1, abs=1e-5)
    for memory, record in zip(memories, records[0]["memories"], strict=True):
        assert all(type(weight) is float for weight in memory.hop_weights)
        assert memory.weight == pytest.approx(sum(memory.hop_weights) / 3, abs=1e-6)
        assert record["hop_weights"] == memory.hop_weights
        assert record["weight"] == memory.weight
    assert predictions[1].memories == records[1]["memories"] == []


def test_labels_of_memories_without_labels_are_refused() -> None:
    with pytest.raises(InputError, match=r"model\.label_vectors: the memories have no labels"):
        make_network(label_vectors=True, memory_labels=[])
