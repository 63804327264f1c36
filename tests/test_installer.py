"""uv installs what pip would, from pip's own configuration, and pip where uv cannot; in bare environments, offline."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.installer import Installer, SetupError, as_uv_settings
from tests.bare_venv import make_bare_venv

UV = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
needs_uv = pytest.mark.skipif(UV is None, reason="no uv: make setup installs it")


def make_wheel(folder: Path, version: str) -> None:
    """A package named thing, with nothing in it."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"thing-{version}.dist-info"
    with zipfile.ZipFile(folder / f"thing-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: thing\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


def make_index(folder: Path, version: str) -> str:
    """The address of an index that has one version of thing."""
    make_wheel(folder / "thing", version)
    [wheel] = (folder / "thing").iterdir()
    (folder / "thing" / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>')
    return folder.as_uri()


@pytest.fixture
def venv(tmp_path, monkeypatch) -> Path:
    """The Python of an environment that holds pip; pip's configuration is empty and nothing is on the path."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    configure(tmp_path, monkeypatch, "no-index = true")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return make_bare_venv(tmp_path / "venv", lambda name: name.split("-")[0] == "pip")


def configure(folder, monkeypatch, *lines):
    """Writes a pip.conf; what the machine's own says does not count."""
    of_machine = ["extra-index-url =", "find-links =", "constraint ="]
    set_here = {line.split(" =")[0] for line in lines}
    kept = [line for line in of_machine if line.removesuffix(" =") not in set_here]
    (folder / "pip.conf").write_text("\n".join(["[global]", *kept, *lines, ""]))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(folder / "pip.conf"))


def use_real_uv(venv: Path) -> None:
    (venv.parent / "uv").symlink_to(UV)


def use_fake_uv(venv: Path) -> Path:
    """A uv that fails, and the file in which it counts its calls."""
    calls = venv.parent / "calls"
    (venv.parent / "uv").write_text(f"#!/bin/sh\necho call >> {calls}\necho this uv is broken >&2\nexit 2\n")
    (venv.parent / "uv").chmod(0o755)
    return calls


def version_of_thing(venv: Path) -> str:
    code = "from importlib.metadata import version; print(version('thing'))"
    return subprocess.run([str(venv), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def use_pip_alone(venv: Path) -> None:
    """Nothing: no index has uv."""


BOTH = pytest.mark.parametrize("prepare", [pytest.param(use_real_uv, marks=needs_uv), use_pip_alone])


@BOTH
def test_uv_and_pip_take_the_best_version_of_all_sources_that_the_constraints_allow(
    prepare, venv, tmp_path, monkeypatch
):
    for version in ("1.0", "2.5", "9.0"):
        make_wheel(tmp_path / "wheels", version)
    (tmp_path / "constraints.txt").write_text("thing<9\n")
    configure(
        tmp_path,
        monkeypatch,
        f"index-url = {make_index(tmp_path / 'first', '1.5')}",
        f"extra-index-url = {make_index(tmp_path / 'second', '2.0')}",
        f"    {make_index(tmp_path / 'third', '3.0')}",
        f"find-links = {tmp_path / 'wheels'}",
        f"constraint = {tmp_path / 'constraints.txt'}",
    )
    prepare(venv)
    Installer(venv).install("thing")
    assert version_of_thing(venv) == "3.0"


@BOTH
def test_a_given_index_is_added_to_the_configured_ones(prepare, venv, tmp_path, monkeypatch):
    configure(tmp_path, monkeypatch, f"index-url = {make_index(tmp_path / 'first', '1.5')}")
    prepare(venv)
    assert Installer(venv).install(
        "thing", index=make_index(tmp_path / "second", "1.5+cpu"), may_lack="thing"
    )
    assert version_of_thing(venv) == "1.5+cpu"


@pytest.mark.slow
@BOTH
def test_an_exact_version_is_not_satisfied_by_another_build(prepare, venv, tmp_path, monkeypatch):
    for version in ("1.5", "1.5+cpu"):
        make_wheel(tmp_path / "wheels", version)
    configure(tmp_path, monkeypatch, "no-index = true", f"find-links = {tmp_path / 'wheels'}")
    prepare(venv)
    installer = Installer(venv)
    assert installer.install("thing==1.5")
    assert version_of_thing(venv) == "1.5+cpu"
    assert installer.install("thing===1.5")
    assert version_of_thing(venv) == "1.5"


@pytest.mark.slow
@BOTH
def test_installed_packages_stay_if_no_source_has_them(prepare, venv, tmp_path, monkeypatch):
    make_wheel(tmp_path / "wheels", "1.5+cpu")
    configure(tmp_path, monkeypatch, "no-index = true", f"find-links = {tmp_path / 'wheels'}")
    prepare(venv)
    assert Installer(venv).install("thing==1.5+cpu")
    configure(tmp_path, monkeypatch, f"index-url = {make_index(tmp_path / 'first', '1.5')}")
    assert Installer(venv).install("thing==1.5+cpu")


@pytest.mark.slow
@BOTH
def test_a_version_that_is_lacking_or_excluded_is_reported_as_such(
    prepare, venv, tmp_path, monkeypatch, capsys
):
    make_wheel(tmp_path / "wheels", "2.0")
    (tmp_path / "constraints.txt").write_text("thing<2\n")
    configure(
        tmp_path,
        monkeypatch,
        "no-index = true",
        f"find-links = {tmp_path / 'wheels'}",
        f"constraint = {tmp_path / 'constraints.txt'}",
    )
    prepare(venv)
    installer = Installer(venv)
    assert not installer.install("thing==1.0", may_lack="thing==1.0")
    assert not installer.install("thing==2.0", may_lack="thing==2.0")
    assert "uv failed" not in capsys.readouterr().out


@BOTH
def test_another_failure_is_shown_in_pips_words(prepare, venv):
    prepare(venv)
    with pytest.raises(SetupError, match="No matching distribution found for thing"):
        Installer(venv).install("thing")


def test_without_uv_pip_installs_and_says_so(venv, tmp_path, monkeypatch, capsys):
    make_wheel(tmp_path / "wheels", "1.0")
    configure(tmp_path, monkeypatch, "no-index = true", f"find-links = {tmp_path / 'wheels'}")
    Installer(venv).install("thing")
    said = capsys.readouterr().out
    assert "uv cannot be had, so pip installs" in said
    assert "No matching distribution found for uv" in said
    assert version_of_thing(venv) == "1.0"


@pytest.mark.slow
@pytest.mark.parametrize("may_lack", [None, "thing==1.0"])
def test_after_a_failure_of_uv_pip_installs_and_says_so_once(may_lack, venv, tmp_path, monkeypatch, capsys):
    for version in ("1.0", "2.0"):
        make_wheel(tmp_path / "wheels", version)
    configure(tmp_path, monkeypatch, "no-index = true", f"find-links = {tmp_path / 'wheels'}")
    calls = use_fake_uv(venv)
    installer = Installer(venv)
    installer.install("thing==1.0", may_lack=may_lack)
    installer.install("thing==2.0")
    said = capsys.readouterr().out
    assert said.count("uv failed, so pip installs") == 1
    assert "this uv is broken" in said
    assert calls.read_text().count("call") == 1
    assert version_of_thing(venv) == "2.0"


@pytest.mark.parametrize(
    ("listing", "options", "variables"),
    [
        ("", [], {}),
        ("global.index-url='https://a/simple'", ["--index-url", "https://a/simple"], {}),
        (
            ":env:.index-url='https://c'\nglobal.index-url='https://a'\ninstall.index-url='https://b'",
            ["--index-url", "https://c"],
            {},
        ),
        ("global.find-links='/a'\n:env:.find-links=''", ["--find-links", "/a"], {}),
        ("global.trusted-host='a\\nb:80'", ["--trusted-host", "a", "--trusted-host", "b:80"], {}),
        ("global.no-index='yes'\nglobal.pre='true'", ["--no-index", "--prerelease=allow"], {}),
        ("global.no-index='false'\nglobal.progress-bar='off'", [], {}),
        ("global.only-binary=':all:'", ["--only-binary", ":all:"], {}),
        (
            "global.cert='/ca.pem'\nglobal.client-cert='/me.pem'",
            [],
            {"SSL_CERT_FILE": "/ca.pem", "SSL_CLIENT_CERT": "/me.pem"},
        ),
        ("global.proxy='http://p:1'", [], {"HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:1"}),
        (":env:.default-timeout='180'", [], {"UV_HTTP_TIMEOUT": "180"}),
        ("global.retries='2'", [], {"UV_HTTP_RETRIES": "2"}),
    ],
)
def test_pips_configuration_is_said_in_uvs_words(listing, options, variables):
    """The environment wins over the section of `pip install`, and that over the global one, as in pip."""
    told, environment = as_uv_settings(listing)
    assert told == ["--index-strategy", "unsafe-best-match", *options]
    assert environment == {"UV_SYSTEM_CERTS": "true", **variables}
