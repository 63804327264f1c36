"""How many threads decode."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlrm_app.loader.loading import Loading, choose_loading


def runtime(num_threads: int) -> Any:
    return SimpleNamespace(num_threads=num_threads, device=torch.device("meta"))


@pytest.mark.parametrize(("num_threads", "num_workers"), [(1, 1), (2, 1), (3, 1), (8, 4), (16, 8), (96, 8)])
def test_half_of_the_threads_decode_but_eight_at_most(num_threads: int, num_workers: int) -> None:
    assert choose_loading(4, None, runtime(num_threads)) == Loading(4, num_workers, torch.device("meta"))


def test_a_number_of_workers_is_taken_as_it_is() -> None:
    assert choose_loading(2, 30, runtime(1)).num_workers == 30
