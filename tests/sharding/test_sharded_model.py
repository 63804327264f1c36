"""DistributedDataParallel around the dense part: when it searches for unused parameters, and that it need not."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torchrec.distributed.model_parallel import DefaultDataParallelWrapper

from dlrm_app.distributed.runtime import Runtime
from dlrm_app.sharding import planner
from tests.loader.dataset_fixture import write_dataset
from tests.ranks import start_ranks
from tests.small_run import final_bytes, train_here


@pytest.mark.parametrize(
    ("device", "is_deterministic", "searches"),
    [
        ("cpu", False, True),  # a resumed run has the same bits
        ("cuda", False, False),
        ("cuda", True, True),
    ],
)
def test_unused_parameters_are_found_where_a_resume_is_exact(
    device: str, is_deterministic: bool, searches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: is_deterministic)
    wrapper = planner.replicated_dense_part(Runtime(0, 0, 2, 2, device, num_threads=1))
    assert isinstance(wrapper, DefaultDataParallelWrapper)
    assert wrapper._find_unused_parameters == searches


def train_with_ddp_of_gpus(dataset: str, output: str, *overrides: str) -> None:
    """Without the search; as on CUDA otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        without = partial(DefaultDataParallelWrapper, static_graph=False, find_unused_parameters=False)
        patch.setattr(planner, "DefaultDataParallelWrapper", lambda **_: without())
        train_here(Path(output), f"data.path={dataset}", *overrides)


def train_as_it_is(dataset: str, output: str, *overrides: str) -> None:
    train_here(Path(output), f"data.path={dataset}", *overrides)


WITHOUT_MLP = ("model.bottom_mlp=[]", "model.top_mlp=[]")


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluation.every_steps=3", "optimizer.dense.ema_decay=0.9"],
        pytest.param(["model=dcn"], marks=pytest.mark.long),
        pytest.param(["model=dcn_parallel", "model.bottom_mlp=[]"], marks=pytest.mark.long),
        pytest.param(["model=projection"], marks=pytest.mark.long),
        pytest.param(["model=concat", "model.bottom_mlp=[]"], marks=pytest.mark.long),
        pytest.param(["model=gdcn", "model.bottom_mlp=[]"], marks=pytest.mark.long),
        pytest.param(["model=finalnet", "model.bottom_mlp=[]"], marks=pytest.mark.long),
        pytest.param(["model=dcnv3", "model.num_heads=2", *WITHOUT_MLP], marks=pytest.mark.long),
        pytest.param(["model=qnn", *WITHOUT_MLP], marks=pytest.mark.long),
        pytest.param(["model.ensemble_size=2", "model.dropout=0.1"], marks=pytest.mark.long),
        pytest.param(["model.batch_norm=true", "trainer.precision=bf16"], marks=pytest.mark.long),
    ],
    ids=lambda overrides: overrides[0],
)
def test_training_without_the_search_gives_the_same_bits(overrides: list[str], tmp_path: Path) -> None:
    """On two ranks to the bit: two gradients have one sum. An unused parameter would end the second step."""
    write_dataset(tmp_path / "data", rows={"train": 1000, "val": 200})
    for name, work in (("with", train_as_it_is), ("without", train_with_ddp_of_gpus)):
        start_ranks(partial(work, str(tmp_path / "data"), str(tmp_path / name), *overrides), 2, 2)
    assert final_bytes(tmp_path / "without") == final_bytes(tmp_path / "with")
    assert final_bytes(tmp_path / "with")
