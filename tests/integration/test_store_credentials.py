"""Credentials that expire during a command: those of a role and of a profile are renewed, those in the environment named."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dlrm_app.errors import DataError
from dlrm_app.stores.fetch import KeptFolder
from dlrm_app.stores.mirror import kept_folder
from tests.commands import wait_until
from tests.integration.faulty_store import FaultyStore
from tests.refusals import refused

LIVES_SECONDS = 2.0
PROCESS = """
import json, sys, time
from datetime import datetime, timedelta, timezone
now = datetime.now(timezone.utc)
key = f"key-{time.time()}"
print(json.dumps({"Version": 1, "AccessKeyId": key, "SecretAccessKey": "secret", "SessionToken": "token",
                  "Expiration": (now + timedelta(minutes=10, seconds=1)).isoformat()}))
"""


def expires(key: str) -> bool:
    """A key is named after the time when it was made."""
    return time.time() - float(key.removeprefix("key-")) > LIVES_SECONDS


@pytest.fixture
def without_keys(faulty: FaultyStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FaultyStore:
    """A store whose keys expire after two seconds, and no keys in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    faulty.is_expired = expires
    return faulty


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The address where a pod finds the credentials of its role; they are renewed five minutes before they expire."""

    class Role(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            until = datetime.now(UTC) + timedelta(minutes=5, seconds=1)
            answer = {"AccessKeyId": f"key-{time.time()}", "SecretAccessKey": "secret", "Token": "token"}
            data = json.dumps({**answer, "Expiration": until.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Role)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("token")
    url = f"http://127.0.0.1:{server.server_port}/"
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    yield
    server.shutdown()
    server.server_close()


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A profile whose credentials a program gives; boto3 renews them ten minutes before they expire."""
    (tmp_path / "give.py").write_text(PROCESS)
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {sys.executable} {tmp_path}/give.py\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["pod", "profile"])
def test_credentials_that_expire_are_renewed_during_the_work(
    source: str, without_keys: FaultyStore, s3: Any, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(source)
    kept = KeptFolder.of("s3://clicks/made")
    with kept_folder(kept):
        kept.folder.mkdir(parents=True)
        for name in ("a", "b"):
            (kept.folder / name).write_text(name)
            wait_until(
                lambda name=name: without_keys.count("PUT", f"made/{name}") > 0, 120, "a file in the store"
            )
            time.sleep(1.5 * LIVES_SECONDS)
    found = {each["Key"] for each in s3.list_objects_v2(Bucket="clicks")["Contents"]}
    assert found == {"made/a", "made/b"}
    assert len(without_keys.keys) > 2


def test_keys_in_the_environment_that_have_expired_are_named(faulty: FaultyStore) -> None:
    faulty.is_expired = lambda key: True
    rule, cure = (
        "must not be ...: the credentials have expired",
        "renew them, then run the same command again",
    )
    with refused(DataError, "s3://clicks/made", rule, cure):
        KeptFolder.of("s3://clicks/made").fetch()
