"""What cannot be sharded is refused before any work, on every rank, in one message."""

from pathlib import Path

import pytest

from tests.commands import command, run
from tests.loader.dataset_fixture import write_dataset
from tests.small_run import SMALL


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "wishes", "words"),
    [
        (2, ["sharding.types=[rowwise]"], ["sharding.types must be one of data_parallel", "got 'rowwise'"]),
        (3, ["data.lanes=64"], ["3 ranks do not divide data.lanes (64): use a number of ranks that does"]),
        (
            2,
            ["sharding.tables={u_*:{types:[row_wise]}}"],
            ["sharding.tables.u_* fits no table: they are t_c0"],
        ),
        (
            2,
            ["sharding.kernels=[fused_uvm]"],
            ["tables t_c0, t_c1, t_m0: sharding kernel fused_uvm", "no GPU"],
        ),
    ],
)
def test_a_refusal_is_one_message_and_no_rank_starts(
    ranks: int, wishes: list[str], words: list[str], tmp_path: Path
) -> None:
    write_dataset(tmp_path / "data", rows={"train": 1000})
    asked = ["data.path=data", "output=run", *SMALL, "trainer.global_batch_size=192", *wishes]
    done = run(command("train", *asked, ranks=ranks), tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("1 problem in the configuration") == 1, done.stderr[-3000:]
    for part in words:
        assert part in done.stderr
    assert not (tmp_path / "run").exists()
