"""scripts/kubernetes: valid for Kubernetes, and what its pods run works here, also when a pod is lost and replaced."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import latest_version, validate

from tests.commands import succeed, wait_until
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import content
from tests.slurm.cluster import free_ports
from tests.small_run import SMALL, final_bytes

FOLDER = Path(__file__).resolve().parents[1] / "scripts" / "kubernetes"
PREPROCESS = [sys.executable, "-m", "dlrm_app.cli", "preprocess"]


def documents(name: str) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all((FOLDER / name).read_text())


def job_of(name: str) -> dict[str, Any]:
    (spec,) = [document["spec"] for document in documents(name) if document["kind"] == "Job"]
    return spec


def container_of(name: str) -> dict[str, Any]:
    (container,) = job_of(name)["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDER.glob("*.yaml"))])
@pytest.mark.parametrize("version", ["1.31", latest_version()])
def test_kubernetes_accepts_it(name: str, version: str) -> None:
    for document in documents(name):
        validate(document, version, strict=True)


@pytest.mark.parametrize(("name", "word"), [("preprocess.yaml", "ranks"), ("train.yaml", "--nnodes")])
def test_the_numbers_of_pods_agree(name: str, word: str) -> None:
    job = job_of(name)
    assert job["completions"] == job["parallelism"]
    assert f"{word}={job['completions']}" in container_of(name)["args"]


class Pods:
    """The pods of a job, as processes of this machine that see ``folder`` as /data.

    ``words``: what stands for words of the file; ``more``: arguments beside those of the file.
    """

    def __init__(self, name: str, folder: Path, words: dict[str, str], more: list[str]) -> None:
        self._container, self._folder = container_of(name), folder
        self._words, self._more = {**words, "/data": str(folder)}, more

    def start(self, index: int, before: Sequence[str] = (), **variables: str) -> "subprocess.Popen[str]":
        """Starts pod ``index``, as the end of the command ``before``, in a session of its own."""
        program, *rest = self._container["command"]
        programs = {"dlrm-preprocess": PREPROCESS, "python": [sys.executable]}
        arguments = [self._filled(word, index) for word in [*self._container["args"], *self._more]]
        given = {each["name"]: each["value"] for each in self._container.get("env", [])}
        environment = {**os.environ, **given, **variables, "JOB_COMPLETION_INDEX": str(index)}
        with (self._folder / f"pod-{index}.log").open("a") as log:
            return subprocess.Popen(
                [*before, *programs[program], *rest, *arguments],
                env=environment,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def _filled(self, word: str, index: int) -> str:
        for name, value in {**self._words, "$(JOB_COMPLETION_INDEX)": str(index)}.items():
            word = word.replace(name, value)
        return word

    def log(self, index: int) -> str:
        return (self._folder / f"pod-{index}.log").read_text()


@pytest.mark.long
def test_pods_preprocess_and_one_that_is_lost_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(make_clicks(30_000))
    more = ["layout.unit_mib=1", "threads=1"]
    pods = Pods("preprocess.yaml", tmp_path, {}, more)
    running = [pods.start(index) for index in range(4)]
    journal = tmp_path / "kaggle" / ".work"
    wait_until(lambda: len([*journal.glob("*/*.json")]) > 2, 200, "some units")
    running[2].kill()
    running[2].wait()
    running[2] = pods.start(2)
    assert [pod.wait(300) for pod in running] == [0] * 4, pods.log(0)
    given = ["dataset=criteo_kaggle", f"input.train={tmp_path}/train.txt", "split.val=0.1", "split.test=0.1"]
    succeed([*PREPROCESS, *given, *more, "output=alone"], tmp_path)
    assert content(tmp_path / "kaggle") == content(tmp_path / "alone")


@pytest.mark.long
def test_pods_train_and_continue_after_a_loss(tmp_path: Path) -> None:
    """The job's controller is a loop here: pods that fail are started again, as after ``kill -9`` of one of them."""
    (tmp_path / "log.tsv").write_bytes(make_clicks(2000))
    given = ["encoding=hash", "encoding.num_embeddings=100", "dense.target_columns=null", "split.val=0.2"]
    succeed([*PREPROCESS, f"input.train={tmp_path}/log.tsv", *given, "output=kaggle"], tmp_path)
    here = {"train-0.train": "127.0.0.1", "--nproc-per-node=gpu": "--nproc-per-node=1"}
    more = [
        *SMALL,
        "trainer.epochs=6",
        "trainer.threads=1",
        "checkpoint.every_steps=4",
        "report.enabled=false",
    ]
    more += ["checkpoint.every_minutes=null", "trainer.timeout_minutes=1"]
    for name, loses in (("whole", False), ("lost", True)):
        words = {**here, "29500": str(free_ports(1)[0]), "/data/runs/kaggle": f"/data/runs/{name}"}
        pods = Pods("train.yaml", tmp_path, words, more)
        running = {index: pods.start(index) for index in range(2)}
        checkpoints, deadline = tmp_path / "runs" / name / "checkpoints", time.monotonic() + 400
        while running:
            assert time.monotonic() < deadline, pods.log(0)
            for index, pod in list(running.items()):
                if (code := pod.poll()) is not None:
                    del running[index]
                    if code:
                        running[index] = pods.start(index)
            if loses and [*checkpoints.glob("*/complete.json")] and 1 in running:
                loses = False
                running[1].send_signal(signal.SIGKILL)
            time.sleep(0.2)
    assert final_bytes(tmp_path / "runs" / "lost") == final_bytes(tmp_path / "runs" / "whole")
