"""What a training run's configuration leaves to the machine."""

import pytest

from tests.plain_training import compose_train


@pytest.mark.parametrize(
    ("given", "device_type", "rows"),
    [("null", "cpu", 4096), ("null", "cuda", 16384), ("64", "cuda", 64), ("64", "cpu", 64)],
)
def test_evaluations_have_batches_for_the_device(given: str, device_type: str, rows: int) -> None:
    """Twice training's on a GPU; what is asked for, everywhere."""
    config = compose_train("trainer.global_batch_size=65536", f"evaluation.batch_size={given}")
    assert config.evaluation_rows(num_ranks=8, device_type=device_type) == rows


def test_evaluations_of_small_steps_have_no_small_batches() -> None:
    config = compose_train("trainer.global_batch_size=128", "evaluation.batch_size=null")
    assert config.evaluation_rows(num_ranks=1, device_type="cuda") == 4096
