"""What is suggested once a dataset is made."""

from dataclasses import replace
from pathlib import Path

import pytest

from dlrm_app.dataset.manifest import DenseColumn, Manifest, Split
from dlrm_app.preprocess.finish import next_command


@pytest.mark.parametrize(
    ("splits", "command"),
    [
        (["train", "val"], "dlrm-train 'data.path=my data' model=concat tables=dataset trainer.epochs=1"),
        (["test"], "dlrm-evaluate checkpoint=RUN 'data.path=my data' split=test"),
    ],
)
def test_training_is_suggested_where_there_are_rows_to_train_on(splits: list[str], command: str) -> None:
    manifest = Manifest(
        dataset="clicks",
        label="label",
        dense=[],
        sparse=[],
        splits={name: Split(1, 0, 0, []) for name in splits},
        sources=[],
        config={},
        path=Path("my data"),
    )
    assert next_command(manifest) == f"next: {command}"
    with_dense = replace(manifest, dense=[DenseColumn("hour", {"kind": "none"})])
    assert next_command(with_dense) == f"next: {command.replace(' model=concat', '')}"
