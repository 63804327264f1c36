"""The documentation: what it names exists, and its commands do what they are typed for."""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT, blocks_of, type_commands

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NAMED_FILE = re.compile(
    r"\b(?:dlrm_app|tests|conf|scripts|benchmarks|docs)/[\w./-]+\.(?:py|yaml|md|sh|sbatch|csv)\b"
)
PLACE = re.compile(r"`(?P<path>dlrm_app/[\w/]+\.py)(?::(?P<name>[\w.]+))?`")
TYPED = [
    "tutorial.md",
    "tutorial-own-data.md",
    "tutorial-histories.md",
    "tutorial-practice.md",
    "tutorial-serving.md",
    *(f"how-to/{path.name}" for path in sorted((DOCS / "how-to").glob("*.md"))),
]

ELSEWHERE = [
    "how-to/install.md",
    "how-to/object-storage.md",
    "tutorial-histories.md",
    "tutorial-practice.md",
    "tutorial-serving.md",
]
"""Pages whose commands other tests type: they need another machine or a store, or what they make is compared."""


def run_ids_in(path: Path) -> Iterator[str]:
    """What a module defines: functions, classes, constants, and Class.method."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    written = set(re.findall(r'title="([\w/.]+)"', text))  # the reader writes these
    named = {
        name for name in NAMED_FILE.findall(text) if not re.search(r"\b[A-Z]+\b", name)
    }  # NAME stands for any
    assert {name for name in named if not (ROOT / name).exists()} <= written


def test_files_that_the_code_and_its_configuration_name_exist() -> None:
    sources = [path for folder in ("dlrm_app", "conf", "scripts") for path in (ROOT / folder).rglob("*.*")]
    texts = [path.read_text(encoding="utf-8") for path in sources if path.suffix in (".py", ".yaml", ".sh")]
    named = {name for text in texts for name in re.findall(r"\bdocs/[\w./-]+\.md\b", text)}
    made = {"docs/reference/configuration.md"}  # when the site is built
    assert [name for name in sorted(named - made) if not (ROOT / name).exists()] == []
    assert named > made


def test_the_way_in_is_twelve_files_of_some_three_thousand_lines() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Twelve files")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `(dlrm_app/[^`]+\.py)`", section, re.MULTILINE)
    assert len(files) == 12
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) < 3_300


def test_every_place_in_the_architecture_is_there() -> None:
    """`dlrm_app/….py:function` names a function, class, method or constant of that module."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    places = [(match["path"], match["name"]) for match in PLACE.finditer(text) if match["name"]]
    assert len(places) >= 30
    assert [place for place in places if place[1] not in set(run_ids_in(ROOT / place[0]))] == []


def test_the_architecture_describes_every_folder() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / "dlrm_app").glob("*/__init__.py")}
    assert {name for name in folders if f"{name}/" not in text} == set()


def test_every_decision_is_listed() -> None:
    pages = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [
        path.name for path in sorted((DOCS / "adr").glob("*.md")) if f"adr/{path.name}" not in pages
    ] == []


def test_no_two_pages_write_to_the_same_place() -> None:
    """Whoever types one page after another in one clone is not refused because an output is there already."""
    texts = {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    texts |= {
        page: "\n".join(block.text for block in blocks_of(page) if block.language == "bash")
        for page in [*TYPED, "extending.md"]
    }
    written = [
        (output, page)
        for page, text in texts.items()
        for command in text.replace("\\\n", "").splitlines()
        if "overwrite=true" not in command
        for output in re.findall(r"(?<![\w.])output=(out/[\w/]+)", command)
    ]
    pages_of = {output: {page for other, page in written if other == output} for output, _ in written}
    assert len(pages_of) >= 30
    assert {output: pages for output, pages in pages_of.items() if len(pages) > 1} == {}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make demo` leaves, from fewer rows."""
    folder = tmp_path_factory.mktemp("clone")
    link_clone(folder)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("\ndemo:")[1].split("\n\n")[0].split("\n", 1)[1]
    commands = recipe.replace("$(BIN)/", "").replace("\t", "").replace("500_000", "60_000")
    assert commands.count("dlrm-") == 3
    type_commands(commands, folder)
    return folder / "demo"


def link_clone(folder: Path) -> None:
    for name in ("dlrm_app", "conf", "docs", "scripts", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in TYPED if page not in ELSEWHERE])
def test_the_commands_of_a_page_work_as_they_stand_in_order(page: str, demo: Path, tmp_path: Path) -> None:
    if page == "how-to/blending.md":
        pytest.importorskip("lightgbm")
    link_clone(tmp_path)
    shutil.copytree(demo, tmp_path / "demo")
    (tmp_path / "out").mkdir()
    for block in blocks_of(page):
        if block.language == "bash":
            # the environment is there, and so is what `make demo` makes
            lines = [line for line in block.text.splitlines() if not line.startswith(("make ", "source "))]
            type_commands("\n".join(lines), tmp_path)


def map_entries() -> dict[str, str]:
    """Folder of the package → its entry in the map of docs/architecture.md; the ground floor's is that of "."."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    begin = text.index("```text\ncli/") + len("```text\n")
    entries: dict[str, str] = {}
    folder = parent = "."
    for line in text[begin : text.index("```", begin)].splitlines():
        if line.startswith("─"):
            folder = "."
        elif found := re.match(r"( {0,2})(\w+)/( |$)", line):
            parent = parent if found[1] else found[2]
            folder = f"{parent}/{found[2]}" if found[1] else parent
        elif re.match(r"  \(itself\)", line):
            folder = parent
        entries[folder] = f"{entries.get(folder, '')} {line}"
    return entries


def test_the_map_names_every_module() -> None:
    package, entries = DOCS.parent / "dlrm_app", map_entries()
    missing = [
        str(path.relative_to(package))
        for path in sorted(package.rglob("*.py"))
        if not path.stem.startswith("__")
        and not re.search(rf"\b{path.stem}\b", entries.get(str(path.parent.relative_to(package)), ""))
    ]
    assert missing == []
