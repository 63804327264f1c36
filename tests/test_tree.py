"""The shape of the tree: short signatures, no dead code."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "dlrm_app"
MODULES = sorted(PACKAGE.rglob("*.py"))

MAX_PARAMETERS = 7

COMPILED = "compiled: numba takes arrays and numbers, no records"
MANY_PARAMETERS = {
    "loader/batch_order.py:train_order": "what the order of rows depends on, all of it by name",
    "loader/rows.py:copy_rows": COMPILED,
    "logs/arrow_numbers.py:convert_numbers": COMPILED,
    "logs/arrow_numbers.py:spread_distinct": COMPILED,
    "logs/arrow_texts.py:parse_keys": COMPILED,
    "logs/arrow_texts.py:parse_numbers": COMPILED,
    "logs/lines.py:parse_lines": COMPILED,
    "logs/plain_lines.py:read_batch": COMPILED,
}
"""Public functions with more parameters, and why."""


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


def test_a_public_function_takes_few_parameters() -> None:
    long = {
        f"{name_of(path)}:{function.name}"
        for path in MODULES
        for function in public_functions(path)
        if num_parameters(function) > MAX_PARAMETERS
    }
    assert long <= set(MANY_PARAMETERS), "pass a record, or say in MANY_PARAMETERS why not"


def test_benchmarks_and_scripts_import_names_that_exist() -> None:
    lacking = [
        f"{path.parent.name}/{path.name}: {node.module}.{each.name}"
        for folder in ("benchmarks", "scripts")
        for path in sorted((PACKAGE.parent / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dlrm_app")
        for each in node.names
        if not hasattr(import_module(node.module or ""), each.name)
    ]
    assert lacking == []


def defined_names(path: Path) -> Iterator[str]:
    """Functions, classes and constants of a module, except decorated ones, ``__getattr__`` and ``__dir__``."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from [node.name] if not node.decorator_list and not node.name.startswith("__") else []
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def test_everything_defined_is_used() -> None:
    """By its name, somewhere in the package, its scripts or its commands; tests do not count."""
    users = [*MODULES, *(PACKAGE.parent / "scripts").glob("*.py"), PACKAGE.parent / "pyproject.toml"]
    words = Counter(word for path in users for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))
    dead = {f"{name_of(path)}:{name}" for path in MODULES for name in defined_names(path) if words[name] < 2}
    assert dead == set()


def test_no_two_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, number in names.items() if number > 1} == set()
