"""fbgemm's wheels run on GPUs of three families."""

import pytest

from dlrm_app.machine import explain_missing, has_kernels


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0)])
def test_there_are_kernels_for_ampere_ada_hopper_and_blackwells_datacentre_gpus(
    capability: tuple[int, int],
) -> None:
    assert has_kernels(capability)


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (10, 3), (12, 0), (12, 1)])
def test_there_are_none_for_v100_t4_b300_and_geforce_50(capability: tuple[int, int]) -> None:
    assert not has_kernels(capability)
    assert f"capability {capability[0]}.{capability[1]}:" in explain_missing(capability)
