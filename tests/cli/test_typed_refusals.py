"""Refusals as they are typed: each names the key, the value, the rule and a cure, and offers none that is refused."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from tests.commands import Typed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "train trainer.epoch=3 optimizer.sparse.lr=-1 model=dnc",
            "4 problems|trainer.epochs?|model=dcn?|data.path is required|optimizer.sparse.lr must be",
        ),
        (
            "train data.path=nowhere optimizer.sparse.learning_rate=1",
            "2 problems|nowhere does not exist|optimizer.sparse.learning_rate is not a known key",
        ),
        (
            "train optimizer.sparse.lr=1,2 data.path=x",
            "optimizer.sparse.lr=1,2 gives several values: a run with each needs --multirun, ",
        ),
        ("train model.top_mlp=1,2 data.path=x", "a list is written 'model.top_mlp=[1,2]'"),
        (
            "serve model=a,b",
            "1 problem in the configuration:\n  - model=a,b gives several values: a run with",
        ),
        (
            "train data.path=x -m model=dlrmm,dcnn",
            "model=dlrmm is not known: did you mean model=dlrm? |model=dcnn is not known: did you mean model=dcn? ",
        ),
        ("train data.path=x hydra.launcher.n_jobs=3", "Could not override 'hydra.launcher.n_jobs'"),
        (
            "plan tables=criteo_kaggle topology=cpu_2 optimizer=lamb tables.init=zeros",
            "init zeros would never move, because lamb's steps are as long as a row's weights: use init ",
        ),
        *(
            (
                f"days input.days={files} dataset=criteo_kaggle output=o days.from=2026-11-01",
                "and those of no other day",
            )
            for files in ("log/{date}", "log/{day.x}", "log/{day:%d}", "log/{day:%Y%m}")
        ),
        ("generate rows=10 output=file/sub", "error: "),
        (f"generate rows=10 output={'x' * 300}", "error: "),
        ("train --shell-completion bash", "install=bash"),
        *((f"train --cfg {rest}", "--cfg") for rest in ("foo", "job -m", "data.path=x")),
        *((f"train {rest}", "error: ") for rest in ("-m foo", "--experimental-rerun x", "--config-dir .")),
    ],
)
def test_a_typing_error_is_refused_with_its_correction(line: str, said: str, typed: Typed) -> None:
    """All in our own words, before anything is written."""
    Path("file").touch()
    code, text = typed(*line.split())
    assert [part for part in said.split("|") if part not in text] == []
    assert code == 2
    assert " --" not in line or "ydra" not in text
    assert [*Path().iterdir()] == [Path("file")]


@pytest.mark.parametrize("path", ["nowhere", "file/sub", "x" * 300])
def test_an_unreadable_dataset_is_reported_in_one_line(path: str, typed: Typed) -> None:
    Path("file").touch()
    code, text = typed("train", "tables=dataset", f"data.path={path}")
    assert (code, text.count("\n")) == (1, 1)
    assert text.startswith("error: ")
    assert path != "nowhere" or "nowhere does not exist" in text
    assert path != "nowhere" or "dlrm-preprocess output=nowhere" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "predict model=empty input=x",
            "model=empty is not an export: of a delta dlrm-export base=EXPORT apply=DELTA makes one",
        ),
        ("predict model=empty input=5", "input must be a file, a glob or a list of them, got 5"),
        ("export checkpoint=empty", "empty is neither a complete checkpoint nor a run folder that holds one"),
        ("evaluate checkpoint=run", "run is neither a complete checkpoint nor a run folder that holds one"),
    ],
)
def test_a_folder_without_a_model_is_refused_before_any_work(
    line: str, said: str, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("empty", "run"):
        Path(name).mkdir()
    Path("run/config.yaml").touch()
    command, *arguments = line.split()
    # torch is there in a test, so this is where a command would begin with it
    monkeypatch.setattr("dlrm_app.distributed.runtime.start_runtime", lambda *_: pytest.fail("too late"))
    _, text = typed(command, *arguments, "output=scores.parquet")
    assert said in text


def test_a_folder_with_a_run_is_refused_before_torch_loads(typed: Typed) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").touch()
    code, text = typed("train", "data.path=x", "tables=dataset", "output=run")
    assert "output=run already holds a run: add resume=auto to continue it, or choose another folder" in text
    assert code == 2
    for resume in ("auto", "run"):
        assert (
            "holds a run"
            not in typed("train", "data.path=x", "tables=dataset", "output=run", f"resume={resume}")[1]
        )


def test_help_takes_words_and_each_command_has_a_version(typed: Typed) -> None:
    code, text = typed("train", "--help", "lanes", "model=dcn")
    assert (code, re.findall(r"^([\w.]+)=", text, re.MULTILINE)) == (0, ["data.lanes"])
    for name in ("train", "doctor", "report"):
        assert typed(name, "--version") == (0, f"dlrm-{name} {metadata.version('dlrm-app')}\n")
