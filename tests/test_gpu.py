"""``pytest -m gpu``: on a machine with GPUs, dlrm-gpu-check as a test. Without one it is skipped."""

from pathlib import Path

import pytest
import torch

from dlrm_app.config.compose import compose_config
from dlrm_app.config.gpu_check import GpuCheckConfig
from dlrm_app.training.gpu_check.check import check
from dlrm_app.training.gpu_check.outcome import State


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use: dlrm-doctor says why")
def test_gpus_train_as_the_cpu_does(tmp_path: Path) -> None:
    """Every pipeline, optimizer, kernel and sharding type; what is wrong is in the error, and on the page in its folder."""
    findings = check(compose_config("gpu-check", GpuCheckConfig, [f"output={tmp_path / 'gpu-check'}"]))
    assert findings.count(State.OK)
