"""dlrm-preprocess and dlrm-predict read objects of S3 as they read files: the same dataset, also after kills."""

import gzip
import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dlrm_app.errors import ConfigError, DataError
from dlrm_app.preprocessing.passes import encode_pass
from tests.commands import Typed, command, succeed
from tests.pages import blocks_of, type_commands
from tests.preprocessing.clicks import make_clicks
from tests.preprocessing.running import PLAIN, content, run
from tests.preprocessing.test_parquet_input import as_table
from tests.refusals import refused
from tests.test_docs import link_clone

FORMS = ["gz", "tsv", "parquet", "zst"]


def put_folder(s3: Any, folder: Path, key: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), "clicks", f"{key}/{path.relative_to(folder)}")


def write(folder: Path, form: str, text: bytes) -> Path:
    path = folder / f"log.{form}"
    if form == "parquet":
        pq.write_table(as_table(text), path, row_group_size=5_000)
    else:
        data = {
            "tsv": bytes,
            "gz": gzip.compress,
            "zst": lambda text: pa.compress(text, "zstd", asbytes=True),
        }
        path.write_bytes(data[form](text))
    return path


def without_places(folder: Path) -> dict[str, Any]:
    """The files of a dataset; of the manifest what does not tell where the input lay."""
    files: dict[str, Any] = dict(content(folder))
    manifest = json.loads(files.pop("manifest.json"))
    manifest["config"].pop("input")
    for source in manifest["sources"]:
        is_parquet = source["path"].endswith(
            ".parquet"
        )  # of which all bytes are summed up, in a store the footer's
        for key in ("path", "modified_ns", "tag", "sample", *(["checksum"] if is_parquet else [])):
            source.pop(key)
    return {**files, "manifest": manifest}


@pytest.mark.parametrize(
    "form", [*FORMS[::2], *(pytest.param(form, marks=pytest.mark.long) for form in FORMS[1::2])]
)
def test_an_object_gives_the_dataset_of_a_file(s3: Any, tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form, make_clicks(8_000))
    s3.upload_file(str(path), "clicks", f"day=1/log.{form}")
    s3.put_object(Bucket="clicks", Key="day=1/_SUCCESS", Body=b"")
    options = ["layout.unit_mib=1", "split.val=0.1", "encoding=vocab", "encoding.min_count=2"]
    run(tmp_path / "file", f"input.train={path}", *options)
    manifest = run(tmp_path / "object", "input.train='s3://clicks/day=*'", *options)
    assert without_places(tmp_path / "object") == without_places(tmp_path / "file")
    (source,) = manifest.sources
    assert source.path == f"s3://clicks/day=1/log.{form}"
    assert s3.head_object(Bucket="clicks", Key=f"day=1/log.{form}")["ETag"].strip('"') in source.tag


@pytest.mark.parametrize("form", FORMS[1:3])
def test_many_small_objects_give_the_dataset_of_files(s3: Any, tmp_path: Path, form: str) -> None:
    bad_every = 500 if form == "tsv" else 0
    lines = make_clicks(6_000, bad_every=bad_every).splitlines(keepends=True)
    for number in range(12):
        path = write(tmp_path, form, b"".join(lines[number * 500 : (number + 1) * 500]))
        place = f"dt={number // 4}/hour={number}/part-0.{form}"
        (tmp_path / "lake" / place).parent.mkdir(parents=True)
        path.rename(tmp_path / "lake" / place)
    put_folder(s3, tmp_path / "lake", "lake")
    options = ["split.val=0.1", "encoding=vocab", "encoding.min_count=2", "rejects.max_fraction=0.1"]
    run(tmp_path / "files", f"input.train={tmp_path}/lake", *options)
    run(tmp_path / "objects", "input.train=s3://clicks/lake", *options)
    made, expected = without_places(tmp_path / "objects"), without_places(tmp_path / "files")
    assert made.pop("rejects.jsonl").replace(b"s3://clicks", str(tmp_path).encode()) == expected.pop(
        "rejects.jsonl"
    )
    assert made == expected


def test_a_delta_table_in_a_store_gives_the_local_ones_dataset(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install deltalake")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # deltalake refuses plain HTTP otherwise
    table = as_table(make_clicks(4_000)).append_column("dt", pa.array(["a", "b"] * 2_000))
    deltalake.write_deltalake(tmp_path / "table", table, partition_by=["dt"])
    put_folder(s3, tmp_path / "table", "table")
    run(tmp_path / "local", f'input.train="delta://{tmp_path}/table"')
    manifest = run(tmp_path / "store", 'input.train="delta://s3://clicks/table?version=0"')
    assert without_places(tmp_path / "store") == without_places(tmp_path / "local")
    assert manifest.splits["train"].rows == 4_000


@pytest.mark.slow
def test_credentials_are_in_no_file_and_no_line(s3: Any, tmp_path: Path, endpoint: str, typed: Typed) -> None:
    s3.put_object(Bucket="clicks", Key="log.tsv", Body=make_clicks(2_000, bad_every=100))
    url = f"{endpoint.replace('http://', 'http://me:SECRET@')}/clicks/log.tsv?X-Amz-Signature=SECRET"
    given = [f'input.train="{url}"', "rejects.max_fraction=0.1", f"output={tmp_path}/made"]
    done = succeed(command("preprocess", *given), tmp_path)
    assert "SECRET" not in done.stdout + done.stderr
    for more, expected in ((["--cfg", "job"], 0), (["layout.unit_mib=nothing"], 2)):
        code, text = typed("preprocess", *given, *more)
        assert (code, "SECRET" in text) == (expected, False)
    made = content(tmp_path / "made")
    assert b"/clicks/log.tsv" in made["manifest.json"]
    assert [name for name, data in made.items() if b"SECRET" in data] == []


@pytest.mark.slow
def test_an_object_replaced_during_a_run_is_refused(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="clicks", Key="log.tsv", Body=make_clicks(20_000))
    given = ["input.train=s3://clicks/log.tsv", "layout.unit_mib=1", "threads=1"]
    encode = encode_pass.EncodeUnits.__call__

    def replace_then_encode(work: Any, text: Any) -> Any:
        if text.unit == 2:
            s3.put_object(Bucket="clicks", Key="log.tsv", Body=make_clicks(20_000, seed=1))
        return encode(work, text)

    with monkeypatch.context() as patch:
        patch.setattr(encode_pass.EncodeUnits, "__call__", replace_then_encode)
        with refused(
            DataError,
            "s3://clicks/log.tsv",
            "changed while it was being read (4,786,500 bytes before, 4,787,435 now)",
        ):
            run(tmp_path / "made", *given)
    with refused(
        ConfigError, "s3://clicks/log.tsv", "has changed, it had 4,786,500 bytes, it has 4,787,435 now"
    ):
        run(tmp_path / "made", *given)
    run(tmp_path / "again", *given)
    s3.put_object(Bucket="clicks", Key="log.tsv", Body=make_clicks(20_000, seed=2))
    with refused(ConfigError, "output=.../again", "holds a finished dataset of another input"):
        run(tmp_path / "again", *given)


@pytest.mark.long
def test_a_run_killed_at_random_moments_ends_in_the_same_bytes(s3: Any, tmp_path: Path) -> None:
    for form in ("tsv", "parquet"):
        s3.upload_file(
            str(write(tmp_path, form, make_clicks(30_000, seed=len(form)))), "clicks", f"log.{form}"
        )
    plain = {**PLAIN, "encoding": "vocab"}
    given = [f"{key}={value}" for key, value in plain.items()]
    given += ["input.train=s3://clicks/log.*", "layout.unit_mib=1", "split.val=0.1"]
    run(tmp_path / "whole", *given)
    arguments = command("preprocess", *given, f"output={tmp_path}/killed")
    draw = random.Random(0)
    for moment in [draw.uniform(1.0, 5.0) for _ in range(20)]:
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    succeed(arguments, tmp_path)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


@pytest.mark.long
def test_the_page_of_object_storage_works_as_it_stands(s3: Any, tmp_path: Path) -> None:
    """From Parquet on S3 to an AUC."""
    link_clone(tmp_path)
    (tmp_path / "out").mkdir()
    type_commands("dlrm-generate output=days.tsv rows=60_000", tmp_path)
    lines = (tmp_path / "days.tsv").read_bytes().splitlines(keepends=True)
    for day in range(3):
        part = as_table(b"".join(lines[20_000 * day : 20_000 * (day + 1)]))
        pq.write_table(part, tmp_path / "part.parquet")
        s3.upload_file(str(tmp_path / "part.parquet"), "clicks", f"days/dt=2026-11-{20 + day}/part-0.parquet")
    type_page("how-to/object-storage.md", tmp_path)
    assert pq.read_metadata(tmp_path / "out/s3-scores.parquet").num_rows == 20_000
    result = json.loads((tmp_path / "out/s3-run/result.json").read_text())
    assert 0.5 < result["evals"]["val"]["auc"] < 1


@pytest.mark.long
def test_the_tutorial_of_histories_works_as_it_stands(s3: Any, tmp_path: Path) -> None:
    """From a lake on S3 to an AUC, which attention raises as the tutorial says."""
    link_clone(tmp_path)
    (tmp_path / "out").mkdir()
    type_page("tutorial-histories.md", tmp_path)
    found = [
        json.loads((tmp_path / f"out/watch/{name}/result.json").read_text()) for name in ("mean", "attention")
    ]
    mean, attention = (result["evals"]["val"]["auc"] for result in found)
    assert attention > mean + 0.05
    assert pq.read_metadata(tmp_path / "out/watch/scores.parquet").num_rows == 20_000


def type_page(page: str, folder: Path) -> None:
    """Types the commands of docs/``page`` except for the drivers and the store, which are there."""
    for block in blocks_of(page):
        if block.language == "bash" and not block.text.startswith(("pip ", "export ")):
            block.do(folder)
