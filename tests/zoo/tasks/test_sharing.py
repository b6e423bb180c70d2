"""One predictor in several threads, in forked processes and in one of its own."""

import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from datamodules.core.errors import InputError
from datamodules.core.sharing import SharedLock, cached_property
from datamodules.corpora.rows import Rows
from datamodules.retrieval import DenseRetriever, EmbeddedRetriever, FolderMemory, Retriever
from tests.datamodules.corpus import in_processes
from tests.zoo.conftest import Fit, sentences
from tests.zoo.ensemble.conftest import trained_ensemble as trained_ensemble
from tests.zoo.processes import printed_by
from zoo.tasks.classification.predictor import ClassificationPredictor

THREADS = 8


def unseen(thread: int, count: int = 40) -> list[str]:
    """Texts with words that no other thread has."""
    texts = [text for text, _ in sentences(count, thread)]
    return [f"apple t{thread}x{i} iron-{i}q{thread} rain {text}" for i, text in enumerate(texts)]


def in_threads(work: Callable[[list[str]], Any], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Compare the results of threads that start together with those of one."""
    expected = [work(unseen(thread)) for thread in range(THREADS)]
    barrier = threading.Barrier(THREADS)

    def is_as_expected(thread: int) -> bool:
        barrier.wait()
        return all(work(unseen(thread)) == expected[thread] for _ in range(5))

    with ThreadPoolExecutor(THREADS) as pool:
        results = pool.map(is_as_expected, range(THREADS))
        meanwhile()
    assert all(results)


def probabilities(predictor: ClassificationPredictor, texts: list[str]) -> list[float]:
    return [round(prediction.probability, 5) for prediction in predictor.predict(texts)]


def is_true_in_a_fork(work: Callable[[], bool]) -> bool:
    return in_processes(1, lambda: sys.exit(not work())) == [0]


@pytest.fixture(scope="module")
def predictor(trained_run: Path) -> ClassificationPredictor:
    return zoo.load(trained_run)


def test_threads_predict_with_the_default_model(trained_ensemble: Path) -> None:
    fresh = zoo.load(trained_ensemble)
    in_threads(lambda texts: probabilities(fresh, texts))


def test_threads_encode(predictor: ClassificationPredictor) -> None:
    in_threads(lambda texts: predictor.encode(texts).round(4).tolist())


@pytest.mark.parametrize("kind", ["terms", "vectors"])
def test_threads_search(kind: str, tmp_path: Path, tiny_bert: Path) -> None:
    retriever: Retriever = EmbeddedRetriever(analyzer="english")
    if kind == "vectors":
        retriever = DenseRetriever(str(tiny_bert))
    rows = Rows.from_lists([text for text, _ in sentences(60, seed=9)])
    memory = FolderMemory.build(rows, retriever, tmp_path / "memory")
    in_threads(lambda texts: memory.search(texts, 5).scores.round(4).tolist())


def test_a_model_in_training_mode_has_it_again_after_all_threads(fit: Fit) -> None:
    run = fit("run", "--model.dropout=0.9")
    fresh = zoo.load(run)
    fresh.model.train()
    in_threads(lambda texts: probabilities(fresh, texts))
    assert all(module.training for module in fresh.model.network.modules())


def test_a_predictor_of_no_saved_model_is_not_pickled(predictor: ClassificationPredictor) -> None:
    with pytest.raises(InputError, match=r"^a predictor of a KNNBiLSTM .* zoo\.load$"):
        pickle.dumps(ClassificationPredictor(predictor.model, predictor.data, predictor.memory))


def print_probabilities(predictor: ClassificationPredictor) -> None:
    print(*probabilities(predictor, unseen(0)))


def test_a_process_of_its_own_opens_the_model_again_and_predicts(predictor: ClassificationPredictor) -> None:
    out, _ = printed_by(print_probabilities, predictor)
    assert [*map(float, out.split())] == probabilities(predictor, unseen(0))


def test_a_forked_process_predicts(predictor: ClassificationPredictor) -> None:
    # OpenMP's threads don't survive a fork: a child that waited for them would hang.
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = probabilities(predictor, unseen(0, 600))
        assert is_true_in_a_fork(lambda: probabilities(predictor, unseen(0, 600)) == expected)
    finally:
        torch.set_num_threads(before)


def test_a_process_that_is_forked_while_threads_predict(predictor: ClassificationPredictor) -> None:
    expected, results = probabilities(predictor, unseen(0)), list[bool]()

    def fork() -> None:
        results.append(is_true_in_a_fork(lambda: probabilities(predictor, unseen(0)) == expected))

    in_threads(lambda texts: probabilities(predictor, texts), meanwhile=fork)
    assert results == [True]


def test_a_lock_that_another_thread_holds_is_free_after_a_fork() -> None:
    lock, held, done = SharedLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def take() -> bool:
        with lock:
            return True

    try:
        assert is_true_in_a_fork(take)
    finally:
        done.set()
        thread.join()


def test_a_forked_process_finds_no_lock_of_a_cached_property() -> None:
    started, done = threading.Event(), threading.Event()

    class Slow:
        @cached_property
        def value(self) -> int:
            if threading.current_thread() is not threading.main_thread():
                started.set()
                done.wait()
            return 7

    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    started.wait()
    is_free = is_true_in_a_fork(lambda: Slow().value == 7)  # waiting for the lock would take for ever
    done.set()
    thread.join()
    assert is_free
