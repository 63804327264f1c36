"""A store of S3 on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.faulty_store import FaultyStore


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = pytest.importorskip(
        "moto.server", reason="no S3 server: pip install 'moto[s3]' flask flask-cors"
    )
    here = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    here.start()
    host, port = here.get_host_and_port()
    yield f"http://{host}:{port}"
    here.stop()


@pytest.fixture
def s3(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a store that has the empty bucket ``clicks``; nothing of it is on this machine."""
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install boto3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "VERYSECRET")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("DLRM_STORE_FOLDER", str(tmp_path / "stores"))
    client = boto3.client("s3")
    client.create_bucket(Bucket="clicks")
    for entry in client.list_objects_v2(Bucket="clicks").get("Contents", []):
        client.delete_object(Bucket="clicks", Key=entry["Key"])
    return client


@pytest.fixture
def faulty(s3: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A server before the store, which commands speak to; ``s3`` speaks to the store itself."""
    store = FaultyStore(endpoint)
    with store.running() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield store


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    """The folder of the local sides."""
    return tmp_path / "stores"
