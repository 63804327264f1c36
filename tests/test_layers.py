"""The import rules: layers go down, Hydra stays at the edge, and what needs no torch loads none."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dlrm_app"

# from the top down; a folder imports from itself and from lower lines alone, the nested ones too
LAYERS = [
    {"cli"},
    {"api"},
    {"reports"},
    {"tools/tuning", "tools/daily"},
    {"tools/planning"},
    {"inference/serve"},
    {"inference/predict"},
    {"inference"},
    {"training"},
    {"preprocessing"},
    {"preprocessing/passes"},
    {"preprocessing/work"},
    {"tools/checking", "tools/synthetic"},
    {"evaluation"},
    {"runs"},
    {"runs/checkpoint"},
    {"sharding"},
    {"model"},
    {"loader"},
    {"encoding"},
    {"stores"},
    {"logs"},
    {"logs/sources"},
    {"dataset"},
    {"tables"},
    {"kernels"},
    {"distributed"},
    {"config"},
    {"tools/diagnosis"},
    {"result"},
    {"machine", "progress", "table", "journal"},
    {"records"},
    {"locks", "forks", "checksums"},
    {"files"},
    {"text", "typed", "dates"},
    {"errors"},
]
DEPTH = {part: depth for depth, parts in enumerate(LAYERS) for part in parts}

MODULES = sorted(PACKAGE.rglob("*.py"))
COMMANDS = sorted(
    point.name for point in entry_points(group="console_scripts") if point.value.startswith("dlrm_app.cli.")
)


def part_of(module: str) -> str | None:
    """The layer's name that a module (dlrm_app.a.b) belongs to: its folder, or its own name at the top."""
    names = module.split(".")[1:]
    if (PACKAGE / Path(*names) / "__init__.py").is_file():
        return "/".join(names) or None
    return "/".join(names[:-1]) or names[0]


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Every module imported anywhere in the file, and the line; strings given to import_module too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield (name if is_module(name) else node.module), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else "?"
            yield str(name), node.lineno


def is_module(name: str) -> bool:
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def offences(path: Path) -> Iterator[str]:
    part = part_of(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    if part is None:  # the package itself, whose names another test sees loaded only when they are used
        return
    for module, line in imports_of(path):
        top = module.split(".")[0]
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if top in ("hydra", "omegaconf") and part not in ("cli", "config"):
            yield f"{where}: Hydra and OmegaConf stay in cli/ and config/"
        if module == "?" and path.name not in BY_NAME:
            yield f"{where}: imports that no reader and no test can follow: import it by name"
        other = part_of(module) if top == "dlrm_app" else None
        if other is not None and not may_import(part, other):
            yield f"{where}: imports go down only, {part} stands beside or below {other}"


def may_import(part: str | None, other: str) -> bool:
    return part == other or (part is not None and DEPTH[part] < DEPTH[other])


BY_NAME = {"probes.py"}
"""Modules that import what they are told to."""


def test_a_module_imports_only_what_lies_below_it() -> None:
    assert [offence for path in MODULES for offence in offences(path)] == []


def test_only_the_library_imports_preprocessing() -> None:
    """Training, scoring and checking read logs and encode rows without it."""
    importers = {
        path.relative_to(PACKAGE).parts[0]
        for path in MODULES
        for module, _ in imports_of(path)
        if module.startswith("dlrm_app.preprocessing")
    }
    assert importers <= {"api", "cli", "preprocessing"}


KNOWN_IN = {
    "TrainConfig": {"api", "config", "training", "tools"},  # days check a day's commands before they call one
    "DaysConfig": {"config", "tools"},
    "PlanConfig": {"config", "tools", "training"},
    "TuneConfig": {"config", "tools", "training"},
    "PreprocessConfig": {"config", "preprocessing", "tools"},
    "GenerateConfig": {"config", "tools"},
    "EvaluateConfig": {"config", "evaluation", "inference"},  # which verifies an export
    "ExportConfig": {"config", "inference"},
    "PredictConfig": {"config", "inference"},
    "ServeConfig": {"config", "inference"},
}
"""A command's whole configuration → the folders that know it, beside the table of commands.

All others take the section or values that they use.
"""


def test_whole_configurations_are_known_to_the_job_alone() -> None:
    named = [
        (path.relative_to(PACKAGE), alias.name)
        for path in MODULES
        if path != PACKAGE / "api" / "commands.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dlrm_app.config")
        for alias in node.names
    ]
    assert [
        (place, name) for place, name in named if place.parts[0] not in KNOWN_IN.get(name, place.parts)
    ] == []


def test_the_rules_would_catch_an_offence() -> None:
    assert not may_import("loader", "training")
    assert not may_import("preprocessing", "training")
    assert not may_import("errors", "config")
    assert not may_import(None, "errors")
    assert may_import("training", "loader")
    assert may_import("cli", "errors")


def test_decoded_rows_become_jagged_tensors_in_one_module() -> None:
    both = [
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if {"dlrm_app.loader.rows", "torchrec.sparse.jagged_tensor"}
        <= {module for module, _ in imports_of(path)}
    ]
    assert both == ["loader/batch.py"]


def modules_after(code: str) -> set[str]:
    """Top-level modules in memory once ``code`` has run in a fresh interpreter."""
    report = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=120, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def import_all(folder: str) -> str:
    """Code that imports every module of ``folder``; what starts work when imported is a script, not a module."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((PACKAGE / folder).rglob("*.py"))
    ]
    return "\n".join(f"import {name}" for name in names)


HEAVY = {"torch", "torchrec", "fbgemm_gpu", "torchmetrics", "tensordict", "sklearn"}


def test_torch_free_folders_import_no_torch_through_others() -> None:
    folders = ["preprocessing", "encoding", "logs", "tools/diagnosis", "config", "cli", "tools/synthetic"]
    code = "\n".join([*map(import_all, folders), "import dlrm_app.dataset.manifest"])
    assert modules_after(code) & HEAVY == set()


def test_a_run_that_cannot_start_is_refused_before_torch_loads() -> None:
    code = """
import sys
from dlrm_app.cli.commands import train
for words in ("data.path=nowhere", "data.path=nowhere trainer.global_batch_size=7", "resume=auto"):
    sys.argv = ["dlrm-train", *words.split()]
    try:
        train()
    except SystemExit as end:
        assert end.code in (1, 2), end.code
"""
    assert modules_after(code) & (HEAVY | {"numba", "pyarrow"}) == set()


def test_importing_the_package_imports_nothing_else() -> None:
    loaded = modules_after("import dlrm_app")
    assert loaded & (HEAVY | {"numpy", "numba", "pyarrow", "hydra", "omegaconf", "yaml"}) == set()


def test_help_of_every_command_loads_neither_torch_nor_numba() -> None:
    code = f"""
import sys
from dlrm_app.cli.commands import run
for command in {COMMANDS}:
    sys.argv = [command, "--help"]
    try:
        run(command.removeprefix("dlrm-"))
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""
    assert modules_after(code) & (HEAVY | {"numba", "pyarrow", "numpy"}) == set()


def test_the_projects_commands_are_installed() -> None:
    assert {"dlrm-doctor", "dlrm-generate", "dlrm-preprocess", "dlrm-train"} <= set(COMMANDS)


SPEAKS = {
    "cli": "programs",
    "distributed/launcher.py": "a program: torchrun",
    "distributed/signals.py": "a second signal ends a command's process",
    "inference/serve/server.py": "dlrm-serve's job, which ends with its process; it is no function of the library",
    "tools/diagnosis/probes.py": "a program: a probe answers on its stdout",
}


def test_nothing_below_cli_prints_or_reads_the_command_line() -> None:
    found = {
        f"{place}:{node.lineno} {name}"
        for path in MODULES
        for place in [str(path.relative_to(PACKAGE))]
        if not place.startswith((*SPEAKS,))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name | ast.Attribute)
        for name in [ast.unparse(node)]
        if name in ("print", "sys.argv", "sys.exit", "sys.stdout", "next_line", "os._exit")
    }
    assert found == set()
