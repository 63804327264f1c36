"""Calls beside one another: in threads, in forked processes, and models, results and errors that are sent to others."""

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlrm_app as dlrm
from dlrm_app.checksums import checksum
from dlrm_app.distributed.runtime import start_runtime
from dlrm_app.errors import ConfigError, DataError, DlrmError, Problem

SMALL = {
    "tables": "dataset",
    "tables.embedding_dim": 8,
    "model": {"bottom_mlp": [16], "top_mlp": [16], "dropout": 0.2},
    "trainer": {"global_batch_size": 128, "threads": 2},
    "data.lanes": 8,
    "experiment": None,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    log = folder / "clicks.csv"
    drawn = np.random.default_rng(1)
    lines = [f"{drawn.integers(2)},{drawn.integers(40)},{drawn.random():.3f}" for _ in range(2600)]
    log.write_text("\n".join(["click,shop,price", *lines]) + "\n", encoding="utf-8")
    columns = [{"name": "click", "role": "label"}, {"name": "shop", "role": "sparse", "kind": "string"}]
    described = {
        "name": "shops",
        "delimiter": ",",
        "header": True,
        "columns": [*columns, {"name": "price", "role": "dense", "kind": "float"}],
    }
    settings = {"dataset": described, "input.train": log, "split.val": 0.1, "split.test": 0.1}
    dlrm.preprocess(settings, output=folder / "clicks")
    return folder / "clicks"


@pytest.fixture(scope="module")
def trained(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(dataset, tmp_path_factory.mktemp("run") / "alone")


def train(dataset: Path, output: Path) -> Path:
    dlrm.train(SMALL, {"data.path": dataset}, output=output)
    return output


def weights(run: Path) -> dict[str, str]:
    """The checksums of the weights of a run's checkpoints."""
    folder = run / "checkpoints"
    return {str(file.relative_to(folder)): checksum(file) for file in folder.rglob("*.tensors")}


def rows(model: Any) -> list[dict[str, Any]]:
    return [dict.fromkeys(model.columns), dict.fromkeys(model.columns, "1")]


def test_a_second_job_is_refused_by_name_before_it_writes(
    dataset: Path, trained: Path, tmp_path: Path
) -> None:
    jobs: dict[str, Callable[[], object]] = {
        "train": lambda: train(dataset, tmp_path / "run"),
        "evaluate": lambda: dlrm.evaluate(checkpoint=trained, output=tmp_path / "evaluation.json"),
        "export": lambda: dlrm.export(checkpoint=trained, output=tmp_path / "export"),
        "predict": lambda: dlrm.predict(
            {"model": trained, "data.path": dataset}, output=tmp_path / "s.parquet"
        ),
    }
    failures: dict[str, str] = {}

    def call_all() -> None:
        for name, job in jobs.items():
            try:
                job()
            except DlrmError as error:
                failures[name] = str(error)

    with start_runtime(1, job="train"):
        thread = threading.Thread(target=call_all)
        thread.start()
        thread.join()
    assert failures.keys() == jobs.keys()
    for name, text in failures.items():
        assert text.startswith(
            f"{name} cannot run beside train, which another thread of this process runs: wait until"
        )
    assert not list(tmp_path.iterdir())


def test_models_are_loaded_and_score_the_same_beside_a_training(
    dataset: Path, trained: Path, tmp_path: Path
) -> None:
    """Neither changes the other: dropout draws from the process's generator, and a loaded model draws its weights."""
    model = dlrm.load(trained)
    alone = model.predict(rows(model))
    thread = threading.Thread(target=train, args=(dataset, tmp_path / "beside"))
    thread.start()
    loaded = 0
    while thread.is_alive():
        again = dlrm.load(trained)
        assert np.array_equal(again.predict(rows(again)), alone)
        loaded += 1
    assert loaded
    assert weights(tmp_path / "beside") == weights(trained)
    assert weights(trained)


def _in_fork(work: Callable[[], object]) -> str:
    """What ``work`` says in a forked process: the text of its error, or "done"."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            work()
            sender.send("done")
        except DlrmError as error:
            sender.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        assert receiver.poll(60), "the forked process hangs"
        text: str = receiver.recv()
        return text
    finally:
        process.kill()
        process.join()


def test_a_fork_of_a_process_that_has_computed_is_refused_at_once(dataset: Path, trained: Path) -> None:
    model = dlrm.load(trained)
    some = rows(model)
    for work in (
        lambda: model.predict(some),
        lambda: dlrm.load(trained),
        lambda: dlrm.evaluate(checkpoint=trained),
        lambda: dlrm.check({"data.path": dataset}),
        lambda: pickle.loads(pickle.dumps(model)).predict(some),
    ):
        assert _in_fork(work).startswith("this process was forked from one that had computed already")


def test_a_pool_of_forks_gets_an_error_and_does_not_wait(trained: Path) -> None:
    model = dlrm.load(trained)
    with multiprocessing.get_context("fork").Pool(1) as pool, pytest.raises(DlrmError, match="was forked"):
        pool.map_async(model.predict, [rows(model)]).get(60)


def test_a_model_is_pickled_by_its_path(
    trained: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(trained.parent)
    model = dlrm.load(trained.name, which="best")
    alone, pickled = model.predict(rows(model)), pickle.dumps(model)
    monkeypatch.chdir(tmp_path)
    for again in (pickle.loads(pickled), copy.deepcopy(model)):
        assert again.path == model.path
        assert np.array_equal(again.predict(rows(again)), alone)


def test_a_pickle_of_a_model_that_was_replaced_is_refused(dataset: Path, tmp_path: Path) -> None:
    run = train(dataset, tmp_path / "run")
    pickled = pickle.dumps(dlrm.load(run))
    (tmp_path / "run").rename(tmp_path / "old")
    dlrm.train(SMALL, {"data.path": dataset, "trainer.seed": 5}, output=run)
    with pytest.raises(
        DataError, match="holds another model than when it was pickled: pickle the model again"
    ):
        pickle.loads(pickled)


def test_results_and_errors_are_pickled(dataset: Path, trained: Path, tmp_path: Path) -> None:
    results = [
        dlrm.evaluate(checkpoint=trained),
        dlrm.check({"data.path": dataset}),
        dlrm.predict({"model": trained, "data.path": dataset}, output=tmp_path / "scores.parquet"),
        dlrm.generate(rows=100, output=tmp_path / "generated.tsv"),
        dlrm.report(str(trained)),
    ]
    for result in results:
        assert str(pickle.loads(pickle.dumps(result))) == str(result) == str(copy.deepcopy(result))
    problem = Problem("data.path", "must exist", "give one", 3)
    for error in (DlrmError(problem), DlrmError("text"), ConfigError(problem, problem), DataError(problem)):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.problems) == (type(error), str(error), error.problems)
