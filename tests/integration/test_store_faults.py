"""What a store that fails, or refuses, gets: another try, or an error before any work."""

from pathlib import Path
from typing import Any

import pytest

import dlrm_app as dlrm
from dlrm_app.errors import DataError
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.mirror import kept_folder
from tests.integration.faulty_store import Fault, FaultyStore
from tests.refusals import refused

URL = "s3://clicks/made"
ODD = ["a b/c d", "50%", "a%20b", "plus+and&", "what?", "hash#1", "ä/ö.json", "x=1/y;2", "quote'\"", "[1]*"]


def made(folder: KeptFolder) -> None:
    with kept_folder(folder):
        folder.folder.mkdir(parents=True, exist_ok=True)
        (folder.folder / "data").write_bytes(bytes(range(256)) * 999)
        (folder.folder / "manifest.json").write_text("{}")


@pytest.mark.parametrize(
    ("method", "verb"), [("PUT", "must not be written"), ("GET", "must not be listed")], ids=["write", "list"]
)
def test_a_bucket_without_permission_is_refused_before_any_work(
    faulty: FaultyStore, tmp_path: Path, method: str, verb: str
) -> None:
    log = tmp_path / "log.tsv"
    log.write_text("")
    faulty.fault = lambda given, key: Fault(status=403) if given == method else None
    with refused(
        DataError, URL, f"{verb}: there is no permission", "check the credentials in the environment"
    ):
        dlrm.preprocess("dataset=criteo_kaggle", f"input.train={log}", output=URL)
    assert {key for _, key in faulty.requests} <= {"", "made/.lease"}


@pytest.mark.parametrize(
    "fault",
    [Fault(status=503, headers={"retry-after": "1"}), Fault(status=500), Fault(status=429), Fault(cut=True)],
    ids=["503 with Retry-After", "500", "429", "cut"],
)
def test_what_passes_is_tried_again(faulty: FaultyStore, s3: Any, stores: Path, fault: Fault) -> None:
    kept = KeptFolder.of(URL)
    seen = set[tuple[str, str]]()

    def first_time(method: str, key: str) -> Fault | None:
        is_first = (method, key) not in seen
        seen.add((method, key))
        return fault if is_first and (key or not fault.cut) else None

    faulty.fault = first_time
    made(kept)
    assert s3.get_object(Bucket="clicks", Key="made/manifest.json")["Body"].read() == b"{}"
    whole = (kept.folder / "data").read_bytes()
    for path in stores.rglob("*"):
        if path.is_file():
            path.unlink()
    seen.clear()
    kept.fetch()
    assert (kept.folder / "data").read_bytes() == whole
    assert faulty.count("GET", "made/data") >= 2


def test_names_with_blanks_percents_and_others_come_back_as_they_were(s3: Any, stores: Path) -> None:
    kept = KeptFolder.of("s3://clicks/a b%20c/50%")
    with kept_folder(kept):
        for name in ODD:
            path = kept.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    keys = {each["Key"] for each in s3.list_objects_v2(Bucket="clicks")["Contents"]}
    assert keys == {f"a b%20c/50%/{name}" for name in ODD}
    for path in stores.rglob("*"):
        if path.is_file():
            path.unlink()
    kept.fetch()
    assert {name: (kept.folder / name).read_text() for name in ODD} == {name: name for name in ODD}


@pytest.mark.parametrize("key", ["made/../../outside", "made//double", "made/a/../b", "made/./c"])
def test_an_object_whose_name_leads_elsewhere_writes_nothing_there(s3: Any, stores: Path, key: str) -> None:
    s3.put_object(Bucket="clicks", Key="made/data", Body=b"1")
    s3.put_object(Bucket="clicks", Key=key, Body=b"bad")
    with refused(
        DataError, URL, "has an object whose name is not a path (...)", "rename or delete that object"
    ):
        KeptFolder.of(URL).fetch()
    assert [path for path in stores.parent.rglob("*") if path.is_file() and path.read_bytes() == b"bad"] == []
