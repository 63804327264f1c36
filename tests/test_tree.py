"""The shape of the tree: small modules and folders, short signatures, the field's words, typed records."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "dlrm_app"
MODULES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in MODULES})

MAX_LINES = 400
MAX_MODULES = 14
ONE_MODULE_A_COMMAND = {"cli", "config"}
MAX_PARAMETERS = 7

COMPILED = "compiled: numba takes arrays and numbers, no records"
MANY_PARAMETERS = {
    "data/batch_order.py:train_order": "what the order of rows depends on, all of it by name",
    "data/gather.py:copy_rows": COMPILED,
    "preprocess/read/lines.py:parse_lines": COMPILED,
    "preprocess/read/plain_lines.py:read_batch": COMPILED,
    "preprocess/write/parquet/pages.py:pack_columns": COMPILED,
}
"""Public functions with more parameters, and why."""

RETIRED_PARTS = {
    "wish", "wishes", "way", "ways", "cure", "cures", "ahead", "skipping", "gate", "gates", "say", "says",
    "hotness", "member", "members",
}  # fmt: skip
"""Words that no part of a name may be: the field has others (constraint, sharding option, suggestion, …)."""
RETIRED_NAMES = {"found", "own", "place", "places"}
"""Names that say nothing of the thing named."""

SPECS = "what a table's spec or a pattern of sharding.tables holds, as YAML has it"
ENCODINGS = "an encoding or a transform as the manifest states it"
RUN_FILES = "a run's files, read or written as JSON"
UNTYPED = {
    "checkpoint/marker.py": "complete.json holds the configuration, the plan and the columns as their own files do",
    "checkpoint/progress.py": "complete.json",
    "checkpoint/state.py": "torch's own state: tensors, sharded tensors and numbers",
    "checkpoint/storage.py": "index.json",
    "checkpoint/trained_model.py": ENCODINGS,
    "config/saved.py": "a saved configuration",
    "config/sharding.py": SPECS,
    "data/columns.py": ENCODINGS,
    "data/manifest.py": "manifest.json",
    "doctor/probe.py": "what a probe prints as JSON",
    "doctor/probes/load.py": "what a probe prints as JSON",
    "inference/predict/scores_file.py": "what identifies a command, kept as JSON beside its parts",
    "preprocess/encode/dense.py": ENCODINGS,
    "preprocess/encode/encoder.py": ENCODINGS,
    "preprocess/job/finish.py": "the command's configuration, for the manifest",
    "preprocess/job/preprocess.py": "the command's configuration, compared with that of the run before",
    "records.py": "types of the fields of any record",
    "preprocess/job/work_folder.py": "the command's configuration, kept beside the journal",
    "preprocess/job/work_plan.py": "the command's configuration",
    "sharding/constraints.py": SPECS,
    "sharding/plan/plan_file.py": "plan.yaml",
    "tables/fused_optimizers.py": "arguments of fbgemm's optimizers",
    "training/optimization/optimizers.py": "arguments of torch's optimizers",
    "training/report/details.py": RUN_FILES,
    "training/report/prediction_charts.py": RUN_FILES,
    "training/report/run_record.py": RUN_FILES,
    "training/run.py": ENCODINGS,
    "training/run_folder/environment.py": RUN_FILES,
    "training/run_folder/events.py": RUN_FILES,
    "training/optimization/schedules.py": "a parameter group of a torch optimizer",
}
"""Modules that hold dict[str, Any], and why: configuration files, JSON at the edge, arguments of a library."""


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def public_functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods without a leading underscore, at any depth but inside functions."""
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        for node in ast.iter_child_nodes(nodes.pop()):
            if isinstance(node, ast.ClassDef):
                nodes.append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters of every kind, self left out."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_is_seen_at_a_glance(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MAX_MODULES or name_of(folder) in ONE_MODULE_A_COMMAND


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_public_function_takes_few_parameters(path: Path) -> None:
    long = {
        f"{name_of(path)}:{function.name}"
        for function in public_functions(path)
        if num_parameters(function) > MAX_PARAMETERS
    }
    assert long <= set(MANY_PARAMETERS), "pass a record, or say in MANY_PARAMETERS why not"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_identifiers_are_the_fields_own_words(path: Path) -> None:
    names = {
        token.string
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        if token.type == tokenize.NAME
    }
    parts = {part for name in (*names, path.stem) for part in name.lower().split("_")}
    assert parts & RETIRED_PARTS == set()
    assert (names | {path.stem}) & RETIRED_NAMES == set()


def test_dictionaries_of_anything_stop_at_the_edge() -> None:
    untyped = {name_of(path) for path in MODULES if "dict[str, Any]" in path.read_text(encoding="utf-8")}
    assert untyped == set(UNTYPED)
