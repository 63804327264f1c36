"""One Slurm for all tests of this folder, and a store."""

import signal
from collections.abc import Iterator

import pytest

from tests.integration.conftest import endpoint, s3
from tests.slurm.cluster import Cluster, why_not

__all__ = ["cluster", "endpoint", "s3"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a terminated pytest takes its daemons with it
    with Cluster(tmp_path_factory.mktemp("slurm")).running() as started:
        yield started
