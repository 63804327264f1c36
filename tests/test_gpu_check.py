"""What `make gpu-check` packs: every test that ran in one table, and what the machine says of itself."""

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from dlrm_app.config.train import TrainConfig
from dlrm_app.model.architectures import ModelSpec
from dlrm_app.model.problems import model_problems, model_table_problems
from dlrm_app.sharding.constraints import sharding_problems, table_problems
from dlrm_app.tables.specs import resolve_tables
from dlrm_app.training.validation import prefetch_problems
from tests.composed import compose_config
from tests.gpu.cases import COMMON, TABLES, cases

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu_check.py"
JUNIT = """<testsuites><testsuite>
<testcase name="fine" time="1.25"><properties><property name="losses differ by" value="1e-7"/></properties></testcase>
<testcase name="wrong" time="2"><failure message="assert 1 == 2&#10;more">trace</failure></testcase>
<testcase name="crashed" time="3"><failure message="EOFError">trace</failure>
<system-err>Traceback
RuntimeError: illegal | access
</system-err></testcase>
<testcase name="left out" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_test_has_a_row_with_its_notes_or_its_failure(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert list(script.summarize(tmp_path / "junit.xml"))[1:] == [
        "| fine | passed | 1.2 | losses differ by 1e-7 |",
        "| wrong | failed | 2.0 | assert 1 == 2 |",
        "| crashed | failed | 3.0 | RuntimeError: illegal / access |",
    ]


@pytest.mark.parametrize(
    ("options", "codes", "num_runs", "expected"),
    [
        ([], [0, 0], 2, 0),
        ([], [1, 0], 2, 1),
        ([], [0, 1], 2, 1),
        (["-x"], [1], 1, 1),
        (["-n", "6", "-k", "resume"], [0, 5], 2, 0),
        (["-k", "bench"], [5, 0], 2, 0),
        (["-k", "nothing"], [5, 5], 2, 5),
    ],
)
def test_speed_is_measured_last_and_alone(
    options: list[str],
    codes: list[int],
    num_runs: int,
    expected: int,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless the first failure is to end the check. Where options select nothing of one part, the other decides."""
    left, runs = iter(codes), []

    def run_tests(report: Path, arguments: list[str]) -> int:
        runs.append(arguments)
        return next(left)

    monkeypatch.setattr(script, "run_tests", run_tests)
    monkeypatch.setattr(script, "said", lambda command: "")
    monkeypatch.chdir(tmp_path)
    assert script.main(options) == expected
    speed = str(script.SPEED)
    assert runs[0] == [*options, str(script.TESTS), f"--ignore={speed}"]
    assert runs[1:] == [[*options, "-n", "0", speed]] * (num_runs - 1)


def settings_of(device: str) -> set[tuple[str, ...]]:
    return {(*case.model, *leg) for case in cases(device) for leg in case.legs}


@pytest.mark.long
def test_settings_for_gpus_alone_are_valid(tmp_path: Path) -> None:
    """The others are run on a CPU; so no GPU finds a case out of date."""
    specs = tmp_path / "tables.yaml"
    specs.write_text(TABLES)
    inputs = ["data.path=unused", f"tables={specs}", *COMMON]
    for settings in settings_of("cuda") - settings_of("cpu"):
        config = compose_config("train", TrainConfig, [*inputs, *settings])
        tables, sparse, sharding = (
            resolve_tables(config.tables, None),
            config.optimizer.sparse,
            config.sharding,
        )
        problems = [
            *config.problems(),
            *model_problems(config.model),
            *model_table_problems(ModelSpec(config.model, tables, num_dense=4)),
            *table_problems(tables, sparse, sharding, "cuda"),
            *sharding_problems(tables, sharding, "cuda"),
        ]
        if config.trainer.pipeline == "prefetch":
            problems += prefetch_problems("cuda")
        assert problems == [], settings


def test_a_missing_tool_is_reported(script: ModuleType) -> None:
    assert "no-such-tool" in script.said(["no-such-tool"])


@pytest.mark.long
def test_the_archive_holds_the_results_and_the_machine(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--collect-only", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "gpu-check.tar.gz") as archive:
        found = {Path(name).name for name in archive.getnames()}
    assert {
        "junit.xml",
        "junit-speed.xml",
        "summary.md",
        "doctor.txt",
        "versions.txt",
        "gpus.txt",
        "links.txt",
    } <= found
