"""Tests of S-SSH-1, S-SSH-2 and S-SSH-4 to S-SSH-6: the peers of SSH, and the algorithms.

The rules about host keys are tested against a real sshd if available, and against a small server of
the tests on every machine.
"""

import ast
import base64
import os
import subprocess
import sys
import tomllib
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pubsubctl.hosts.ssh.connections import SshConnections
from pubsubctl.hosts.ssh.errors import (
    ChangedHostKey,
    ConnectionFailed,
    HostKeyRefused,
    LoginRefused,
    UnknownHostKey,
)
from pubsubctl.hosts.ssh.known_hosts import HostKey
from pubsubctl.inventory.inventory import Inventory, load_inventory
from tests.helpers.patience import PATIENCE_S
from tests.helpers.product_code import python_files
from tests.helpers.ssh_inventory import inventory_of, write_inventory
from tests.helpers.ssh_login import Start, login_attempts, say_hello
from tests.helpers.ssh_server import KeyPair, make_key, running_sshd
from tests.helpers.ssh_stand_in import running_stand_in
from tests.security.conftest import real_sshd

ROOT = Path(__file__).parents[2]

# S-SSH-1: an unknown key


def test_a_session_opens_to_a_host_with_a_trusted_key(
    start: Start, tmp_path: Path, user_key: KeyPair
) -> None:
    with start(make_key(tmp_path / "host")) as server:
        say_hello(inventory_of(tmp_path, {"n01": server}, user_key))
        assert login_attempts(server), "the log shows logins when there are some"


def test_an_unknown_key_is_refused_before_any_login(
    start: Start, tmp_path: Path, user_key: KeyPair
) -> None:
    host_key = make_key(tmp_path / "host")
    with start(host_key) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key, known=False)
        with pytest.raises(UnknownHostKey) as refused:
            say_hello(inventory)
        assert login_attempts(server) == []
    shown = HostKey("", base64.b64decode(host_key.public.split()[1])).fingerprint
    text = str(refused.value)
    assert text.startswith("n01: ")
    assert shown in text
    assert f"pubsubctl -i {inventory.path} inventory trust n01" in text
    assert refused.value.exit_status == 6
    assert not (tmp_path / "known_hosts.ssh-test").exists()


@real_sshd
@pytest.mark.parametrize("stranger", ["gateway", "host"])
def test_every_hop_is_checked(tmp_path: Path, user_key: KeyPair, stranger: str) -> None:
    with (
        running_sshd(tmp_path / "gw", authorized=[user_key]) as gateway,
        running_sshd(tmp_path / "n01", authorized=[user_key]) as host,
    ):
        inventory = inventory_of(
            tmp_path, {"n01": host}, user_key, gateways={"gw": gateway}, jumps={"n01": "gw"}
        )
        say_hello(inventory)
        before = len(host.login_attempts()), len(gateway.login_attempts())
        known = host if stranger == "gateway" else gateway
        (tmp_path / "known_hosts.ssh-test").write_text(known.known_hosts_line)
        with pytest.raises(UnknownHostKey, match="gw: " if stranger == "gateway" else "n01: "):
            say_hello(inventory)
        assert len(host.login_attempts()) == before[0]
        if stranger == "gateway":
            assert len(gateway.login_attempts()) == before[1]


def test_three_modules_alone_use_ssh_libraries_and_never_trust_unknown_keys() -> None:
    line = ROOT / "pubsubctl" / "hosts" / "ssh" / "fabric_connection.py"
    users = set()
    for path, tree in python_files("fabric", "paramiko", "invoke", "Policy"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                names = []
            if any(name.partition(".")[0] in ("fabric", "paramiko", "invoke") for name in names):
                users.add(path)
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            assert name not in ("AutoAddPolicy", "WarningPolicy", "load_system_host_keys"), path
    assert users == {
        line, line.with_name("transport.py"), line.with_name("file_transfers.py"),
    }  # fmt: skip
    text = line.read_text(encoding="utf-8")
    assert text.count("fabric.Connection(") == 1
    assert text.count("paramiko.SSHClient(") == 1
    assert text.count("set_missing_host_key_policy(_AcceptedOnly(") == 1


# S-SSH-2: a changed key


def test_a_changed_key_is_refused_and_the_file_stays_as_it_is(
    start: Start, tmp_path: Path, user_key: KeyPair
) -> None:
    known_hosts = tmp_path / "known_hosts.ssh-test"
    with start(make_key(tmp_path / "new")) as server:
        old = make_key(tmp_path / "old")
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)
        known_hosts.write_text(f"# first line\n[127.0.0.1]:{server.port} {old.public}\n")
        before = known_hosts.read_bytes()
        with pytest.raises(ChangedHostKey) as refused:
            say_hello(inventory)
        assert login_attempts(server) == []
    assert known_hosts.read_bytes() == before
    assert refused.value.lines == (2,)
    assert f"{known_hosts}:2" in str(refused.value)
    assert "another machine answers" in str(refused.value)


def test_another_kind_of_key_is_a_changed_key_too(
    start: Start, tmp_path: Path, user_key: KeyPair
) -> None:
    with start(make_key(tmp_path / "new", "ecdsa")) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)
        old = make_key(tmp_path / "old", "ed25519")
        (tmp_path / "known_hosts.ssh-test").write_text(f"[127.0.0.1]:{server.port} {old.public}\n")
        with pytest.raises(ChangedHostKey):
            say_hello(inventory)


def test_a_revoked_key_is_refused_despite_its_entry(
    start: Start, tmp_path: Path, user_key: KeyPair
) -> None:
    with start(make_key(tmp_path / "host")) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)
        with (tmp_path / "known_hosts.ssh-test").open("a") as file:
            file.write(f"@revoked * {server.host_key.public}\n")
        with pytest.raises(ChangedHostKey, match="revoked"):
            say_hello(inventory)


# S-SSH-4: keys only


def test_only_keys_are_tried_and_no_agent_is_forwarded(tmp_path: Path, user_key: KeyPair) -> None:
    with running_stand_in(make_key(tmp_path / "host"), authorized=user_key) as server:
        say_hello(inventory_of(tmp_path, {"n01": server}, user_key))
        stranger = make_key(tmp_path / "id_stranger")
        with pytest.raises(LoginRefused):
            say_hello(inventory_of(tmp_path, {"n01": server}, stranger))
        methods = {attempt.split()[0] for attempt in server.attempts}
        assert methods == {"publickey"}
        assert server.forwarded == 0


@real_sshd
def test_a_key_in_the_agent_is_used_there_and_copied_to_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = make_key(tmp_path / "id_locked", passphrase="canary-passphrase")
    with agent(tmp_path, locked, "canary-passphrase") as socket_path:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_path))
        with running_sshd(tmp_path / "sshd", authorized=[locked]) as server:
            inventory = inventory_of(tmp_path, {"n01": server}, locked)

            async def main() -> None:
                async with SshConnections(inventory) as connections:
                    done = await connections.run(inventory.hosts[0], ["env"])
                    assert b"SSH_CONNECTION=" in done.stdout
                    assert b"SSH_AUTH_SOCK" not in done.stdout

            trio.run(main)


def agent(folder: Path, key: KeyPair, passphrase: str) -> AbstractContextManager[Path]:
    """Return an ssh-agent with a key, until the end of the block."""
    stack = ExitStack()
    socket_path = folder / "agent.sock"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket_path)], stdout=subprocess.DEVNULL
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    ask = folder / "askpass"
    ask.write_text(f"#!/bin/sh\necho {passphrase}\n")
    ask.chmod(0o700)
    environment = {
        **os.environ,
        "SSH_AUTH_SOCK": str(socket_path),
        "SSH_ASKPASS": str(ask),
        "SSH_ASKPASS_REQUIRE": "force",
    }
    subprocess.run(
        [
            "sh",
            "-c",
            'until [ -S "$SSH_AUTH_SOCK" ]; do sleep 0.01; done; ssh-add "$0"',
            str(key.private),
        ],
        env=environment,
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )

    class Running:
        def __enter__(self) -> Path:
            return socket_path

        def __exit__(self, *exc: Any) -> None:
            stack.close()

    return Running()


# S-SSH-5: the person's own configuration


RELAY = """\
import os, socket, sys, threading
server = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def there():
    while data := os.read(0, 65536):
        server.sendall(data)
    server.shutdown(socket.SHUT_RDWR)
threading.Thread(target=there, daemon=True).start()
while data := server.recv(65536):
    os.write(1, data)
"""


def test_the_persons_own_configuration_fills_in_and_overrules_nothing(
    tmp_path: Path, home: Path, user_key: KeyPair
) -> None:
    relay = tmp_path / "relay.py"
    (home / ".ssh" / "config").write_text(
        "Host *\n    Port 1\n    User nobody\n    ForwardAgent yes\n"
        f"    ProxyCommand {sys.executable} {relay} %h %p\n"
    )
    with running_stand_in(make_key(tmp_path / "host"), authorized=user_key) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)
        say_hello(inventory)
        asked_for = with_own_configuration(inventory)
        with pytest.raises(ConnectionFailed):
            say_hello(asked_for)
        relay.write_text(RELAY)
        say_hello(asked_for)
        assert server.attempts[-1] == "publickey nobody"
        assert server.forwarded == 0

        (tmp_path / "known_hosts.ssh-test").write_text("")
        with pytest.raises(UnknownHostKey):
            say_hello(asked_for)


@pytest.mark.parametrize("asked_for", [False, True])
def test_commands_in_the_users_ssh_configuration_run_only_on_request(
    tmp_path: Path, home: Path, user_key: KeyPair, asked_for: bool
) -> None:
    (home / ".ssh" / "config").write_text(
        f'Match exec "touch {tmp_path}/PWNED-1"\n    User nobody\n'
        f"Host *\n    ProxyCommand touch {tmp_path}/PWNED-2\n"
    )
    with running_stand_in(make_key(tmp_path / "host"), authorized=user_key) as server:
        path = write_inventory(tmp_path, {"n01": server}, user_key)
        flags = ["--use-ssh-config"] if asked_for else []
        # In a process of its own, because the library that runs `Match exec` leaves pipes open.
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pubsubctl",
                "-i",
                path,
                *flags,
                *("inventory", "trust", "-n", "n01"),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == (6 if asked_for else 0), done.stderr
    assert (tmp_path / "PWNED-1").exists() == asked_for
    assert (tmp_path / "PWNED-2").exists() == asked_for


def with_own_configuration(inventory: Inventory) -> Inventory:
    settings = replace(inventory.ssh, user_config=Path("~/.ssh/config"))
    return replace(inventory, ssh=settings)


@real_sshd
def test_gateways_of_ones_own_configuration_are_checked_like_others(
    tmp_path: Path, home: Path, user_key: KeyPair
) -> None:
    with (
        running_sshd(tmp_path / "gw", authorized=[user_key]) as gateway,
        running_sshd(tmp_path / "n01", authorized=[user_key]) as host,
    ):
        (home / ".ssh" / "config").write_text(
            f"Host inner\n    HostName {host.address}\n    Port {host.port}\n"
            f"    ProxyJump 127.0.0.1:{gateway.port}\n"
            f"Host 127.0.0.1\n    IdentityFile {user_key.private}\n"
        )
        path = write_inventory(tmp_path, {"n01": host}, user_key)
        text = path.read_text().replace('"127.0.0.1"', '"inner"').replace(f"port = {host.port}", "")
        path.write_text(text)
        asked_for = with_own_configuration(load_inventory(path))
        with pytest.raises(UnknownHostKey, match="inventory trust HOST"):
            say_hello(asked_for)
        with (tmp_path / "known_hosts.ssh-test").open("a") as file:
            file.write(gateway.known_hosts_line)
        say_hello(asked_for)
        assert gateway.login_attempts()


# S-SSH-6: no SHA-1


@pytest.mark.parametrize("what", ["HostKeyAlgorithms", "PubkeyAcceptedAlgorithms"])
@real_sshd
def test_signatures_made_with_sha1_are_not_taken(tmp_path: Path, what: str) -> None:
    """The same RSA keys are accepted with SHA-2."""
    host_key, user_key = make_key(tmp_path / "host", "rsa"), make_key(tmp_path / "id", "rsa")
    for algorithm in ("rsa-sha2-512", "ssh-rsa"):
        with running_sshd(
            tmp_path / algorithm,
            authorized=[user_key],
            host_key=host_key,
            lines=[f"{what} {algorithm}"],
        ) as server:
            inventory = inventory_of(tmp_path, {"n01": server}, user_key)
            if algorithm == "rsa-sha2-512":
                say_hello(inventory)
                continue
            with pytest.raises(ConnectionFailed) as failed:
                say_hello(inventory)
            assert not isinstance(failed.value, HostKeyRefused)
            if what == "HostKeyAlgorithms":
                assert not server.login_attempts()


def test_the_locked_paramiko_is_one_that_refuses_sha1() -> None:
    """CVE-2026-44405 affects 4.0.0 and earlier."""
    project_file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "paramiko>=5" in project_file["project"]["dependencies"]
    lock = (ROOT / ".setup" / "requirements.lock").read_text(encoding="utf-8")
    (locked,) = [line for line in lock.splitlines() if line.startswith("paramiko==")]
    assert int(locked.removeprefix("paramiko==").partition(".")[0]) >= 5
