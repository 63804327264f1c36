"""--help and the reference say of every key what the comments in conf/ say."""

import json
import re
import runpy
from pathlib import Path

import pytest

from dlrm_app.api.commands import COMMANDS, schema_of
from dlrm_app.config.conf_files import conf_dir
from dlrm_app.config.overrides import Overrides
from dlrm_app.config.reference import help_text, json_schema, read_comments, read_reference
from dlrm_app.errors import ConfigError
from tests.composed import overrides
from tests.pages import ROOT
from tests.refusals import refused

FILE = """# What the file is,
# in two lines.
defaults:
  - _self_

data:          # where rows come from
  path: "a#b"  # a folder
  kind: x      # x: one thing;
               # y: another
seed: 0
"""


def test_comments_belong_to_the_key_before_them(tmp_path: Path) -> None:
    path = tmp_path / "conf.yaml"
    path.write_text(FILE)
    comments = read_comments(path)
    assert comments == {
        "": "What the file is, in two lines.",
        "defaults": "",
        "data": "where rows come from",
        "data.path": "a folder",
        "data.kind": "x: one thing; y: another",
        "seed": "",
    }


CHOICE = """kind: x  # which one
# dropout: share that is
#   dropped
sparse: {}
  # lr: the rate: of tables
  # other: not a key
"""


def test_a_key_that_a_choice_leaves_out_is_explained_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "choice.yaml"
    path.write_text(CHOICE)
    comments = read_comments(path, {"kind", "dropout", "sparse", "sparse.lr"})
    assert comments["dropout"] == "share that is dropped"
    assert comments["sparse.lr"] == "the rate: of tables other: not a key"


def test_comments_fit_an_editors_line() -> None:
    lines = [line for path in conf_dir().rglob("*.yaml") for line in path.read_text().splitlines()]
    assert [line for line in lines if "#" in line and len(line) > 110] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_key_is_explained(command: str) -> None:
    sections = read_reference(command, schema_of(command), Overrides()).sections
    unexplained = [entry.key for *_, entries in sections for entry in entries if entry.comment == ""]
    assert unexplained == []


def test_values_are_those_of_the_choices_and_overrides_given() -> None:
    words = ["model=dcn", "trainer.epochs=7", "experiment=kaggle_small"]
    text = help_text("train", schema_of("train"), overrides("train", schema_of("train"), words))
    lines = {line.split(" ")[0] for line in text.splitlines()}
    assert {"model.kind=dcn", "model.dcn_num_layers=3", "trainer.epochs=7", "model.ensemble_size=8"} <= lines


def test_only_the_groups_of_the_command_are_listed() -> None:
    text = help_text("preprocess", schema_of("preprocess"), Overrides())
    assert "encoding=auto: auto, from_dataset, hash, vocab" in text
    assert (
        "experiment=null: dcnv3_avazu_x4, dcnv3_criteo_x4, finalnet_criteo_x4, kaggle_full, kaggle_paper, kaggle_small,\n"
        "    mlperf_dcnv2, mlperf_dlrm_v1, qnn_criteo_x4\n"
    ) in text
    assert "optimizer" not in text
    assert "experiment=auto: A recipe by the dataset's rows" in help_text(
        "train", schema_of("train"), Overrides()
    )
    assert "== Groups" not in help_text("doctor", schema_of("doctor"), Overrides())


def test_the_page_has_every_key_of_every_command_in_whole_rows(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "scripts/configuration_reference.py"), run_name="__main__")
    page = capsys.readouterr().out
    for key in ("input.train", "trainer.epochs", "group_by", "smallest", "zipf", "timeout"):
        assert f"\n| `{key}` |" in page
    assert "\n| `trainer.epochs` |" not in page.split("## dlrm-plan")[1]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {4}


def test_help_of_a_word_shows_the_keys_that_contain_it() -> None:
    text = help_text("train", schema_of("train"), Overrides(), ["batch_size", "schedule"])
    keys = re.findall(r"^([a-z][\w.]+)=", text, re.MULTILINE)
    assert {"schedule", "schedule.sparse.kind", "trainer.global_batch_size", "evaluation.batch_size"} <= set(
        keys
    )
    assert all("batch_size" in key or "schedule" in key for key in keys)
    assert "# trainer" in text
    assert "# checkpoint" not in text


def test_help_of_no_key_is_refused_with_the_nearest() -> None:
    with refused(ConfigError, "optimizr", "is not a known key"):
        help_text("train", schema_of("train"), Overrides(), ["optimizr"])


def test_the_json_schema_has_types_ranges_choices_and_meanings() -> None:
    schema = json.loads(json_schema("train", schema_of("train"), Overrides()))
    trainer = schema["properties"]["trainer"]
    assert trainer["additionalProperties"] is False
    epochs = trainer["properties"]["epochs"]
    assert (epochs["type"], epochs["minimum"]) == ("integer", 1)
    assert epochs["description"] == "passes over the train split"
    assert trainer["properties"]["pipeline"]["enum"] == ["base", "prefetch", "sparse_dist"]
