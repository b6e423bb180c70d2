"""The models of each kind of task, a batch, and variants of the batch, for the shared tests of `test_models.py`.

A new kind of task adds its adapter here, a new model its line.
"""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from datamodules import ClassificationDataModule, DialogueDataModule, MatchingDataModule
from tests.dialogues import made_up, write_published
from tests.zoo.adapter import Adapter, renamed, take_rows, with_words_of
from tests.zoo.conftest import pair_rows, sentences, write_pairs, write_table
from tests.zoo.retrieval_adapter import Retrieval
from zoo.tasks.base import Task

SIZES = {"hidden_size": 8, "word_size": 10, "char_hidden_size": 6, "num_perspectives": 3}


class Classification(Adapter):
    examples, padding = 12, ("char", "text", "memory_text")
    variants: ClassVar = {
        "KNNBiLSTM": {
            **{name: {**SIZES, "features": name} for name in ("M1", "M2", "M3", "M4", "M5", "M6", "M7")},
            "plain-cosine": {**SIZES, "num_perspectives": 0},
            "no-characters": {**SIZES, "characters": False},
            "sharp": {**SIZES, "features": "M5", "attention": "softmax", "text_dropout": 0.5},
        },
        "MemNet": {
            "": {"word_size": 10},
            "labels": {"word_size": 10, "hops": 1, "label_vectors": True, "tie_matrices": True},
        },
        "ExpaNet": {
            "no-memory": {"word_size": 10, "hops": 0},
            "soft": {"word_size": 10, "hops": 3},
            "hard": {"word_size": 10, "read": "hard", "final_tau": 0.5},
            "straight-through": {"word_size": 10, "read": "hard", "straight_through": True},
            "tied": {"word_size": 10, "tie_matrices": True, "label_vectors": True, "bigrams": 50},
            "logged": {"word_size": 10, "bigrams": 50, "log_attention": True},
        },
        "BOWRocchio": {"": {}, "weight": {"weight": 0.4, "max_ngram": 2}},
        "BiGRU": {"": {"word_size": 10, "hidden_size": 8, "dropout": 0.0}},
        "FastText": {"": {"num_buckets": 50}, "words": {"num_buckets": 0}},
        "TextCNN": {"": {"word_size": 10, "windows": (2, 3), "filters": 8, "dropout": 0.0}},
        "LINE": {
            "": {"word_size": 8, "epochs": 20},
            "expanded": {"word_size": 8, "epochs": 20, "expand": "join"},
        },
        "PTE": {
            "": {"word_size": 8, "epochs": 20},
            "expanded": {"word_size": 8, "epochs": 20, "expand": "separate"},
        },
        "SkipGram": {"": {"word_size": 8}, "expanded": {"word_size": 8, "expand": "join"}},
        "Majority": {"": {}},
        "NGrams": {"": {}, "tfidf": {"tfidf": True, "max_ngram": 2, "max_features": 30}},
        "NeighborVote": {"": {}},
        "TfidfSVM": {"": {}},
        "MemoryEnsemble": {
            "": {},
            "text": {"members": ["lexical", "naive_bayes"]},
            "memory": {"members": ["lexical_vote"]},
        },
    }
    #: options of the data.
    options: ClassVar[dict[str, Any]] = {}
    by_row = (
        "text", "memory", "memory_mask", "memory_score", "memory_target", "target", "weight", "row", "text_string"
    )  # fmt: skip

    def make_data(self, folder: Path) -> ClassificationDataModule:
        table = write_table(folder / "train.csv", sentences(60, seed=3))
        return ClassificationDataModule(
            train_file=str(table),
            validation_split=0.2,
            num_memories=3,
            batch_size=12,
            cache_dir=str(folder / "cache"),
            **self.options,
        )

    def make_batch(self) -> Any:
        """A batch with a text without memories, a text with two, and a memory with an unknown label."""
        batch = super().make_batch()
        mask = batch.memory_mask.clone()
        assert mask.all()
        mask[0] = False
        mask[1, 2] = False
        target = batch.memory_target.masked_fill(~mask, -100)
        target[2, 0] = -100
        return batch._replace(
            memory_mask=mask,
            memory_target=target,
            memory=batch.memory.masked_fill(~mask, 0),
            memory_score=batch.memory_score.masked_fill(~mask, 0),
        )

    def results(self, model: Task, batch: Any) -> Tensor:
        output = model(batch)
        assert output.logits.shape == (len(batch.row), 3)
        assert output.memory_weight.shape == batch.memory.shape
        assert not output.memory_weight[~batch.memory_mask].any()
        return output.logits

    def loss(self, model: Any, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch).logits, batch.target)

    def is_learned(self, model: Task, batch: Any) -> bool:
        return bool((self.results(model, batch).argmax(dim=1) == batch.target).all())

    def learnable(self, batch: Any) -> Any:
        # A model that reads memories only learns nothing from texts without memories.
        return take_rows(batch, self.by_row, torch.arange(3, len(batch.row)))

    def hidden(self, batch: Any) -> list[Any]:
        hidden = ~batch.memory_mask
        return [
            batch._replace(
                memory=torch.where(hidden, len(batch.memory_text) - 1, batch.memory),
                memory_score=torch.where(hidden, 99.0, batch.memory_score),
                memory_target=torch.where(hidden, 1, batch.memory_target),
            )
        ]

    def alone(self, batch: Any, row: int) -> Any:
        return take_rows(batch, self.by_row, slice(row, row + 1))

    def reordered(self, batch: Any) -> list[tuple[Any, Tensor]]:
        same = torch.arange(len(batch.row))
        memories = torch.tensor([2, 0, 1])
        fields = ("memory", "memory_mask", "memory_score", "memory_target")
        return [
            (batch._replace(**{name: getattr(batch, name)[:, memories] for name in fields}), same),
            (take_rows(batch, self.by_row, same.flip(0)), same.flip(0)),
        ]

    def emptied(self, batch: Any) -> list[tuple[Any, Tensor]]:
        rows = torch.arange(len(batch.row))
        text = batch.text.clone()
        text[1] = 0
        without = batch._replace(
            memory=torch.zeros_like(batch.memory),
            memory_mask=torch.zeros_like(batch.memory_mask),
            memory_score=torch.zeros_like(batch.memory_score),
            memory_target=torch.full_like(batch.memory_target, -100),
        )
        return [
            (batch._replace(text=text, text_string=[*batch.text_string[:1], "", *batch.text_string[2:]]), rows != 1),
            (without, rows == 0),
            (without._replace(memory_text=batch.memory_text[:0], memory_string=[]), rows == 0)
        ]  # fmt: skip


class CharacterClassification(Classification):
    """Texts as sequences of characters."""

    options: ClassVar = {"tokenizer": "characters", "max_length": 130}
    variants: ClassVar = {
        "CharCNN": {"": {"length": 130, "filters": 12, "hidden_size": 16, "dropout": 0.0}},
        "CharCRNN": {
            "": {"filters": 8, "hidden_size": 6, "dropout": 0.0},
            "even-window": {"windows": (4, 2, 3), "filters": 8, "hidden_size": 6, "dropout": 0.0},
        },
        "VDCNN": {"": {"filters": 4, "hidden_size": 16}},
    }


WORDS = {"word_size": 12}
FIRM = {**WORDS, "dropout": 0.0}
AMV = {**WORDS, "hidden_size": 7, "k": 16}


class Ranking(Adapter):
    examples, goal = 4, "ranking"
    variants: ClassVar = {
        "AMVLSTM": {
            "none-paper": {**AMV, "attention": "none", "attention_scale": "paper"},
            "question-length": {**AMV, "attention": "question", "attention_scale": "length"},
            "answer-paper": {**AMV, "attention": "answer", "attention_scale": "paper"},
            "both-paper": {**AMV, "attention": "both", "attention_scale": "paper"},
            "both-length": {**AMV, "attention": "both", "attention_scale": "length"},
            "concatenated": {**AMV, "interaction": "concatenated"},
            "overlap": {**AMV, "overlap": True}
        },
        "ANMM": {"": WORDS},
        "ARCI": {
            "": {**FIRM, "filters": (8, 7), "hidden_size": 16},
            "even-window": {**FIRM, "filters": (8, 7), "window": 4, "hidden_size": 6}
        },
        "ARCII": {
            "": {**FIRM, "filters": (8, 7), "grid": (2, 3), "hidden_size": 6},
            "even-window": {**FIRM, "filters": (8, 7), "window": 4, "grid": (2, 1), "hidden_size": 6}
        },
        "CDSSM": {"": {"num_trigrams": 200, "hidden_sizes": (8, 6)}},
        "DSSM": {"": {"num_trigrams": 200, "hidden_sizes": (8, 7, 6)}},
        "MatchPyramid": {
            "cosine": {**FIRM, "filters": (8, 7), "grid": (2, 3), "hidden_size": 6},
            "even-kernel": {**FIRM, "filters": (8, 7), "kernel": 2, "grid": (8, 11), "hidden_size": 6}
        },
        "RandomOrder": {"": {}},
        "WordOverlap": {"": {}},
        "PairBM25": {"": {}}
    }  # fmt: skip
    by_pair = ("first", "second", "query", "place", "target", "weight", "row")
    by_word = ("word", "char", "idf")
    padding = ("char", "first_text", "second_text")

    def make_data(self, folder: Path) -> MatchingDataModule:
        # The common words are in both texts of many pairs.
        rows = [(f"{first} in the old", second, label) for first, second, label in pair_rows(24, seed=8)]
        table = write_pairs(folder / "train.tsv", rows)
        return MatchingDataModule(
            train_file=str(table),
            validation_split=0.3,
            goal=self.goal,
            characters=True,
            batch_size=6,
            first_length=7,
            second_length=9,
            cache_dir=str(folder / "cache"),
        )

    def results(self, model: Task, batch: Any) -> Tensor:
        output = model(batch)
        assert output.logits.shape == (len(batch.row), 1 if self.goal == "ranking" else 2)
        if output.interaction is not None:
            first, second = batch.first_text[batch.first] != 0, batch.second_text[batch.second] != 0
            real = first.unsqueeze(2) & second.unsqueeze(1)
            assert output.interaction.shape == real.shape
            assert not output.interaction[~real].any()
            assert not output.interaction.requires_grad
        return output.logits

    def is_learned(self, model: Task, batch: Any) -> bool:
        score, positive = model(batch).score, batch.target > 0
        if self.goal == "classification":
            return bool(((score > 0) == positive).all())
        lists = [batch.query == number for number in range(int(batch.query.max()) + 1)]
        return all(
            bool(score[of_list & positive].min() > score[of_list & ~positive].max())
            for of_list in lists
            if (of_list & positive).any() and (of_list & ~positive).any()
        )

    def alone(self, batch: Any, row: int) -> Any:
        """The batch as the data would build it, without anything of other pairs."""
        zero, pair = torch.zeros(1, dtype=torch.long), take_rows(batch, self.by_pair, slice(row, row + 1))
        return with_words_of(pair, self.by_word, first=batch.first[row], second=batch.second[row])._replace(
            first=zero, second=zero, query=zero, place=zero
        )

    def reordered(self, batch: Any) -> list[tuple[Any, Tensor]]:
        same = torch.arange(len(batch.row))
        words = renamed(batch, self.by_word, ("first_text", "second_text"))
        return [(take_rows(batch, self.by_pair, same.flip(0)), same.flip(0)), (words, same)]

    def emptied(self, batch: Any) -> list[tuple[Any, Tensor]]:
        batches = []
        for sides in (("first",), ("second",), ("first", "second")):
            changed: dict[str, Any] = {}
            is_unaware = torch.ones(len(batch.row), dtype=torch.bool)
            for side in sides:
                changed[f"{side}_text"] = getattr(batch, f"{side}_text").clone()
                changed[f"{side}_text"][1] = 0
                strings = getattr(batch, f"{side}_string")
                changed[f"{side}_string"] = [strings[0], "", *strings[2:]]
                is_unaware &= getattr(batch, side) != 1
            batches.append((batch._replace(**changed), is_unaware))
        nothing = batch._replace(
            **{name: getattr(batch, name)[:1] for name in self.by_word},
            first_text=torch.zeros_like(batch.first_text[:, :1]),
            second_text=torch.zeros_like(batch.second_text[:, :1]),
            first_string=[""] * len(batch.first_text),
            second_string=[""] * len(batch.second_text),
        )
        return [*batches, (nothing, torch.zeros(len(batch.row), dtype=torch.bool))]


class PairClassification(Ranking):
    goal = "classification"


# Words that are replaced at random can't be memorized.
HOPS = {"word_size": 14, "word_dropout": 0.0}


class Dialogue(Adapter):
    examples = 5
    variants: ClassVar = {
        "MemNN": {
            "": HOPS,
            "one-hop": {**HOPS, "hops": 1},
            "no-time": {**HOPS, "temporal_encoding": False, "sentence_loss": 0.0},
        },
        "HMN": {
            "sentence-embedding": {**HOPS, "readout": "sentence", "word_memory": "embedding", "k": 1},
            "joint": {**HOPS, "k": 3, "loss": "joint"},
            "word-gru": {**HOPS, "word_size": 24, "readout": "word", "word_memory": "gru", "k": 9},
        },
    }
    by_question = ("question", "dialogue", "readable", "answer", "weight", "row")
    by_dialogue = ("text", "turn", "place", "choice", "own", "age")
    padding = (*by_dialogue, "question", "readable")

    def make_data(self, folder: Path) -> DialogueDataModule:
        table = write_published(folder / "train.txt", made_up(24, seed=4))
        return DialogueDataModule(
            layout="hmn4qa",
            train_file=str(table),
            validation_split=0.25,
            batch_size=5,
            cache_dir=str(folder / "cache"),
        )

    def results(self, model: Task, batch: Any) -> Tensor:
        output, words = model(batch), model.spec.num_words
        choices = output.choices()
        for probabilities in choices.values():
            assert probabilities.shape == (len(batch.row), words + batch.own.shape[1])
            assert not probabilities[:, :2].any()
            # A dialogue with fewer words of its own has no choice beyond them.
            assert not probabilities[:, words:][batch.own[batch.dialogue] == 0].any()
        assert not output.attention[~batch.readable].any()
        known = torch.cat([probabilities[:, :words] for probabilities in choices.values()], dim=1)
        own = torch.stack(
            [probabilities[:, words:].square().sum(dim=1) for probabilities in choices.values()], dim=1
        )
        return torch.cat([known, own], dim=1)

    def is_learned(self, model: Task, batch: Any) -> bool:
        return bool((model(batch).choices()[model.readout].argmax(dim=1) == batch.answer).all())

    def hidden(self, batch: Any) -> list[Any]:
        nothing, hidden = batch.text == 0, torch.ones_like(batch.age, dtype=torch.bool)
        hidden[batch.dialogue] = ~batch.readable
        return [batch._replace(turn=batch.turn.masked_fill(nothing, 1), age=batch.age.masked_fill(hidden, 2))]

    def alone(self, batch: Any, row: int) -> Any:
        number = int(batch.dialogue[row])
        length, turns = int((batch.text[number] != 0).sum()), int(batch.readable[row].sum())
        own = max(1, int((batch.own[number] != 0).sum()))
        sizes = dict.fromkeys(("text", "turn", "place", "choice"), length) | {"own": own, "age": turns}
        of_dialogue = {name: getattr(batch, name)[number : number + 1, :size] for name, size in sizes.items()}
        return take_rows(batch, self.by_question, slice(row, row + 1))._replace(
            **of_dialogue,
            dialogue=torch.zeros(1, dtype=torch.long),
            readable=batch.readable[row : row + 1, :turns],
        )

    def reordered(self, batch: Any) -> list[tuple[Any, Tensor]]:
        same = torch.arange(len(batch.row))
        dialogues = {name: getattr(batch, name).flip(0) for name in self.by_dialogue}
        words = renamed(batch, ("word", "spelling", "frequency"), ("text", "own", "question"))
        return [
            (take_rows(batch, self.by_question, same.flip(0)), same.flip(0)),
            (batch._replace(**dialogues, dialogue=len(batch.text) - 1 - batch.dialogue), same),
            (words, same),
        ]

    def emptied(self, batch: Any) -> list[tuple[Any, Tensor]]:
        """Batches with a dialogue without words, a question without words, and a question without readable turns."""
        rows = batch.dialogue != 1
        text, place, own = batch.text.clone(), batch.place.clone(), batch.own.clone()
        text[1], place[1], own[1] = 0, 0, 0
        question, readable = batch.question.clone(), batch.readable.clone()
        question[0], readable[0] = 0, False
        others = torch.arange(len(batch.row)) != 0
        return [
            (batch._replace(text=text, place=place, own=own), rows),
            (batch._replace(question=question), others),
            (batch._replace(readable=readable), others),
        ]


ADAPTERS: dict[str, type[Adapter]] = {
    "classification": Classification,
    "classification of characters": CharacterClassification,
    "ranking": Ranking,
    "pair classification": PairClassification,
    "dialogue": Dialogue,
    "retrieval": Retrieval,
}
