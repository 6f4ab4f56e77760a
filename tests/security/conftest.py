"""Fixtures for SSH servers with chosen host keys, and for a user's own files."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.helpers.ssh_inventory import write_inventory
from tests.helpers.ssh_login import Server, Start
from tests.helpers.ssh_server import NO_SSHD, SSHD, KeyPair, make_key, running_sshd
from tests.helpers.ssh_stand_in import running_stand_in
from tests.pubsubctl.conftest import call, project

__all__ = ["call", "project"]  # fixtures

real_sshd = pytest.mark.skipif(SSHD is None, reason=NO_SSHD)


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the SSH keys of the user that runs the tests."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def user_key(tmp_path: Path) -> KeyPair:
    return make_key(tmp_path / "id_test")


@pytest.fixture(params=["stand-in", pytest.param("sshd", marks=real_sshd)])
def start(request: pytest.FixtureRequest, tmp_path: Path, user_key: KeyPair) -> Start:
    """Return a function that starts a server with a host key."""

    def run(host_key: KeyPair) -> AbstractContextManager[Server]:
        if request.param == "sshd":
            return running_sshd(tmp_path / "sshd", authorized=[user_key], host_key=host_key)
        return running_stand_in(host_key, authorized=user_key)

    return run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary home folder."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def met(start: Start, project: Path, user_key: KeyPair, tmp_path: Path) -> Iterator[Server]:
    """Yield a server in an inventory of the current project whose host key is not yet accepted."""
    with start(make_key(tmp_path / "host")) as server:
        folder = project / "inventories"
        write_inventory(folder, {"n01": server}, user_key, known=False)
        yield server
