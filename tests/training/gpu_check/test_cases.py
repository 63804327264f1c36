"""The checks cover what a GPU has, and are compared with something that the CPU can do."""

import pytest

from dlrm_app.config.sharding import SHARDING_TYPES
from dlrm_app.config.train import PIPELINES
from dlrm_app.tables.sparse_optimizers import SPARSE_OPTIMIZERS
from dlrm_app.training.gpu_check.cases import BY_COLUMN, cases, common_settings, kernels_of, references


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_case_has_a_run_of_the_cpu_s_to_be_compared_with(device: str) -> None:
    known = {reference.name for reference in references()}
    assert {case.reference for case in cases(device)} <= known
    names = [case.name for case in cases(device)]
    assert len(set(names)) == len(names)


def test_on_gpus_every_pipeline_optimizer_kernel_and_type_is_tried() -> None:
    parts = [case.name.split(", ") for case in cases("cuda") if case.name.count(", ") == 3]
    pipelines, optimizers, kinds, kernels = map(set, zip(*parts, strict=True))
    assert pipelines == set(PIPELINES)
    assert optimizers == set(SPARSE_OPTIMIZERS)
    assert kinds == set(SHARDING_TYPES)
    assert kernels >= {"fused", "fused_uvm", "fused_uvm_caching"}
    tried = {(kind, optimizer) for _, optimizer, kind, _ in parts}
    row_statistics = {kind for kind, optimizer in SPARSE_OPTIMIZERS.items() if optimizer.reduces_over_rows}
    assert tried == {
        (kind, optimizer)
        for kind in SHARDING_TYPES
        for optimizer in SPARSE_OPTIMIZERS
        if not (kind in BY_COLUMN and optimizer in row_statistics)
    }


def test_the_cpu_stands_in_with_what_it_has() -> None:
    assert kernels_of("cpu") == ("fused",)
    assert not [case.name for case in cases("cpu") if "uvm" in case.name or "prefetch" in case.name]
    assert [case.name for case in cases("cpu") if case.name.startswith("resume: ")]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_the_batch_can_be_dealt_to_any_ranks(ranks: int) -> None:
    given = dict(setting.split("=", 1) for setting in common_settings(ranks))
    assert int(given["trainer.global_batch_size"]) % int(given["data.lanes"]) == 0
    assert int(given["data.lanes"]) % ranks == 0
