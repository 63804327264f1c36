"""Numbers below 1e-38, whose products take a hundred times as long on some CPUs, count as zero while a rank computes."""

import pytest
import torch

from dlrm_app.distributed.runtime import start_runtime


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU always computes with them")
def test_every_thread_takes_them_for_zero_until_the_end() -> None:
    with start_runtime(2):
        for_every_thread = torch.full((1 << 20,), 1e-30) * 1e-12
        assert for_every_thread.count_nonzero() == 0
        assert float(torch.full((1,), 1e-37)) == pytest.approx(1e-37)
    assert float(torch.full((1,), 1e-30) * 1e-12) == pytest.approx(1e-42, rel=1e-2)
