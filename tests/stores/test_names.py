"""URLs and local places: one for one, and safe."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlrm_app.errors import ConfigError
from dlrm_app.stores.names import is_in_store, local_place, named, url_of, with_urls
from tests.refusals import refused

PARTS = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(st.lists(PARTS.filter(lambda part: part not in (".", "..")), min_size=2, max_size=5))
def test_a_place_gives_its_url_back(parts: list[str]) -> None:
    url = "s3://" + "/".join(parts)
    assert url_of(local_place(url)) == url


def test_one_store_has_one_place_by_any_of_its_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_place("gs://b/x") == local_place("gcs://b/x/") != local_place("s3://b/x")
    plain = local_place("s3://b/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert local_place("s3://b/x") != plain
    assert url_of(local_place("s3://b/x")) == "s3://b/x"
    assert named(f"{local_place('s3://b/x')}: gone, see {plain}/y") == "s3://b/x: gone, see s3://b/x/y"


def test_a_path_from_a_run_to_its_dataset_stays_in_the_store() -> None:
    run = local_place("s3://b/runs/one")
    assert url_of(run / "../../data/clicks") == "s3://b/data/clicks"
    assert url_of(run / "../../../../..") is None
    assert url_of(Path("run")) is None


def test_configurations_name_urls() -> None:
    config = {
        "data": {"path": f"{local_place('s3://b/x')}"},
        "scores": [f"{local_place('s3://b/y')}"],
        "n": 1,
    }
    assert with_urls(config) == {"data": {"path": "s3://b/x"}, "scores": ["s3://b/y"], "n": 1}


@pytest.mark.parametrize("url", ["s3://b", "s3://b/", "s3://b//x", "s3://b/../x", f"s3://b/{'x' * 256}"])
def test_a_url_without_a_place_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="output="):
        local_place(url, "output")


def test_web_servers_and_paths_are_no_stores() -> None:
    assert not any(map(is_in_store, ["https://host/x", "out/s3", "s3:/b/x", None, 3, "dcn"]))


def test_credentials_are_not_shown() -> None:
    with refused(ConfigError, "output=az://b", "names no folder of the bucket"):
        local_place("az://b?sig=SECRET", "output")
