"""Datasets and runs in a store have the bytes that they have on a disk, also after kills on machines with empty disks."""

import json
import random
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest

import dlrm_app as dlrm
from dlrm_app.api.places import local_places
from dlrm_app.errors import ConfigError, DataError, DlrmError
from dlrm_app.inference.predict.scores_file import ScoresFile
from dlrm_app.stores import lease
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.lease import held_lease
from dlrm_app.stores.local import is_record
from dlrm_app.stores.mirror import kept_folder
from dlrm_app.stores.objects import StoredFolder
from tests.commands import Typed, command, succeed
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import PLAIN, content
from tests.refusals import refused
from tests.small_run import CLOCK, SMALL

DATASET = {**PLAIN, "encoding": "vocab", "split.val": 0.1, "layout.unit_mib": 1}
WORDS = [f"{key}={value}" for key, value in DATASET.items()]
TRAIN = [*SMALL, "trainer.threads=1", "report.enabled=false"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.tsv"
    path.write_bytes(make_clicks(6_000))
    return path


def objects(s3: Any, folder: str) -> dict[str, bytes]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="clicks", Prefix=f"{folder}/")
    keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
    return {
        key.removeprefix(f"{folder}/"): s3.get_object(Bucket="clicks", Key=key)["Body"].read() for key in keys
    }


def tensors(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(".tensors")}


def evals(files: dict[str, bytes]) -> Any:
    found = json.loads(files["result.json"])["evals"]
    return {split: {k: v for k, v in each.items() if k not in CLOCK} for split, each in found.items()}


def test_a_dataset_in_a_store_has_the_bytes_of_one_on_a_disk(
    s3: Any, tmp_path: Path, log: Path, stores: Path
) -> None:
    given = [*WORDS, f"input.train={log}"]
    dlrm.preprocess(*given, output=str(tmp_path / "disk"))
    made = dlrm.preprocess(*given, output="s3://clicks/a b%20c/made")
    assert objects(s3, "a b%20c/made") == content(tmp_path / "disk")
    assert made.manifest.path == stores / f"s3@{_host(s3)}/clicks/a b%20c/made"
    shutil.rmtree(stores)
    again = dlrm.preprocess(*given, output="s3://clicks/a b%20c/made")  # finished already
    assert again.manifest == made.manifest
    with refused(ConfigError, "output=...", "holds a finished dataset of another configuration"):
        dlrm.preprocess(*given, "split.val=0.2", output="s3://clicks/a b%20c/made")


def _host(s3: Any) -> str:
    return str(s3.meta.endpoint_url).removeprefix("http://")


@pytest.mark.slow
def test_a_run_in_a_store_has_the_weights_of_one_on_a_disk_and_resumes_on_an_empty_disk(
    s3: Any, tmp_path: Path, log: Path, stores: Path, typed: Typed
) -> None:
    made = dlrm.preprocess(*WORDS, f"input.train={log}", output=str(tmp_path / "disk"))
    for name, data in content(tmp_path / "disk").items():
        s3.put_object(Bucket="clicks", Key=f"day/{name}", Body=data)
    train = ["trainer.epochs=2", "checkpoint.keep_last=1"]
    dlrm.train(*TRAIN, *train, f"data.path={made.path}", output=str(tmp_path / "run"))
    whole = content(tmp_path / "run")
    in_store = ["data.path=s3://clicks/day", "output=s3://clicks/runs/one"]
    dlrm.train(*TRAIN, *train, *in_store, "trainer.epochs=1")
    shutil.rmtree(stores)
    code, text = typed("train", *TRAIN, *train, *in_store, "resume=auto")
    assert code == 0, text
    assert str(stores) not in text
    kept = objects(s3, "runs/one")
    assert tensors(kept) == tensors(whole)
    assert evals(kept) == evals(whole)
    assert b"path: s3://clicks/day\n" in kept["config.yaml"]
    assert [name for name, data in kept.items() if str(stores).encode() in data] == []
    shutil.rmtree(stores)
    code, text = typed("evaluate", "checkpoint=s3://clicks/runs/one", "split=val", "threads=1")
    assert code == 0, text
    assert f"{evals(whole)['val']['auc']:.5f}" in text


def test_what_is_wrong_is_found_before_anything_is_fetched(s3: Any, log: Path, typed: Typed) -> None:
    given = [*WORDS, f"input.train={log}"]
    with refused(ConfigError, "split.vall", "is not a known key"):
        dlrm.preprocess(*given, "split.vall=0.1", output="s3://nowhere/x")
    with refused(DataError, "s3://nowhere/x", "does not exist"):
        dlrm.preprocess(*given, output="s3://nowhere/x")
    code, text = typed("train", *TRAIN, "data.path=s3://clicks/nothing", "output=s3://clicks/run")
    assert code
    assert "s3://clicks/nothing does not exist" in text
    assert objects(s3, "run") == {}


def test_two_machines_do_not_work_on_one_folder(s3: Any, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWED_SECONDS", 0.2)
    monkeypatch.setattr(lease, "_LOOK_SECONDS", 0.1)
    with held_lease(StoredFolder("s3://clicks/made")):
        name = "dlrm_app.stores.lease.this_process"
        monkeypatch.setattr(
            name, lambda mine=lease.this_process: replace(mine(), place=current_thread().name)
        )
        with refused(DlrmError, "output=s3://clicks/made", "is worked on by process ..."):
            dlrm.preprocess(*WORDS, f"input.train={log}", output="s3://clicks/made")
    assert s3.list_objects_v2(Bucket="clicks")["KeyCount"] == 0


def test_a_published_day_is_found_through_its_link(s3: Any, tmp_path: Path, stores: Path) -> None:
    kept = KeptFolder.of("s3://clicks/log")
    with kept_folder(kept):
        (kept.folder / "days/one/export").mkdir(parents=True)
        (kept.folder / "days/one/export/export.json").write_text("{}")
        (kept.folder / "published").symlink_to("days/one")
        (kept.folder / "elsewhere").symlink_to("/etc")
    assert objects(s3, "log") == {"days/one/export/export.json": b"{}", "published": b"days/one"}
    shutil.rmtree(stores)
    with local_places("serve", {"model": "s3://clicks/log/published/export"}, lambda: None) as found:
        assert (Path(str(found["model"])) / "export.json").read_text() == "{}"
    assert (kept.folder / "published").readlink() == Path("days/one")
    assert {path.name for path in kept.folder.iterdir()} == {"published", "days"}


def test_an_object_with_other_bytes_than_were_written_is_named(s3: Any, stores: Path) -> None:
    s3.put_object(Bucket="clicks", Key="made/a", Body=b"1", Metadata={"sha256": "sha256:0"})
    with refused(DataError, "s3://clicks/made/a", "has other bytes than were written (checksum)"):
        KeptFolder.of("s3://clicks/made").fetch()
    assert [path for path in stores.rglob("*") if path.is_file() and ".folders" not in path.parts] == []


@pytest.mark.slow
def test_exports_scores_and_evaluations_are_kept(s3: Any, log: Path, stores: Path, dataset: Path) -> None:
    for name, data in content(dataset).items():
        s3.put_object(Bucket="clicks", Key=f"day/{name}", Body=data)
    dlrm.train(*TRAIN, "trainer.epochs=1", "data.path=s3://clicks/day", output="s3://clicks/run")
    for folder in ("disk", "s3://clicks/made"):
        made = folder if folder != "disk" else str(stores.parent / folder)
        shutil.rmtree(stores)
        run = {"checkpoint": "s3://clicks/run"}
        dlrm.export(
            run,
            {"data.path": "s3://clicks/day"},
            "format=[parquet]",
            "judgement=ignore",
            output=f"{made}/export",
        )
        dlrm.predict("model=s3://clicks/run", "data.path=s3://clicks/day", output=f"{made}/scores.parquet")
        dlrm.evaluate(run, output=f"{made}/metrics.json")
    shutil.rmtree(stores)
    assert dlrm.load("s3://clicks/run") is not None
    on_disk, kept = content(stores.parent / "disk"), objects(s3, "made")
    assert kept.keys() == on_disk.keys() >= {"export/export.json", "scores.parquet", "metrics.json"}
    assert [name for name in kept if name.endswith(".parquet") and kept[name] != on_disk[name]] == []


@pytest.mark.slow
def test_scores_that_were_interrupted_are_taken_from_the_store_on_an_empty_disk(
    s3: Any, stores: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dlrm.train(*TRAIN, "trainer.epochs=1", f"data.path={dataset}", output=str(tmp_path / "run"))
    given = [f"model={tmp_path}/run", f"data.path={dataset}", "split=val"]
    dlrm.predict(*given, output=str(tmp_path / "scores.parquet"))
    in_store = "output=s3://clicks/made/scores.parquet"
    scored, write = list[str](), ScoresFile.write

    def write_some(self: ScoresFile, name: str, *rest: Any) -> None:
        if len(scored) == 2:
            raise DlrmError("interrupted")
        scored.append(name)
        write(self, name, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ScoresFile, "write", write_some)
        with pytest.raises(DlrmError, match="interrupted"):
            dlrm.predict(*given, in_store)
    records = [name for name in objects(s3, "made/scores.parquet.parts") if is_record(name)]
    assert len(records) == 2
    shutil.rmtree(stores)
    rest = list[str]()
    monkeypatch.setattr(
        ScoresFile, "write", lambda self, name, *more: (rest.append(name), write(self, name, *more))[1]
    )
    dlrm.predict(*given, in_store)
    assert rest
    assert not {*rest} & {*scored}
    assert objects(s3, "made") == {"scores.parquet": (tmp_path / "scores.parquet").read_bytes()}


@pytest.mark.long
def test_preprocessing_killed_on_one_empty_disk_after_another_ends_in_the_same_bytes(
    s3: Any, tmp_path: Path, stores: Path
) -> None:
    (tmp_path / "log.tsv").write_bytes(make_clicks(60_000))
    given = [*WORDS, f"input.train={tmp_path}/log.tsv", "shuffle=full"]
    succeed(command("preprocess", *given, f"output={tmp_path}/whole"), tmp_path)
    arguments = command("preprocess", *given, "output=s3://clicks/killed")
    draw = random.Random(0)
    seen: set[str] = set()
    for wanted in sorted(draw.sample(range(1, 80), 8)):  # killed once the store has seen so many names
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(seen) < wanted:
            seen |= objects(s3, "killed").keys()
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(stores, ignore_errors=True)
    succeed(arguments, tmp_path)
    assert any(is_record(name) for name in seen)  # some work was taken over
    assert objects(s3, "killed") == content(tmp_path / "whole")
