"""One Slurm for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, why_not


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm")).running() as started:
        yield started
