"""The folder of parts belongs to one command at a time, and to dlrm-predict alone."""

from pathlib import Path

import pytest

from dlrm_app.errors import DlrmError
from dlrm_app.inference.predict.scores_file import ScoresFile
from dlrm_app.locks import held_output
from tests.refusals import refused


def scores_in(folder: Path) -> ScoresFile:
    return ScoresFile(folder / "scores.parquet", ("file", "line"))


def test_a_file_that_another_command_makes_is_left_to_it(tmp_path: Path) -> None:
    """Or one of them would join the parts while the other deletes them."""
    output = tmp_path / "scores.parquet"
    with (
        held_output(output, "dlrm-predict"),
        refused(
            DlrmError,
            "",
            "another dlrm-predict makes output=.../scores.parquet: wait for it, or give another...",
        ),
        held_output(output, "dlrm-predict"),
    ):
        pass
    with held_output(output, "dlrm-predict"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_elses_is_not_taken_for_the_parts(tmp_path: Path) -> None:
    mine = tmp_path / "scores.parquet.parts" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with refused(
        DlrmError, str(mine.parent), "is needed for ..., but holds other files", "give another output"
    ):
        scores_in(tmp_path).begin({})
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("text", ["{", "3", "[1]"])
def test_a_damaged_record_of_an_interrupted_command_is_named(tmp_path: Path, text: str) -> None:
    scores_in(tmp_path).begin({"model": "a"})
    (record,) = (tmp_path / "scores.parquet.parts").glob("*.json")
    record.write_text(text)
    with refused(DlrmError, str(record), "is damaged (...)", "delete ...scores.parquet.parts"):
        scores_in(tmp_path).begin({"model": "a"})
