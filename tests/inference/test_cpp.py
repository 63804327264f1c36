"""The C++ program: built here, it scores an export as Python does, and says what is wrong."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from dlrm_app import load
from dlrm_app.checksums import checksum
from dlrm_app.config.export import ExportConfig
from dlrm_app.dataset.manifest import read_manifest
from dlrm_app.inference.export import export_model
from dlrm_app.inference.exported_model import open_export, to_lines
from dlrm_app.inference.record import read_export
from dlrm_app.inference.scoring_model import to_inputs
from dlrm_app.loader.batch import EvalBatches
from tests.composed import compose_config
from tests.inference.conftest import first_rows
from tests.inference.mixed import TEST, rows_with_carts
from tests.integration import test_vectors as vectors
from tests.make_log import describe, write_csv
from tests.small_run import train_here

pytestmark = pytest.mark.long


def run(program: Path, *arguments: str, rows: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **variables}  # nothing of Python's
    return subprocess.run(
        [str(program), *arguments], input=rows, capture_output=True, text=True, env=environment, check=False
    )


def test_reference_rows_have_the_scores_that_python_gave_them(built: Path, package_export: Path) -> None:
    done = run(built / "dlrm_score", str(package_export), "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("64 reference rows, largest difference ")


def test_attention_and_weights_score_as_in_python(built: Path, mixed_export: Path, mixed: Path) -> None:
    """The reference rows, others, and the model as it was trained; weights that are wrong are named."""
    done = run(built / "dlrm_score", str(mixed_export), "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("64 reference rows, largest difference ")
    model, trained = open_export(mixed_export), load(mixed / "run")
    with EvalBatches(read_manifest(mixed / "data"), "test", model.features, batch_size=TEST) as batches:
        inputs = to_inputs(next(iter(batches)))
    lines = to_lines(inputs)
    assert any(":" in line for line in lines)
    done = run(built / "dlrm_score", str(mixed_export), rows="\n".join(lines))
    scores = torch.from_numpy(np.array(done.stdout.split(), np.float32))
    torch.testing.assert_close(scores, model.score(inputs)[0], rtol=0, atol=1e-6)
    rows = rows_with_carts()[-TEST:].drop_columns(["clicked"])
    torch.testing.assert_close(scores, torch.from_numpy(trained.predict(rows)), rtol=0, atol=1e-5)
    weighted = next(line for line in lines if ":" in line)
    for wrong, message in ((":-1", "must be a number from 0 on"), (":x", "'x' is no number")):
        done = run(built / "dlrm_score", str(mixed_export), rows=re.sub(":[^,\t]*", wrong, weighted))
        assert done.returncode == 1
        assert message in done.stderr


def test_element_weights_are_refused_by_models_without_them(built: Path, package_export: Path) -> None:
    row = (package_export / "reference" / "rows.tsv").read_text().splitlines()[0].split("\t")
    done = run(built / "dlrm_score", str(package_export), rows="\t".join([*row[:3], f"{row[3]}:2", *row[4:]]))
    assert done.returncode == 1
    assert f"'{row[3]}:2' is no id" in done.stderr


def test_rows_of_standard_input_score_as_in_python(built: Path, package_export: Path, trained: Path) -> None:
    model = open_export(package_export)
    inputs = first_rows(trained, 701)
    done = run(built / "dlrm_score", str(package_export), rows="\n".join(to_lines(inputs)))
    scores = torch.from_numpy(np.array(done.stdout.split(), np.float32))
    torch.testing.assert_close(scores, model.score(inputs)[0], rtol=0, atol=1e-6)


def with_context(lines: list[str], names: list[str], shared: set[str]) -> tuple[str, str, str]:
    """(a context of the first line's columns ``shared``, the lines without these, the lines that repeat it)."""
    rows = [line.split("\t") for line in lines]
    context = dict(zip(names, rows[0], strict=True))
    own = [[cell for name, cell in zip(names, row, strict=True) if name not in shared] for row in rows]
    whole = [
        [context[name] if name in shared else cell for name, cell in zip(names, row, strict=True)]
        for row in rows
    ]
    return (
        "".join(f"{name}\t{context[name]}\n" for name in sorted(shared)),
        "\n".join(map("\t".join, own)),
        "\n".join(map("\t".join, whole)),
    )


def names_of(export: Path) -> list[str]:
    record = read_export(export)
    return [*record.dense, *(feature.name for feature in record.features)]


@pytest.mark.parametrize("kind", ["package_export", "mixed_export"])
def test_a_context_gives_the_scores_of_rows_that_repeat_it(
    built: Path, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """To the bit: dense values, ids, lists, and lists with weights."""
    export = request.getfixturevalue(kind)
    names, lines = names_of(export), (export / "reference" / "rows.tsv").read_text().splitlines()
    for shared in ({names[0], names[-1]}, {*names[1:]}, {*names[-2:]}):
        context, rows, repeated = with_context(lines, names, shared)
        (tmp_path / "context.tsv").write_text(context)
        done = run(built / "dlrm_score", str(export), "--context", str(tmp_path / "context.tsv"), rows=rows)
        assert done.returncode == 0, done.stderr
        assert done.stdout == run(built / "dlrm_score", str(export), rows=repeated).stdout
        assert len(done.stdout.split()) == len(lines)


def test_faults_of_a_context_are_named(built: Path, package_export: Path, tmp_path: Path) -> None:
    rows = (package_export / "reference" / "rows.tsv").read_text().splitlines()[0]
    (first, *_), file = names_of(package_export), tmp_path / "context.tsv"
    for context, message in (
        ("colour\t1\n", "line 1: colour is no feature of the model"),
        (f"{first}\t1\n{first}\t2\n", f"line 2: {first} is given twice"),
        (f"{first}\tx\n", "line 1: 'x' is no number"),
        (f"{first}\n", "line 1: a context has a name and a value a line"),
        ("c0\t50\n", "id 50 of feature c0 is outside its table"),
        (f"{first}\t1\n", "line 1: 7 fields, the model takes 2 numbers and 4 features"),
    ):
        file.write_text(context)
        own = "\t".join(rows.split("\t")[:3] + rows.split("\t")[4:]) if context.startswith("c0") else rows
        done = run(built / "dlrm_score", str(package_export), "--context", str(file), rows=own)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    done = run(built / "dlrm_score", str(package_export), "--context", str(tmp_path / "nowhere"), rows=rows)
    assert "nowhere: give a file with a name, a tab and a value a line" in done.stderr


def test_vectors_and_every_label_score_as_in_python(built: Path, tmp_path: Path) -> None:
    """A line has a probability for each label. Vectors by item are tables of the package, those by row dense values.

    Both are tried in a context and beside one.
    """
    columns, labels = (
        [*vectors.COLUMNS, "{name: order, role: label}"],
        "labels: [clicked, {order: {given: clicked}}]",
    )
    text = f"derived: [{{name: item_text, kind: vectors, of: item, file: {tmp_path}/items.parquet}}]"
    describe(tmp_path, columns, labels, text)
    vectors.write_items(tmp_path / "items.parquet")
    rows = vectors.draw_rows()
    orders = rows["clicked"].to_numpy() * np.random.default_rng(1).integers(0, 2, len(rows))
    write_csv(tmp_path / "log.csv", rows.append_column("order", pa.array(orders)))
    data = vectors.preprocess(tmp_path, "data", "encoding=vocab", "encoding.day=1")
    train_here(tmp_path / "run", f"data.path={data}", *vectors.COMMON)
    words = [f"checkpoint={tmp_path}/run", f"output={tmp_path}/export", "threads=1", "judgement=ignore"]
    export_model(compose_config("export", ExportConfig, [*words, "max_auc_loss=1"]))
    done = run(built / "dlrm_score", str(tmp_path / "export"), "--check")
    assert done.returncode == 0, done.stderr
    model = open_export(tmp_path / "export")
    with EvalBatches(read_manifest(data), "test", model.features, batch_size=500) as batches:
        inputs = to_inputs(next(iter(batches)))
    lines, names = to_lines(inputs), names_of(tmp_path / "export")
    done = run(built / "dlrm_score", str(tmp_path / "export"), rows="\n".join(lines))
    scores = [[float(score) for score in line.split("\t")] for line in done.stdout.splitlines()]
    torch.testing.assert_close(torch.tensor(scores), model.score(inputs)[0], rtol=0, atol=1e-6)
    assert len(scores[0]) == 2
    assert "item_text" in names
    context, own, repeated = with_context(lines, names, {"item_text", names[0]})
    (tmp_path / "context.tsv").write_text(context)
    given = ["--context", str(tmp_path / "context.tsv")]
    done = run(built / "dlrm_score", str(tmp_path / "export"), *given, rows=own)
    assert done.stdout == run(built / "dlrm_score", str(tmp_path / "export"), rows=repeated).stdout != ""


def test_faults_of_the_input_are_named(built: Path, package_export: Path, tmp_path: Path) -> None:
    score, export = built / "dlrm_score", str(package_export)
    row = (package_export / "reference" / "rows.tsv").read_text().splitlines()[0].split("\t")
    cases = [
        (run(score, str(tmp_path)), "no .*model.pt2"),
        (
            run(score, export, rows="\t".join(row[:-1])),
            "line 1: 6 fields, the model takes 3 numbers and 4 features",
        ),
        (run(score, export, rows="\t".join(["x", *row[1:]])), "line 1: 'x' is no number"),
        (
            run(score, export, rows="\t".join([*row[:3], "50", *row[4:]])),
            "id 50 of feature c0 is outside its table",
        ),
        (run(score, export, FBGEMM_GPU_FOLDER="/nowhere"), "no /nowhere/fbgemm.so: set FBGEMM_GPU_FOLDER"),
    ]
    for done, message in cases:
        assert done.returncode == 1
        assert message.replace(".*", "") in done.stderr or message.split(".*")[-1] in done.stderr


def test_a_cpu_that_lacks_an_instruction_is_refused(
    built: Path, package_export: Path, tmp_path: Path
) -> None:
    """The package's metadata say what it needs: here of an instruction that no CPU has."""
    import zipfile

    (tmp_path / "other").mkdir()
    with (
        zipfile.ZipFile(package_export / "model.pt2") as before,
        zipfile.ZipFile(tmp_path / "other" / "model.pt2", "w", zipfile.ZIP_STORED) as after,
    ):
        for item in before.infolist():
            data = before.read(item)
            if item.filename.endswith("metadata.json"):
                data = data.replace(b'"dlrm.cpu": "', b'"dlrm.cpu": "avx9 ')
            after.writestr(item, data)
    marks = {"model.pt2": {"bytes": 0, "checksum": checksum(tmp_path / "other" / "model.pt2")}}
    (tmp_path / "other" / "export.json").write_text(json.dumps({"files": marks}))
    done = run(built / "dlrm_score", str(tmp_path / "other"), "--check")
    assert done.returncode == 1
    assert "needs a CPU with avx9, which this one lacks" in done.stderr


def test_other_bytes_than_were_verified_are_refused(
    built: Path, package_export: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(package_export, tmp_path / "copy")
    with (copy / "model.pt2").open("r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    done = run(built / "dlrm_score", str(copy), "--check")
    assert done.returncode == 1
    assert "model.pt2 has other bytes than were verified (checksum)" in done.stderr
