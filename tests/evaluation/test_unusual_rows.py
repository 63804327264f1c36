"""dlrm-evaluate tells that rows of another dataset are not as those that the model was validated on."""

import shutil
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.make_log import write_csv
from tests.preprocessing.running import run as preprocess_here
from tests.small_run import evaluate_here, train_here
from tests.weighted_log import describe, draw_rows

TOLD = "differ from the rows that the model was validated on"


@pytest.mark.slow
def test_rows_in_another_notation_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    describe(tmp_path)
    for number, name in enumerate(("first", "alike", "shouted")):
        rows, _ = draw_rows(3000, seed=number)
        if name == "shouted":
            place = rows.column_names.index("device")
            rows = rows.set_column(place, "device", pc.utf8_upper(rows["device"]))
        write_csv(tmp_path / f"{name}.csv", rows)
    given = [f"dataset={tmp_path}/log.yaml", "split.val=0.2"]
    first = tmp_path / "first"
    preprocess_here(first, *given, f"input.train={first}.csv", "encoding=vocab")
    known = ["encoding=from_dataset", f"encoding.path={first}"]
    for name in ("alike", "shouted"):
        preprocess_here(tmp_path / name, *given, *known, f"input.train={tmp_path / name}.csv")
    train_here(tmp_path / "run", f"data.path={first}", "trainer.max_steps=3")

    def told(name: str) -> bool:
        caplog.clear()
        evaluate_here(f"checkpoint={tmp_path}/run", f"data.path={tmp_path / name}", "split=val")
        return TOLD in caplog.text and "device" in caplog.text

    assert [told(name) for name in ("first", "alike", "shouted")] == [False, False, True]
    shutil.rmtree(first)
    assert not told("shouted")
