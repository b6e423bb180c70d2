"""MemNN and HMN: the paper's equations as plain loops, unknown words, runs on the command line."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from datamodules import DialogueDataModule, InputError
from datamodules.batch import DialogueBatch
from datamodules.dialogue import spellings_of
from tests.dialogues import made_up, write_published
from tests.zoo.conftest import QUIET_TRAINER, Zoo, done, read_jsonl, written_scores
from tests.zoo.plain import Vector, sigmoid, softmax
from zoo.hmn import normal_of
from zoo.tasks.dialogue.task import DialogueScores, turns_with_answer
from zoo.tasks.model import Given


def make_model(kind: Any, data: DialogueDataModule, **options: Any) -> Any:
    torch.manual_seed(3)
    model = kind(**{"word_size": 6, **options})
    model._build(Given(data.spec))
    for weight in model.parameters():
        weight.data.normal_(std=0.7)  # so that attention differs between positions
    return model.double().eval()


class Plain:
    """The paper's network in loops over numbers, for one question."""

    def __init__(self, model: Any, batch: DialogueBatch, row: int) -> None:
        self.model, self.batch, self.row = model, batch, row
        self.weights = {name: w.detach().numpy() for name, w in model.network.named_parameters()}
        self.d, self.hops = model.word_size, model.hops
        self.dialogue = int(batch.dialogue[row])
        self.num_words = model.spec.num_words
        words: dict[int, list[int]] = {}
        for position, word in enumerate(batch.text[self.dialogue].tolist()):
            if word:
                words.setdefault(int(batch.turn[self.dialogue, position]), []).append(position)
        #: positions of the words of each turn.
        self.turns = [words[i] for i in range(int(batch.readable[row].sum()))]

    def word(self, position: int) -> int:
        return int(self.batch.text[self.dialogue, position])

    def vector(self, word: int, table: int) -> Vector:
        """A x, C_1 x, ...: of a row of the batch's table of words."""
        columns = slice(table * self.d, (table + 1) * self.d)
        seed = self.batch.spelling[word : word + 1]
        if int(seed) == 0:
            return self.weights["sentences.words.table"][int(self.batch.word[word])][columns]
        drawn = normal_of(seed, (self.hops + 1) * self.d).double().numpy()[0]
        return 0.1 * self.weights["sentences.words.scale"][table] * drawn[columns]

    def encoded(self, words: list[int], table: int) -> Vector:
        """Equation 1, and the sums of Equations 2 and 3."""
        encoded = np.zeros(self.d)
        for j, word in enumerate(words, 1):
            for g in range(1, self.d + 1):
                weight = (1 - j / len(words)) - (g / self.d) * (1 - 2 * j / len(words))
                encoded[g - 1] += weight * self.vector(word, table)[g - 1]
        return encoded

    def memory(self, turn: int, table: int) -> Vector:
        memory = self.encoded([self.word(position) for position in self.turns[turn]], table)
        if self.model.temporal_encoding:
            index = len(self.turns) - 1 - turn  # 0 = the latest
            memory = memory + self.weights["sentences.time"][index, table * self.d : (table + 1) * self.d]
        return memory

    def read(self) -> tuple[Vector, Vector, Vector]:
        """u_R, o_R + u_R and the last alpha (Equation 4)."""
        question = [word for word in self.batch.question[self.row].tolist() if word]
        probe = u = self.encoded(question, 0)
        alpha = np.zeros(len(self.turns))
        for hop in range(self.hops):
            probe = u
            alpha = softmax(np.array([self.memory(i, hop) @ probe for i in range(len(self.turns))]))
            u = probe + sum(alpha[i] * self.memory(i, hop + 1) for i in range(len(self.turns)))
        return probe, u, alpha

    def p_sentence(self, output: Vector) -> Vector:
        """Equation 5: of the vocabulary's words but the first two, then of the dialogue's own."""
        table = self.weights["sentences.words.table"][2:, self.hops * self.d :]
        own = [word for word in self.batch.own[self.dialogue].tolist() if word]
        energy = [row @ output for row in table] + [self.vector(word, self.hops) @ output for word in own]
        return softmax(np.array(energy))

    def states(self) -> list[Vector]:
        """m_t of all words of the dialogue."""
        inputs = [self.vector(self.word(position), self.hops) for turn in self.turns for position in turn]
        kind = self.model.word_memory
        if kind == "embedding":
            return inputs
        forward = self.gru(inputs, "")
        if kind == "gru":
            return forward
        backward = self.gru(inputs[::-1], "_reverse")[::-1]
        return [sum(states) for states in zip(forward, backward, strict=True)]

    def gru(self, inputs: list[Vector], ending: str) -> list[Vector]:
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        w, u, b, c = (self.weights[f"word_memory.gru.{name}{ending}"] for name in names)
        h, states = np.zeros(self.d), []
        for x in inputs:
            of_input, of_state = np.split(w @ x + b, 3), np.split(u @ h + c, 3)
            r, z = sigmoid(of_input[0] + of_state[0]), sigmoid(of_input[1] + of_state[1])
            h = (1 - z) * np.tanh(of_input[2] + r * of_state[2]) + z * h
            states.append(h)
        return states

    def p_word(self, probe: Vector, alpha: Vector) -> dict[int, float]:
        """Equations 6 and 7 over the k sentences of the largest alpha: choice -> probability."""
        kept = np.argsort(-alpha, kind="stable")[: self.model.k]
        positions = [position for turn in kept for position in self.turns[turn]]
        states, v = self.states(), self.weights["word_memory.v"]
        big_w, big_u = (self.weights[f"word_memory.{name}.weight"] for name in ("probe", "memory"))
        energy = [v @ np.tanh(big_w @ probe + big_u @ states[position]) for position in positions]
        probabilities: dict[int, float] = {}
        for position, weight in zip(positions, softmax(np.array(energy)), strict=True):
            choice = int(self.batch.choice[self.dialogue, position])
            probabilities[choice] = probabilities.get(choice, 0.0) + float(weight)
        return probabilities


@pytest.mark.parametrize("word_memory", ["bigru", "gru", "embedding"])
@pytest.mark.parametrize(
    "options", [{}, {"hops": 1, "k": 1}, {"temporal_encoding": False, "k": 9}], ids=["", "one-hop", "no-time"]
)
def test_hmn_equals_the_equations(adapters: Any, word_memory: str, options: dict[str, Any]) -> None:
    data, batch = adapters("dialogue").data, adapters("dialogue").batch
    model = make_model(zoo.HMN, data, word_memory=word_memory, **options)
    output = model(batch)
    choices = output.choices()
    # MemNN is HMN without a memory of words.
    memnn = make_model(zoo.MemNN, data, **{name: value for name, value in options.items() if name != "k"})
    memnn.network.sentences.load_state_dict(model.network.sentences.state_dict())
    assert torch.equal(memnn(batch).choices()["sentence"], choices["sentence"])
    assert batch.spelling.any()
    for row in range(len(batch.row)):
        plain = Plain(model, batch, row)
        probe, vector, alpha = plain.read()
        np.testing.assert_allclose(output.attention[row, : len(alpha)].detach(), alpha, atol=1e-12)
        expected = plain.p_sentence(vector)
        sentence = choices["sentence"][row, 2 : 2 + len(expected)].detach()
        np.testing.assert_allclose(sentence, expected, atol=1e-12)
        words = np.zeros(choices["word"].shape[1])
        for choice, probability in plain.p_word(probe, alpha).items():
            words[choice] = probability
        np.testing.assert_allclose(choices["word"][row].detach(), words, atol=1e-12)
        joint = (choices["sentence"] + choices["word"]) / 2
        assert torch.equal(choices["joint"], joint)


def test_the_losses_equal_the_equations_and_a_term_for_the_right_turns(adapters: Any) -> None:
    data, batch = adapters("dialogue").data, adapters("dialogue").batch
    batch = batch._replace(answer=batch.answer.clone())
    batch.answer[0] = -1
    for loss in ("joint", "each"):
        for weight in (0.0, 0.5):
            model = make_model(zoo.HMN, data, loss=loss, sentence_loss=weight)
            output = model(batch)
            choices = {name: value.detach().numpy() for name, value in output.choices().items()}
            terms = model.loss_terms(output, batch).detach().numpy()
            assert terms[0] == 0
            for row in range(1, len(terms)):
                answer = int(batch.answer[row])
                p = {name: value[row, answer] for name, value in choices.items()}
                likelihood = p["joint"] if loss == "joint" else p["sentence"] * max(p["word"], 1e-30)
                term = -math.log(likelihood)
                plain = Plain(model, batch, row)
                holding = [
                    any(int(batch.choice[plain.dialogue, position]) == answer for position in turn)
                    for turn in plain.turns
                ]
                assert turns_with_answer(batch)[row, : len(holding)].tolist() == holding
                if any(holding):
                    attention = output.attention[row, : len(holding)].detach().numpy()
                    term -= weight * math.log(attention[holding].sum())
                assert terms[row] == pytest.approx(term, abs=1e-9)


def test_numbers_of_a_spelling_are_fixed_and_normal() -> None:
    def mixed(seed: int, counter: int) -> float:
        # SplitMix64 and Box-Muller with Python's whole numbers.
        mask = (1 << 64) - 1
        z = (seed + counter * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        first, second = ((z >> 40) + 1) / 2**24, (z & 0xFFFFFF) / 2**24
        return math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)

    seeds = torch.tensor([*spellings_of(["kalomi", "北京", "-"]), 1, -1])
    numbers = normal_of(seeds, 7)
    expected = [[mixed(seed & ((1 << 64) - 1), i) for i in range(1, 8)] for seed in seeds.tolist()]
    torch.testing.assert_close(numbers, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    many = normal_of(torch.arange(1, 2001), 100)
    assert abs(float(many.mean())) < 0.01
    assert abs(float(many.std()) - 1) < 0.01
    assert abs(float((many[:, 0] * many[:, 1]).mean())) < 0.1
    assert float(many.abs().max()) < 6


def test_word_dropout_draws_rare_words_and_answers_with_them(adapters: Any) -> None:
    data, batch = adapters("dialogue").data, adapters("dialogue").batch
    model = make_model(zoo.MemNN, data, word_dropout=3.0).float().train()
    words = model.network.sentences.words
    share = torch.zeros(len(batch.word))
    for _ in range(500):
        vectors, drawn = words(batch)
        assert torch.equal(drawn | (vectors == words.table[batch.word]).all(dim=1), torch.ones_like(drawn))
        share += drawn / 500
    unknown = batch.spelling != 0
    expected = (3 / (3 + batch.frequency)).masked_fill(unknown, 1)
    torch.testing.assert_close(share, expected, atol=0.1, rtol=0)
    # p_S of a word that word dropout drew uses the drawn vector.
    vectors, drawn = words(batch)
    output = torch.randn(len(batch.row), 6)
    log_p = model.network.sentences.answer(batch, output, vectors, drawn)
    energy = output @ vectors[:, -6:].T
    for position in range(1, len(batch.word)):
        if not unknown[position]:
            ratio = log_p[:, batch.word[position]] - energy[:, position]
            torch.testing.assert_close(ratio, log_p[:, batch.word[1]] - energy[:, 1], atol=1e-4, rtol=0)


def test_a_trained_model_answers_with_unknown_words(tmp_path: Path, zoo_command: Zoo) -> None:
    checkpoint = fitted(tmp_path, zoo_command, "--trainer.max_epochs=12", dialogues=150)
    predictor = zoo.load(checkpoint)
    turns = ["good day .", "who is it for?", "it is for Zappelin .", "when do you come ?", "on tuesday"]
    turns += ["thank you !"]
    who, when = predictor.predict(turns, ["what is the name?", "what is the day ?"])
    assert who.answer == "Zappelin"
    assert when.answer == "tuesday"
    assert who.question == "what is the name ?"
    assert who.probability == pytest.approx((who.p_sentence + who.p_word) / 2, abs=1e-6)
    assert who.turns[0].text == "it is for Zappelin ."
    assert who.turns[0].number == 2
    assert [turn.attention for turn in who.turns] == sorted((t.attention for t in who.turns), reverse=True)
    assert (who.words[0].word, who.words[0].turn) == ("Zappelin", 2)
    # The other questions of a call change nothing.
    alone = predictor.predict(turns, "what is the day ?")[0]
    assert alone[:2] == when[:2]
    assert alone[2:5] == pytest.approx(when[2:5], abs=1e-5)
    with pytest.raises(InputError, match="without turns"):
        predictor.predict([], "who ?")
    assert predictor.predict(turns, []) == []


def test_turns_have_their_number_in_the_whole_dialogue(tmp_path: Path, zoo_command: Zoo) -> None:
    kept = ("--data.turns_kept=retrieved", "--data.max_turns=2", "--trainer.max_epochs=1")
    predictor = zoo.load(fitted(tmp_path, zoo_command, *kept))
    turns = ["hello", "the name ?", "hm", "it is for Zappelin", "bye"]
    (answer,) = predictor.predict(turns, "the name for it ?")
    assert {(turn.number, turn.text) for turn in answer.turns} == {(1, turns[1]), (3, turns[3])}
    assert all(word.word in turns[word.turn].split() for word in answer.words)


def test_scores_are_counts() -> None:
    scores = DialogueScores(("sentence", "word", "joint"), "word")
    right, wrong = torch.tensor([[0.2, 0.8]]), torch.tensor([[0.75, 0.25]])
    choices = {
        "sentence": torch.cat([wrong] * 4),
        "word": torch.cat([right, wrong, right, right]),
        "joint": torch.cat([right] * 4),
    }
    answer, weight = torch.tensor([1, 1, -1, 1]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    scores.update(choices, answer, weight, torch.tensor([1.0, 2.0, 50.0, 70.0]))
    scores.update(choices, torch.full((4,), -100), torch.ones(4), torch.zeros(4))
    values = {name: float(value) for name, value in scores.compute().items()}
    assert values["questions"] == 3
    assert values["unanswerable"] == 1
    assert values["errors_sentence"] == 3
    assert values["errors"] == values["errors_word"] == 2
    assert values["errors_joint"] == 1
    assert values["accuracy"] == pytest.approx(1 / 3)
    assert values["probability"] == pytest.approx(1.05 / 3)
    assert values["loss"] == pytest.approx(1.5)


SMALL = [
    "--model=HMN", "--model.word_size=24", "--model.k=2", "--model.optimizer=torch.optim.Adam",
    "--model.optimizer.lr=0.02", "--data=DialogueDataModule", "--data.layout=hmn4qa", *QUIET_TRAINER,
]  # fmt: skip


def fitted(folder: Path, zoo_command: Zoo, *options: object, dialogues: int = 30) -> Path:
    table = write_published(folder / "train.txt", made_up(dialogues, seed=1))
    run_dir = folder / "run"
    done(zoo_command("fit", *SMALL, "--data.train_file", table, "--run_dir", run_dir, *options))
    return run_dir


def test_fit_with_charts_validate_test_and_predict(tmp_path: Path, zoo_command: Zoo) -> None:
    charts = "--trainer.callbacks=callbacks.Charts"
    checkpoint = fitted(tmp_path, zoo_command, "--trainer.max_epochs=2", charts)
    folder = checkpoint / "charts"
    assert [path.name for path in folder.glob("*.png")] == ["attention.png"]
    attention = (folder / "attention.csv").read_text().splitlines()
    assert len(attention) > 2
    assert attention[0].startswith("dialogue: question,1,2,")
    assert attention[0].endswith(",holds the answer")
    # Two turns are kept; the answer is in one turn, kept or not.
    for name, *weights, holding in (line.split(",") for line in attention[1:]):
        assert ": " in name
        assert 0 < len([weight for weight in weights if weight]) <= 2
        assert 1 <= int(holding) <= len(weights)

    test = write_published(tmp_path / "test.txt", made_up(7, seed=9))
    options = {"validate": f"--config={checkpoint}/config.yaml", "test": f"--data.test_file={test}"}
    for command, option in options.items():
        scores = written_scores(zoo_command, command, "--ckpt_path", checkpoint, option)
        errors = round(scores["questions"] * (1 - scores["accuracy"]))
        assert scores["errors"] == scores["errors_joint"] == errors
    dialogues = made_up(7, seed=9)
    questions = sum(len(dialogue.questions) for dialogue in dialogues)
    assert scores["questions"] == questions

    files = ["--input", test, "--output=out.jsonl", "--batch_size=2"]
    done(zoo_command("predict", "--ckpt_path", checkpoint, *files))
    records = read_jsonl("out.jsonl")
    assert len(records) == questions
    assert [record["dialogue"] for record in records][:4] == ["1", "1", "2", "2"]
    right = [answer for dialogue in dialogues for answer in dialogue.answers]
    wrong = sum(record["answer"] != answer for record, answer in zip(records, right, strict=True))
    assert wrong == scores["errors"]
    first = records[0]
    assert len(first["turns"]) == 2
    assert first["words"][0].keys() == {"word", "turn", "attention"}
