"""Runs the tests on GPUs and packs their results with what a report needs: gpu-check.tar.gz.

    python scripts/gpu_check.py [pytest's options]     # what `make gpu-check` runs; DEVICE=cpu tries it without a GPU
    python scripts/gpu_check.py -n 6 -x                # six cases at a time, for one GPU; stops at the first failure

Speed is measured last and alone. The archive holds pytest's reports, summary.md (also printed), and what the doctor,
nvidia-smi, lscpu and pip say: read it before you send it. Exits as pytest does.
"""

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

TESTS = Path(__file__).resolve().parents[1] / "tests" / "gpu"
SPEED = TESTS / "test_training_speed.py"
NO_TESTS = 5
"""pytest's exit code when nothing was selected."""
ARCHIVE = Path("gpu-check.tar.gz")
VERSIONS = "import torch; print(torch.__version__, torch.version.cuda, torch.version.cuda and torch.cuda.nccl.version())"
GPUS = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory,pcie.link.gen.max,compute_mode"
COMMANDS = {
    "doctor.txt": [sys.executable, "-m", "dlrm_app.cli", "doctor"],
    "versions.txt": [sys.executable, "-c", VERSIONS],
    "packages.txt": [sys.executable, "-m", "pip", "list"],
    "gpus.txt": ["nvidia-smi", f"--query-gpu={GPUS}", "--format=csv"],
    "links.txt": ["nvidia-smi", "topo", "-m"],
    "cpus.txt": ["lscpu"],
}


def main(options: list[str]) -> int:
    """Gives pytest's exit code."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        reports = [folder / "junit.xml", folder / "junit-speed.xml"]
        code = run_tests(reports[0], [*options, str(TESTS), f"--ignore={SPEED}"])
        if code == 0 or not {"-x", "--exitfirst"} & {*options}:
            # alone, whatever number of processes the options name; it may be that they select none of either
            codes = {code, run_tests(reports[1], [*options, "-n", "0", str(SPEED)])}
            code = max(codes - {NO_TESTS}, default=NO_TESTS)
        for name, command in COMMANDS.items():
            (folder / name).write_text(said(command))
        summary = "\n".join(summarize(*filter(Path.exists, reports)))
        (folder / "summary.md").write_text(f"{said(COMMANDS['gpus.txt'])}\n{summary}\n")
        print(f"\n{summary}")
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            archive.add(folder, "gpu-check")
    print(f"\nwrote {ARCHIVE.resolve()}: look at it, then attach it to an issue")
    return code


def run_tests(report: Path, arguments: list[str]) -> int:
    """Runs pytest; gives its exit code."""
    keys = ["-m", "gpu", "-n", "0", f"--junitxml={report}", "-o", "junit_logging=all"]
    return subprocess.run([sys.executable, "-m", "pytest", *keys, *arguments], check=False).returncode


def said(command: list[str]) -> str:
    """The output of ``command``, or the reason why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n"
    return done.stdout + done.stderr


def summarize(*reports: Path) -> Iterator[str]:
    """A Markdown table: one row a test that ran, in order, with what it noted or why it failed."""
    yield "| test | outcome | seconds | remarks |\n|---|---|---|---|"
    for case in (case for report in reports for case in ElementTree.parse(report).iter("testcase")):
        if case.find("skipped") is not None:
            continue
        remarks = "; ".join(f"{each.get('name')} {each.get('value')}" for each in case.iter("property"))
        fault = next((found for kind in ("failure", "error") for found in case.iter(kind)), None)
        if fault is not None:
            message = fault.get("message", "")
            if message.startswith("EOFError"):  # a rank ended: its last line says why
                message = case.findtext("system-err", "").strip().rpartition("\n")[2] or message
            remarks = f"{remarks} {message}".strip().partition("\n")[0]
        outcome = "passed" if fault is None else "failed"
        cells = (
            case.get("name"),
            outcome,
            f"{float(case.get('time', 0)):.1f}",
            remarks.replace("|", "/")[:200],
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
