"""What a command does in a folder reaches the store; at any moment the store has no half work that looks whole."""

import itertools
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from dlrm_app.errors import DlrmError
from dlrm_app.files import write_json
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.local import files_in, in_order
from dlrm_app.stores.mirror import Mirror, kept_folder
from dlrm_app.stores.names import local_place
from dlrm_app.stores.parts import note_deleted, note_elsewhere, tensors_in
from tests.stores.memory_store import KilledError, MemoryFolder

URL = "s3://bucket/work"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLRM_STORE_FOLDER", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def store() -> MemoryFolder:
    return MemoryFolder(URL)


@pytest.fixture
def kept(store: MemoryFolder, cache: Path) -> KeptFolder:
    return KeptFolder(store, local_place(URL))


def on_another_machine(kept: KeptFolder) -> KeptFolder:
    """The same folder, where nothing was fetched yet."""
    shutil.rmtree(kept.folder.parents[2], ignore_errors=True)
    return kept


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name, _ in files_in(folder)}


def test_a_folder_comes_back_as_it_was(kept: KeptFolder, store: MemoryFolder) -> None:
    with kept_folder(kept):
        (kept.folder / "train").mkdir(parents=True)
        (kept.folder / "train/part 0%.parquet").write_bytes(b"rows")
        (kept.folder / "empty").write_bytes(b"")
        (kept.folder / ".x.1234.tmp").write_bytes(b"half")
        (kept.folder / ".lock").write_bytes(b"")
        write_json(kept.folder / "manifest.json", {"rows": 1})
        made = contents(kept.folder)
    assert store.objects == made
    assert {*made} == {"train/part 0%.parquet", "empty", "manifest.json"}
    on_another_machine(kept).fetch()
    assert contents(kept.folder) == made


def test_what_another_machine_has_made_since_replaces_the_local_side(
    kept: KeptFolder, store: MemoryFolder
) -> None:
    with kept_folder(kept):
        kept.folder.mkdir(parents=True, exist_ok=True)
        (kept.folder / "old").write_bytes(b"1")
        (kept.folder / "same").write_bytes(b"2")
    (kept.folder / "not sent").write_bytes(b"3")
    before = (kept.folder / "same").stat()
    kept.fetch()
    assert {*contents(kept.folder)} == {"old", "same", "not sent"}  # the local side is ahead
    store.objects.update(new=b"4")
    del store.objects["old"]
    kept.fetch()
    assert contents(kept.folder) == {"same": b"2", "new": b"4"}
    assert (kept.folder / "same").stat().st_ino == before.st_ino


def test_a_renamed_file_is_copied_in_the_store_and_equal_bytes_are_not_sent_again(
    kept: KeptFolder, store: MemoryFolder
) -> None:
    requests: list[str] = []
    with kept_folder(kept):
        kept.folder.mkdir(parents=True, exist_ok=True)
        (kept.folder / "a").write_bytes(b"1")
        write_json(kept.folder / "result.json", {})
    object.__setattr__(store, "request", requests.append)
    with kept_folder(kept):
        (kept.folder / "a").rename(kept.folder / "b")
        write_json(kept.folder / "result.json", {})
    assert requests == ["copy b", "delete a"]


def test_two_commands_of_a_machine_do_not_work_on_one_folder(kept: KeptFolder) -> None:
    with kept_folder(kept):
        with pytest.raises(DlrmError, match="works on s3://bucket/work"), kept_folder(kept):
            pass
        kept.fetch()  # a reader takes what is there


def test_a_part_of_a_folder_that_is_worked_on_is_left_alone(kept: KeptFolder) -> None:
    with kept_folder(kept):
        (kept.folder / "rows").mkdir(parents=True)
        (kept.folder / "rows/new").write_bytes(b"1")
        part = KeptFolder(MemoryFolder(f"{URL}/rows", {"old": b"2"}), kept.folder / "rows")
        part.fetch()
        assert contents(part.folder) == {"new": b"1"}
    part.fetch()
    assert contents(part.folder) == {"old": b"2"}


def test_a_store_that_fails_at_the_end_is_an_error_that_says_what_to_do(
    kept: KeptFolder, store: MemoryFolder
) -> None:
    def fail(what: str) -> None:
        raise DlrmError("no permission")

    kept.folder.mkdir(parents=True)
    (kept.folder / "a").write_bytes(b"1")
    object.__setattr__(store, "request", fail)
    with pytest.raises(DlrmError, match="run the same command again"), kept_folder(kept):
        pass
    object.__setattr__(store, "request", lambda what: None)
    with kept_folder(kept):
        pass
    assert store.objects == {"a": b"1"}


def test_marks_come_after_data_and_the_deepest_first() -> None:
    names = ["manifest.json", "day/day.json", "day/run/result.json", "x", "out/.work/plan.json", "day/a.json"]
    assert in_order(names) == [
        ["day/a.json", "x"],
        ["out/.work/plan.json"],
        ["day/run/result.json"],
        ["day/day.json"],
        ["manifest.json"],
    ]


def work(folder: Path, draw: random.Random) -> Iterator[None]:
    """Saves checkpoints, saves some again, deletes the oldest, moves them; a step at a time."""
    for number in range(6):
        step = folder / f"step-{draw.randrange(3)}"
        partial = folder / ".step.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        files = {name: draw.randbytes(8) for name in ("a", "b", "c")[: 1 + draw.randrange(3)]}
        for name, data in files.items():
            (partial / name).write_bytes(data)
            yield
        write_json(partial / "complete.json", {n: sha256(d).hexdigest() for n, d in files.items()})
        yield
        shutil.rmtree(folder / ".step.replaced", ignore_errors=True)
        if step.exists():
            step.rename(folder / ".step.replaced")
        partial.rename(step)
        yield
        shutil.rmtree(folder / ".step.replaced", ignore_errors=True)
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(f"{number}\n")
        yield
        if draw.random() < 0.3 and step.exists():
            (step / "complete.json").unlink()
            shutil.rmtree(step)
            yield


def assert_whole(store: MemoryFolder) -> None:
    """Every checkpoint with a mark has the files, and the bytes, that its mark says."""
    objects = dict(store.objects)  # threads put and delete meanwhile
    for name, data in objects.items():
        if name.endswith("complete.json"):
            above = name.removesuffix("complete.json")
            for other, digest in json.loads(data).items():
                assert sha256(objects[above + other]).hexdigest() == digest


@pytest.mark.parametrize("seed", range(60))
def test_a_process_killed_at_any_request_leaves_nothing_half_that_looks_whole(
    kept: KeptFolder, store: MemoryFolder, seed: int
) -> None:
    draw = random.Random(seed)
    last = draw.randrange(60)
    requests = itertools.count()  # one number for each of several threads
    is_killed = False

    def request(what: str) -> None:
        assert_whole(store)
        if next(requests) == last:
            raise KilledError

    object.__setattr__(store, "request", request)
    mirror = Mirror(kept)
    try:
        for _ in work(kept.folder, draw):
            if draw.random() < 0.5:
                mirror.send()
        mirror.send(is_last=True)
    except KilledError:
        is_killed = True
    assert_whole(store)
    if not is_killed:
        assert store.objects == contents(kept.folder)
    if (
        draw.random() < 0.5
    ):  # on the same machine, it goes on from what it had; on another one, from the store
        on_another_machine(kept)
    kept.fetch()
    last = -1
    mirror = Mirror(kept)
    for _ in work(kept.folder, draw):
        mirror.send()
    mirror.send(is_last=True)
    assert store.objects == contents(kept.folder)


def test_files_that_another_machine_has_sent_stay_until_their_mark_is_deleted(
    kept: KeptFolder, store: MemoryFolder
) -> None:
    folder = kept.folder / "checkpoints/step-1"
    folder.mkdir(parents=True)
    for name in ("rank-0", "rank-1"):
        (folder / name).write_bytes(b"fetched")
    write_json(folder / "complete.json", {"save": 1})
    mirror = Mirror(kept)
    mirror.send(is_last=True)
    # the same step is saved again, by ranks on two machines
    store.objects["checkpoints/step-1/rank-1"] = b"theirs"
    note_elsewhere(folder, ["rank-1"])
    (folder / "rank-1").unlink()
    write_json(folder / "complete.json", {"save": 2})
    mirror.send(is_last=True)
    assert store.objects["checkpoints/step-1/rank-1"] == b"theirs"
    assert store.objects.keys() == {
        f"checkpoints/step-1/{name}" for name in ("rank-0", "rank-1", "complete.json")
    }
    (folder / "rank-1").write_bytes(b"theirs")  # read again here
    mirror.send(is_last=True)
    shutil.rmtree(folder)
    note_deleted(folder)
    mirror.send()
    assert store.objects == {}


@pytest.mark.parametrize("is_same_machine", [False, True])
@pytest.mark.parametrize("above", ["", "days/one/export/"])
@pytest.mark.parametrize("left", range(1, 7))
def test_what_was_sent_of_an_export_when_its_sender_was_killed_is_no_export(
    kept: KeptFolder, store: MemoryFolder, above: str, left: int, is_same_machine: bool
) -> None:
    """It is not there, or whole; the next command can make it. Other files stay."""
    others = {"other/file": b"0"} if above else {}
    store.objects.update(others)
    files = {f"{above}export.json": b"{}", f"{above}model.pt": b"1", f"{above}a/b.parquet": b"2"}

    def make() -> None:
        for name, data in files.items():
            (kept.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (kept.folder / name).write_bytes(data)

    def request(what: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    kept.fetch()
    make()
    object.__setattr__(store, "request", request)
    with suppress(KilledError):
        Mirror(kept).send(is_last=True)
    left = 0
    if not is_same_machine:
        on_another_machine(kept)
        kept.fetch()
        assert {*contents(kept.folder)} - {*others} in (set(), {*files})
    with kept_folder(kept):
        assert {*contents(kept.folder)} - {*others} in (set(), {*files})
        make()
    assert store.objects == {**files, **others}


def test_tensors_that_are_left_stay_in_the_store_until_their_checkpoint_is_deleted_or_saved_again(
    kept: KeptFolder, store: MemoryFolder
) -> None:
    checkpoints = [kept.folder / f"checkpoints/step-{step}" for step in range(3)]
    names = ["rank-00000.tensors", "rank-00001.tensors"]
    with kept_folder(kept):
        for folder in checkpoints:
            folder.mkdir(parents=True)
            for name in names:
                (folder / name).write_bytes(b"values")
            write_json(folder / "complete.json", {"save": 1})
    whole = dict(store.objects)
    with kept_folder(on_another_machine(kept), leave=tensors_in):
        assert {*contents(kept.folder)} == {f"checkpoints/step-{step}/complete.json" for step in range(3)}
    assert store.objects == whole
    with kept_folder(on_another_machine(kept), leave=tensors_in):
        shutil.rmtree(checkpoints[0])
        note_deleted(checkpoints[0])
        note_elsewhere(checkpoints[1], [], names[:1])  # by one rank, of this machine
        (checkpoints[1] / names[0]).write_bytes(b"others")
        write_json(checkpoints[1] / "complete.json", {"save": 2})
    left = {f"checkpoints/step-2/{name}": b"values" for name in names}
    assert store.objects == contents(kept.folder) | left
    assert store.objects[f"checkpoints/step-1/{names[0]}"] == b"others"
    assert f"checkpoints/step-1/{names[1]}" not in store.objects
