"""Deltas of exports: base and delta give the full export byte for byte; everything else is refused."""

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlrm_app.config.export import ExportConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.errors import DataError
from dlrm_app.inference import export
from dlrm_app.inference.delta import apply_patch, cut_pieces, locate_rows, write_patch
from dlrm_app.inference.exported_model import open_export
from dlrm_app.inference.problems import check_export
from dlrm_app.inference.record import RowsAt, read_export
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.loader.batch import EvalBatches
from tests.composed import compose_config
from tests.inference.conftest import TABLES, export_here
from tests.refusals import refused
from tests.small_run import train_here

FORMATS = {
    "fp32": ["format=[torchscript,parquet]"],
    "int8_and_fp16": ["format=torchscript", "quantize=int8", "quantize_tables={t_c0: fp16}"],
    "plain": ["format=parquet", "quantize_tables={t_c1: fp16}"],
    "shards": ["format=torchscript", "quantize=int8", "shards=2"],
    "int4": ["format=torchscript", "quantize=int4"],
    "aoti": ["format=aoti", "quantize=int8"],
}


@pytest.fixture(scope="module")
def later(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained run two steps later: a hundred of the 1,000 rows of t_c1 changed, and all dense weights."""
    run = tmp_path_factory.mktemp("later") / "later"
    keys = [f"data.path={trained}/dataset", f"tables={trained}/tables.yaml", "trainer.max_steps=2"]
    train_here(run, *keys, f"warm_start.checkpoint={trained}/run", "trainer.global_batch_size=64")
    return run


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_delta(
    folder: Path, before: Path, after: Path, monkeypatch: pytest.MonkeyPatch, *keys: str
) -> dict[str, bytes]:
    """Makes FOLDER/base and FOLDER/delta; gives the files of the full export that the delta was made of."""
    full, write = {}, export.write_delta

    def keep(base: Path, made: Path, delta: Path) -> Any:
        full.update(files_of(made))
        return write(base, made, delta)

    monkeypatch.setattr(export, "write_delta", keep)
    export_here(f"checkpoint={before}", *keys, "max_auc_loss=1", f"output={folder}/base")
    since = ["max_auc_loss=1", f"since={folder}/base", f"output={folder}/delta"]
    export_here(f"checkpoint={after}", *keys, *since)
    return full


def apply(folder: Path, output: str = "applied", base: str = "base") -> Path:
    export_here(f"base={folder}/{base}", f"apply={folder}/delta", f"output={folder}/{output}")
    return folder / output


def code_bytes(export: dict[str, bytes]) -> int:
    """Compressed bytes of TorchScript's code, which may differ: torch numbers its classes through a process."""
    entries = zipfile.ZipFile(io.BytesIO(export["model.ts"])).infolist() if "model.ts" in export else []
    return sum(entry.compress_size for entry in entries if entry.compress_type)


@pytest.mark.parametrize(
    "kind", [*list(FORMATS)[:3], *(pytest.param(kind, marks=pytest.mark.long) for kind in list(FORMATS)[3:])]
)
def test_base_and_delta_give_the_files_of_the_full_export(
    trained: Path, later: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    full = make_delta(tmp_path, trained / "run", later, monkeypatch, *FORMATS[kind])
    assert files_of(apply(tmp_path)) == full
    assert set(full) == {*read_export(tmp_path / "applied").files, "export.json"}
    size, code = sum(map(len, files_of(tmp_path / "delta").values())), code_bytes(full)
    assert size < code + 0.5 * (sum(map(len, full.values())) - code)
    if kind != "plain":
        assert open_export(tmp_path / "applied").record.checkpoint == "later/step-000000002"


def test_deltas_keep_attention_and_weights(
    mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is applied has the files, and the scores, of the full export."""
    keys = [f"data.path={mixed}/data", f"tables={mixed}/tables.yaml", "trainer.max_steps=3"]
    train_here(tmp_path / "later", *keys, f"warm_start.checkpoint={mixed}/run")
    words = ["format=[torchscript,parquet]"]
    full = make_delta(tmp_path, mixed / "run", tmp_path / "later", monkeypatch, *words)
    applied = apply(tmp_path)
    assert files_of(applied) == full
    features = open_export(applied).features
    with EvalBatches(read_manifest(mixed / "data"), "test", features, batch_size=100) as batches:
        inputs = to_inputs(next(iter(batches)))
    scores = [open_export(folder).score(inputs)[0] for folder in (tmp_path / "base", applied)]
    (tmp_path / "full").mkdir()
    for name, data in full.items():
        (tmp_path / "full" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "full" / name).write_bytes(data)
    assert torch.equal(scores[1], open_export(tmp_path / "full").score(inputs)[0])
    assert not torch.equal(scores[0], scores[1])


def test_tables_that_grew_are_in_the_delta(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tables.yaml").write_text(
        TABLES.replace("rows: 1000", "rows: 1200").replace("rows: 50", "rows: 60")
    )
    keys = [f"data.path={trained}/dataset", f"tables={tmp_path}/tables.yaml", "trainer.max_steps=2"]
    train_here(tmp_path / "run", *keys, "trainer.seed=1")
    full = make_delta(
        tmp_path, trained / "run", tmp_path / "run", monkeypatch, "format=torchscript", "quantize=int8"
    )
    assert files_of(apply(tmp_path)) == full


def patch_of(
    before: NDArray[np.uint8], after: NDArray[np.uint8], old_rows: list[RowsAt], new_rows: list[RowsAt]
) -> pa.Buffer:
    """The patch of a file, not compressed."""
    sink = pa.BufferOutputStream()
    write_patch(sink, before, after, cut_pieces(before, after, old_rows, new_rows))
    return sink.getvalue()


def patched(before: NDArray[np.uint8], patch: pa.Buffer) -> bytes:
    return b"".join(map(bytes, apply_patch(pa.BufferReader(patch), before)))


@given(
    st.binary(max_size=3000),
    st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=40)), max_size=5),
    st.lists(st.tuples(*[st.integers(-1, 300)] * 3, st.integers(-1, 9)), max_size=4),
)
def test_any_bytes_and_any_hints_give_the_new_bytes(
    old: bytes, inserted: list[tuple[int, bytes]], hints: list[tuple[int, int, int, int]]
) -> None:
    new = old
    for at, text in inserted:
        new = new[:at] + text + new[at + len(text) // 2 :]

    def rows(place: int) -> list[RowsAt]:
        """Rows that may be anything, anywhere."""
        return [RowsAt("t", i, hint[place], hint[2], hint[3]) for i, hint in enumerate(hints)]

    before, after = np.frombuffer(old * 3, np.uint8), np.frombuffer(new * 3, np.uint8)
    assert patched(before, patch_of(before, after, rows(0), rows(1))) == new * 3


def test_changing_5_percent_of_rows_patches_less_than_10_percent() -> None:
    random = np.random.default_rng(0)
    before = random.integers(0, 256, (20_000, 20), dtype=np.uint8)
    after, rows = before.copy(), [RowsAt("t", 0, 0, *before.shape)]
    after[random.choice(len(after), len(after) // 20, replace=False)] = 1
    patch = patch_of(before.reshape(-1), after.reshape(-1), rows, rows)
    assert len(patch) < before.size / 10
    assert patched(before.reshape(-1), patch) == after.tobytes()


def test_rows_are_found_where_they_lie(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    tables = {name: random.integers(0, 256, (500, 20), dtype=np.uint8) for name in "abc"}
    parts = [
        b"head",
        tables["b"].tobytes(),
        b"-",
        tables["a"][:300].tobytes(),
        b"page",
        tables["a"][300:].tobytes(),
    ]
    (tmp_path / "file").write_bytes(b"".join(parts))
    assert locate_rows(tmp_path / "file", [(name, 0, rows) for name, rows in tables.items()]) == [
        RowsAt("a", 0, 10005, 300, 20),
        RowsAt("a", 300, 16009, 200, 20),
        RowsAt("b", 0, 4, 500, 20),
    ]


@pytest.fixture(scope="module")
def deltas(trained: Path, later: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``base``, the ``delta`` and, under ``full``, the export that it was made of."""
    folder = tmp_path_factory.mktemp("deltas")
    with pytest.MonkeyPatch.context() as patch:
        for name, text in make_delta(folder, trained / "run", later, patch, "format=parquet").items():
            (folder / "full" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "full" / name).write_bytes(text)
    return folder


@pytest.fixture
def made(deltas: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(deltas, tmp_path / "made"))


def test_another_base_is_refused_before_any_work(made: Path) -> None:
    keys = [f"base={made}/full", f"apply={made}/delta", f"output={made}/applied"]
    for work in (check_export, export.export_model):
        with refused(
            DataError,
            "apply=.../made/delta",
            "was made from another export (of step 93) than base=.../made/full...",
        ):
            work(compose_config("export", ExportConfig, keys))
    assert not (made / "applied").exists()


@pytest.mark.parametrize("file", ["base/tables/t_c0.parquet", "delta/tables/t_c1.parquet.patch"])
def test_a_damaged_base_or_delta_is_refused_naming_the_file(made: Path, file: str) -> None:
    data = bytearray((made / file).read_bytes())
    data[len(data) // 2] ^= 1
    (made / file).write_bytes(data)
    with refused(DataError, f"{made}/{file}", "has other bytes than were written (checksum)"):
        apply(made)
    assert not (made / "applied").exists()


def test_a_delta_that_says_other_things_is_refused(made: Path) -> None:
    written = json.loads((made / "delta/delta.json").read_text())
    for change, place, rule in (
        ({"version": 2}, "/delta.json", "has version 2 of dlrm-delta, this program reads version 1"),
        (
            {"base_step": "many"},
            "/delta.json",
            "is damaged...Expected `int`, got `str` - at `$.base_step`...",
        ),
        (
            {"record": {**written["record"], "files": {"../x": {"bytes": 0, "checksum": ""}}}},
            "/delta.json",
            "names a file outside its folder...",
        ),
        ({"record": {**written["record"], "step": 999}}, "", "does not give the export that it was made for"),
    ):
        (made / "delta/delta.json").write_text(json.dumps({**written, **change}))
        with refused(DataError, f"{made}/delta{place}", rule):
            apply(made)
    assert not (made / "applied").exists()
    with refused(DataError, ".../made/base", "holds no delta, because it has no delta.json"):
        export_here(f"base={made}/base", f"apply={made}/base", f"output={made}/applied")


@pytest.mark.parametrize("killed", ["write_delta", "apply_delta"])
def test_after_a_kill_the_same_command_makes_the_delta(
    later: Path, made: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    keys = [f"checkpoint={later}", "format=parquet", f"since={made}/base", f"output={made}/again"]

    def kill(*_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export, killed, kill)
        with pytest.raises(KeyboardInterrupt):
            export_here(*keys)
        if killed == "apply_delta":
            with pytest.raises(KeyboardInterrupt):
                apply(made)
    assert {path.name for path in made.iterdir()} == {"base", "delta", "full"}
    export_here(*keys)
    assert files_of(made / "again") == files_of(made / "delta")
    assert files_of(apply(made)) == files_of(made / "full")
