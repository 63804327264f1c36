"""The commands of scripts/kubernetes on two machines with disks of their own, which share a store: from a log to scores.

The machines are network namespaces of this one, and the store is a server in the first.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.commands import wait_until
from tests.integration.namespaces import ADDRESSES, Machines, two_namespaces
from tests.preprocessing.clicks import make_clicks
from tests.small_run import SMALL
from tests.test_kubernetes import Pods

pytestmark = pytest.mark.long

PYTHON = sys.executable
STORE = f"{ADDRESSES[0]}:5000"
PREPARE = """
import boto3, sys, time
for _ in range(1200):
    try:
        boto3.client("s3").create_bucket(Bucket="clicks")
        boto3.client("s3").upload_file(sys.argv[1], "clicks", "logs/train.txt")
        break
    except Exception as error:
        time.sleep(0.1)
else:
    raise error
"""
CHECKSUMS = """
import boto3, hashlib, json, sys
s3 = boto3.client("s3")
found = s3.list_objects_v2(Bucket="clicks", Prefix=f"runs/{sys.argv[1]}/checkpoints/")["Contents"]
bodies = {each["Key"].rpartition("checkpoints/")[2]: s3.get_object(Bucket="clicks", Key=each["Key"])["Body"].read() for each in found}
print(json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in bodies.items() if name.endswith(".tensors")}))
"""
SCORES = """
import boto3, hashlib, json
s3 = boto3.client("s3")
found = s3.list_objects_v2(Bucket="clicks", Prefix="scores/")["Contents"]
bodies = {each["Key"]: s3.get_object(Bucket="clicks", Key=each["Key"])["Body"].read() for each in found}
print(json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in bodies.items()}))
"""
SCORE = """
import json, sys, urllib.request
body = json.dumps({"rows": [{"int_1": 3, "cat_2": "05db9164"}, {}]}).encode()
request = urllib.request.Request(sys.argv[1], body, {"content-type": "application/json"})
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120).read().decode())
"""


class Cluster:
    """Two ``machines``, each with a home and a folder for local sides below ``root``."""

    def __init__(self, machines: Machines, root: Path) -> None:
        self.machines, self.root = machines, root

    def home(self, node: int) -> Path:
        return self.root / f"machine-{node}"

    def variables(self, node: int) -> dict[str, str]:
        return {
            "HOME": str(self.home(node)),
            "DLRM_STORE_FOLDER": str(self.home(node) / "stores"),
            "AWS_ENDPOINT_URL": f"http://{STORE}",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "OMP_NUM_THREADS": "1",
            "no_proxy": ",".join(ADDRESSES),
            "NO_PROXY": ",".join(ADDRESSES),
        }

    def start(self, node: int, words: Sequence[str], log: str) -> "subprocess.Popen[str]":
        with (self.root / log).open("w") as file:
            return subprocess.Popen(
                [*self.machines.on(node), *words],
                env={**os.environ, **self.variables(node)},
                cwd=self.home(node),
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def succeed(self, node: int, *words: str) -> str:
        process = self.start(node, words, "command.log")
        code, said = process.wait(400), (self.root / "command.log").read_text()
        assert code == 0, said[-3000:]
        return said

    def empty(self, node: int) -> None:
        """Another machine in its place."""
        shutil.rmtree(self.home(node), ignore_errors=True)
        self.home(node).mkdir()

    def preprocess(self, more: list[str]) -> None:
        """The job of preprocess.yaml on both machines; machine 1 is lost at its first unit, and replaced."""
        words = {"/data/train.txt": "s3://clicks/logs/train.txt", "/data/kaggle": "s3://clicks/kaggle"}
        pods = Pods("preprocess.yaml", self.root, {**words, "ranks=4": "ranks=2"}, more)

        def start(node: int) -> "subprocess.Popen[str]":
            return pods.start(node, self.machines.on(node), **self.variables(node))

        running = [start(node) for node in (0, 1)]
        wait_until(lambda: any(self.home(1).rglob(".work/*/*.json")), 240, lambda: pods.log(1)[-3000:])
        running[1].kill()
        running[1].wait()
        self.empty(1)
        running[1] = start(1)
        assert [pod.wait(400) for pod in running] == [0, 0], pods.log(0)[-3000:]

    def train(self, name: str, more: list[str], is_lost: bool) -> None:
        """The job of train.yaml; ``is_lost``: machine 1 is lost after a checkpoint, and comes back with an empty disk."""
        words = {"/data/kaggle": "s3://clicks/kaggle", "/data/runs/kaggle": f"s3://clicks/runs/{name}"}
        words |= {"train-0.train": ADDRESSES[0], "--nproc-per-node=gpu": "--nproc-per-node=1"}
        pods = Pods("train.yaml", self.root, words, more)

        def start(node: int) -> "subprocess.Popen[str]":
            return pods.start(node, self.machines.on(node), **self.variables(node))

        running, deadline = {node: start(node) for node in (0, 1)}, time.monotonic() + 400
        run = self.home(0) / "stores" / f"s3@{STORE}" / "clicks" / "runs" / name
        while running:
            assert time.monotonic() < deadline, pods.log(0)[-3000:]
            for node, pod in list(running.items()):
                if (code := pod.poll()) is not None:
                    del running[node]
                    if code:
                        running[node] = start(node)
            if is_lost and [*run.glob("checkpoints/*/complete.json")] and 1 in running:
                is_lost = False
                running[1].kill()
                running.pop(1).wait()
                self.empty(1)
                running[1] = start(1)
            time.sleep(0.2)
        assert not is_lost

    def predict(self, words: list[str]) -> None:
        """dlrm-predict on a rank of each machine; machine 1 begins with an empty disk."""
        self.empty(1)
        meet = ["--nnodes=2", "--nproc-per-node=1", f"--master-addr={ADDRESSES[0]}", "--master-port=29500"]
        start = [PYTHON, "-m", "torch.distributed.run", *meet]
        command = ["-m", "dlrm_app.cli", "predict", *words]
        running = [
            self.start(node, [*start, f"--node-rank={node}", *command], f"predict-{node}.log")
            for node in (0, 1)
        ]
        assert [each.wait(400) for each in running] == [0, 0], (self.root / "predict-0.log").read_text()[
            -3000:
        ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("moto.server", reason="no S3 server: pip install 'moto[s3]' flask flask-cors")
    with two_namespaces() as machines:
        made = Cluster(machines, tmp_path)
        for node in (0, 1):
            made.empty(node)
        store = made.start(0, [PYTHON, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000"], "store.log")
        try:
            (tmp_path / "train.txt").write_bytes(make_clicks(12_000))
            made.succeed(1, PYTHON, "-c", PREPARE, str(tmp_path / "train.txt"))
            yield made
        finally:
            store.kill()
            store.wait()


def test_a_log_becomes_scores_on_two_machines_that_share_a_store_and_one_of_them_is_lost(
    cluster: Cluster,
) -> None:
    dlrm = [PYTHON, "-m", "dlrm_app.cli"]
    small = ["encoding=hash", "encoding.num_embeddings=100", "dense.target_columns=null"]
    cluster.preprocess([*small, "layout.unit_mib=1", "threads=1"])
    more = [
        *SMALL,
        "trainer.epochs=6",
        "trainer.threads=1",
        "checkpoint.every_steps=8",
        "report.enabled=false",
    ]
    more += ["checkpoint.every_minutes=null", "trainer.timeout_minutes=1"]
    cluster.train("whole", more, is_lost=False)
    cluster.train("lost", more, is_lost=True)
    whole, lost = (
        json.loads(cluster.succeed(1, PYTHON, "-c", CHECKSUMS, name)) for name in ("whole", "lost")
    )
    assert lost == whole
    assert len(whole) > 1
    cluster.empty(1)
    scored = ["model=s3://clicks/runs/lost", "data.path=s3://clicks/kaggle", "split=train"]
    cluster.succeed(1, *dlrm, "predict", *scored, "output=s3://clicks/scores/alone.parquet")
    cluster.predict([*scored, "output=s3://clicks/scores/shared.parquet"])
    alone, shared = json.loads(cluster.succeed(1, PYTHON, "-c", SCORES)).values()
    assert alone == shared
    cluster.empty(1)
    export = ["checkpoint=s3://clicks/runs/lost", "format=torchscript", "judgement=ignore"]
    cluster.succeed(1, *dlrm, "export", *export, "output=s3://clicks/export")
    served = ["model=s3://clicks/export", "host=0.0.0.0", "port=8000", "threads=1"]
    server = cluster.start(0, [*dlrm, "serve", *served], "serve.log")
    try:
        log = cluster.root / "serve.log"
        wait_until(lambda: "/score" in log.read_text(), 240, log.read_text)
        answer: Any = json.loads(cluster.succeed(1, PYTHON, "-c", SCORE, f"http://{ADDRESSES[0]}:8000/score"))
    finally:
        server.kill()
        server.wait()
    (scores,) = answer.values()
    assert len(scores) == 2
    assert all(0 < score < 1 for score in scores)
