"""Dialogues: words, batches against plain Python, turns that are read, and wrong input."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import DialogueDataModule, InputError
from datamodules.batch import DialogueBatch
from datamodules.dialogue import spellings_of
from tests.datamodules.kinds import Kind, are_equal
from tests.dialogues import made_up, write_lines, write_published


def prepared(folder: Path, train: Path, validation: Path | None = None, **options: Any) -> DialogueDataModule:
    """A data module of published files; the training table is the validation table, too, unless one is given."""
    files = {"train_file": str(train), "validation_file": str(validation or train)}
    return Kind(DialogueDataModule, folder, layout="hmn4qa", batch_size=4).prepared(**{**files, **options})


def test_the_vocabulary_has_the_words_of_several_training_dialogues(tmp_path: Path) -> None:
    train = write_lines(
        tmp_path / "train.txt",
        *("1 a b b rare", "2 what ?\trare\t1"),
        *("1 a c twice twice", "2 what ?\tc\t1"),
        *("1 a c", "2 what ?\ta\t1"),
    )
    validation = write_lines(tmp_path / "validation.txt", "1 new a", "2 what ?\tnew\t1")
    data = prepared(tmp_path, train, validation)
    words = data.words.vocabulary.words
    # `b` and `twice` occur twice, but in one dialogue.
    assert sorted(words[2:]) == ["?", "a", "c", "what"]
    frequency = dict(zip(words, data.facts["frequency"], strict=True))
    assert frequency["a"] == frequency["what"] == 3
    assert frequency["c"] == 2
    assert frequency["<unk>"] == 0

    larger = prepared(tmp_path, train, validation, vocabulary_files=[str(validation)], min_count=1)
    words = larger.words.vocabulary.words
    assert sorted(words[2:]) == sorted(["?", "a", "b", "c", "new", "rare", "twice", "what"])
    assert larger.facts["frequency"][words.index("new")] == 0


def test_several_tables_are_one(tmp_path: Path) -> None:
    files = [str(write_published(tmp_path / f"{i}.txt", made_up(4, seed=i))) for i in range(2)]
    data = Kind(DialogueDataModule, tmp_path, layout="hmn4qa").prepared(
        train_file=files, validation_split=0.25
    )
    assert len(data.dataset(data.split("train"))) == 6
    assert len(data.dataset(data.split("validation"))) == 2


def words_of_dialogue(data: DialogueDataModule, batch: DialogueBatch, question: int) -> list[list[str]]:
    """The words of a question's dialogue by turn; `#` and the hash of its spelling for an unknown word."""
    dialogue, vocabulary = int(batch.dialogue[question]), data.words.vocabulary
    turns: list[list[str]] = [[] for _ in range(int(batch.readable[question].sum()))]
    for number, position in enumerate(batch.text[dialogue].tolist()):
        if position:
            choice, spelling = int(batch.choice[dialogue, number]), int(batch.spelling[position])
            is_known = choice < len(vocabulary)
            assert is_known == (spelling == 0)
            if not is_known:
                assert int(batch.own[dialogue, choice - len(vocabulary)]) == position
            turn = turns[int(batch.turn[dialogue, number])]
            turn.append(vocabulary.words[choice] if is_known else f"#{spelling}")
            assert int(batch.place[dialogue, number]) == len(turn)
    return turns


def test_batches_equal_a_plain_reference(tmp_path: Path) -> None:
    dialogues = made_up(12, seed=3)
    data = prepared(tmp_path, write_published(tmp_path / "a.txt", dialogues))
    batch = data.dataset(data.split("train")).__getitems__([7, ~2, 4])
    words = data.words.vocabulary.words
    expected = [(i, q) for i in (7, 2, 4) for q in range(len(dialogues[i].questions))]
    assert len(batch.row) == len(expected)
    assert len(batch.text) == 3  # each dialogue once
    for row, (number, question) in enumerate(expected):
        turns, questions, answers = dialogues[number]
        assert words_of_dialogue(data, batch, row) == [
            [word if word in words else f"#{spellings_of([word])[0]}" for word in turn.split()]
            for turn in turns
        ]
        answer, right = int(batch.answer[row]), answers[question]
        if right in words:
            assert words[answer] == right
        else:
            position = batch.own[int(batch.dialogue[row]), answer - len(words)]
            assert int(batch.spelling[position]) == spellings_of([right])[0]
        assert int((batch.question[row] != 0).sum()) == len(questions[question].split())
        assert batch.weight[row] == (number != 2)
    turns = dialogues[7].turns
    assert batch.age[0].tolist()[: len(turns)] == list(range(len(turns)))[::-1]


def test_impossible_questions_are_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write_lines(tmp_path / "train.txt", *("1 a b", "2 what ?\ta\t1") * 2)
    questions = ("2 what ?\tnowhere\t1", "3 what ?\ta\t1", "4 what ?\tc\t1")
    validation = write_lines(tmp_path / "validation.txt", "1 b c", *questions)
    data = prepared(tmp_path, train, validation)
    with caplog.at_level(logging.WARNING):
        data.val_dataloader()
    assert "1 of 3 questions cannot be answered correctly" in caplog.text
    assert f"'nowhere', {validation}, line 2" in caplog.text
    batch = data.dataset(data.split("validation")).__getitems__([0])
    vocabulary = data.words.vocabulary
    # `a` is a word of the vocabulary, `c` one of the dialogue.
    assert batch.answer.tolist() == [-1, vocabulary.words.index("a"), len(vocabulary)]


def test_long_turns_are_cut(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.txt", "1 a b c d", "2 e", "3 x y z w\ta\t2", "1 a", "2 b\ta\t1")
    data = prepared(tmp_path, file, max_length=3)
    batch = data.dataset(data.split("train")).__getitems__([0])
    assert batch.place.tolist() == [[1, 2, 3, 1]]
    assert batch.question.shape == (1, 3)


def test_a_long_dialogue_keeps_its_latest_turns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    turns = [f"{i} word{i} said" for i in range(1, 10_001)]
    file = write_lines(tmp_path / "a.txt", *turns, "10001 what ?\tword9999\t1", "1 a", "2 what ?\ta\t1")
    with caplog.at_level(logging.WARNING):
        data = prepared(tmp_path, file, max_turns=100)
    assert "1 of 2 dialogues have more than data.max_turns=100 turns" in caplog.text
    assert data.spec.num_turns == 100
    dataset = data.dataset(data.split("train"))
    batch = dataset.__getitems__([0, 1])
    assert batch.text.shape == (2, 200)
    assert batch.readable.sum(dim=1).tolist() == [100, 1]
    assert int(batch.answer[0]) >= 0
    assert dataset.lengths().tolist() == [200, 1]


def test_retrieval_changes_nothing_if_all_turns_are_read(tmp_path: Path) -> None:
    file = write_published(tmp_path / "a.txt", made_up(6, seed=3))
    batches = []
    for kept, max_turns in (("latest", 256), ("retrieved", 256), ("retrieved", 8)):
        data = prepared(tmp_path, file, turns_kept=kept, max_turns=max_turns)
        assert data.spec.num_turns == 8
        batches.append(data.dataset(data.split("train")).__getitems__(range(6)))
    assert are_equal(batches[1:], batches[:1] * 2)


def test_retrieved_turns_belong_to_the_questions_dialogue(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "a.txt",
        *("1 the ship leaves at dawn", "2 nothing here", "3 her name is kim", "4 nothing there"),
        *("5 good bye", "6 when does the ship leave dawn\tdawn\t5", "7 which name\tkim\t5"),
        "8 unheard\tbye\t5",
        # Better hits, but of another dialogue.
        *("1 name which name", "2 ship ship dawn", "3 the ship", "4 which which name\tship\t3"),
    )
    data = prepared(tmp_path, file, turns_kept="retrieved", max_turns=1)
    split = data.split("train")
    assert split.dialogues.turns.texts.take(split.reading.values) == [
        "the ship leaves at dawn",
        "her name is kim",
        "good bye",  # no turn is retrieved: the latest
        "name which name",
    ]
    batch = data.dataset(split).__getitems__([0, 1])
    expected = [[True, False, False], [False, True, False], [False, False, True], [True, False, False]]
    assert batch.readable.tolist() == expected
    assert batch.age[0].tolist() == [4, 2, 0]
    assert batch.age[1].tolist()[0] == 2
    assert np.array_equal(data.split_of(split.dialogues).reading.values, split.reading.values)
    # Where fewer turns are retrieved, the latest are added.
    more = prepared(tmp_path, file, turns_kept="retrieved", max_turns=2).split("train").reading
    assert more.values[:6].tolist() == [0, 4, 2, 4, 3, 4]


def test_the_number_of_hits_grows_until_enough_belong_to_the_dialogue(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "a.txt",
        *(f"{i} the same words again" for i in range(1, 61)),
        "61 same\tsame\t60",
        *("1 a longer turn with the same words once more", "2 nothing", "3 same words\tnothing\t2"),
    )
    data = prepared(tmp_path, file, turns_kept="retrieved", max_turns=1)
    assert data.split("train").reading.values.tolist()[-1] == 60


def test_an_answer_of_several_tokens_is_refused(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.txt", "1 hello kim", "2 who ?\tkim hello\t1", "1 a", "2 b ?\ta\t1")
    with pytest.raises(InputError, match=r"a.txt, line 2: the answer 'kim hello' has 2 tokens"):
        prepared(tmp_path, file)
