"""A server follows the object ``published`` of a store, which names a day."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.api.places import local_places
from dlrm_app.inference.serve.following import Follower
from dlrm_app.inference.serve.request import ScoringRequest
from dlrm_app.inference.serve.scoring import open_served
from dlrm_app.stores.room import HELD
from tests.inference.serve.test_server import json_rows
from tests.integration.conftest import endpoint, s3, stores  # noqa: F401  # fixtures
from tests.preprocessing.running import content

LOG = "s3://clicks/log"


def put_day(s3: Any, day: str, export: Path) -> None:  # noqa: F811
    for name, data in content(export).items():
        s3.put_object(Bucket="clicks", Key=f"log/days/{day}/export/{name}", Body=data)


def publish(s3: Any, day: str) -> None:  # noqa: F811
    """As dlrm-days does it."""
    s3.put_object(
        Bucket="clicks", Key="log/published", Body=f"days/{day}".encode(), Metadata={"link": "true"}
    )


@pytest.fixture
def follower(s3: Any, shop: Path) -> Iterator[Follower]:  # noqa: F811
    put_day(s3, "one", shop / "export")
    publish(s3, "one")
    with local_places("serve", {"model": f"{LOG}/published/export"}, lambda: None) as found:
        path = Path(str(found["model"]))
    made = Follower(path, open_served(path))
    yield made
    made.close()


@pytest.mark.slow
def test_a_day_that_is_published_in_the_store_takes_over(
    s3: Any,  # noqa: F811
    follower: Follower,
    stores: Path,  # noqa: F811
    other_shop: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [ScoringRequest(json_rows()[:20])]
    before = follower.serving.export.score(rows)
    assert not follower.look()
    put_day(s3, "two", other_shop / "export")
    assert not follower.look()
    publish(s3, "two")
    assert follower.look()
    assert not follower.look()
    assert follower.serving.name.startswith("two/export ")
    assert follower.serving.export.score(rows) == open_served(other_shop / "export").score(rows) != before
    # the first day's files are still there, and may go
    assert {path.parts[-3] for path in stores.rglob("export/export.json")} == {"one", "two"}
    assert [folder for folder in HELD if stores in folder.parents and "one" in folder.parts] == []
    # a store that does not answer is told once, and the server goes on
    with monkeypatch.context() as patched:
        patched.setenv("AWS_SECRET_ACCESS_KEY", "")
        patched.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        patched.setattr("dlrm_app.logs.sources.store.PATIENCE_SECONDS", 1)
        for _ in range(2):
            assert not follower.look()
    publish(s3, "one")
    assert follower.look()
    assert follower.serving.export.score(rows) == before
