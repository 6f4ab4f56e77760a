"""S-SSH-1 to S-SSH-6 and S-INV-1: who is spoken to over SSH, and how words get there.

The rules about host keys are shown against a real sshd where there is one, and against a small
server of our own on every machine.
"""

import ast
import base64
import os
import random
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pubsubctl.errors import UserError
from pubsubctl.inventory import Inventory, load_inventory
from pubsubctl.ssh.connections import SshConnections
from pubsubctl.ssh.errors import (
    ChangedHostKey,
    ConnectionFailed,
    HostKeyRefused,
    LoginRefused,
    UnknownHostKey,
)
from pubsubctl.ssh.known_hosts import KEY_TYPES, HostKey, KnownHosts, Standing, fingerprint
from pubsubctl.ssh.quoting import command_line
from tests.helpers.ssh_inventory import inventory_of, write_inventory
from tests.helpers.ssh_server import NO_SSHD, SSHD, KeyPair, Sshd, make_key, running_sshd
from tests.helpers.ssh_stand_in import StandIn, running_stand_in
from tests.pubsubctl.conftest import Call, call, project  # noqa: F401  (fixtures)

ROOT = Path(__file__).parents[2]
real_sshd = pytest.mark.skipif(SSHD is None, reason=NO_SSHD)

Server = Sshd | StandIn
Start = Callable[[KeyPair], AbstractContextManager[Server]]


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keys the person has who runs the tests."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def user_key(tmp_path: Path) -> KeyPair:
    return make_key(tmp_path / "id_test")


@pytest.fixture(params=["stand-in", pytest.param("sshd", marks=real_sshd)])
def start(request: pytest.FixtureRequest, tmp_path: Path, user_key: KeyPair) -> Start:
    """Starts a server with a host key."""

    def run(host_key: KeyPair) -> AbstractContextManager[Server]:
        if request.param == "sshd":
            return running_sshd(tmp_path / "sshd", authorized=[user_key], host_key=host_key)
        return running_stand_in(host_key, authorized=user_key)

    return run


def login_attempts(server: Server) -> list[str]:
    return server.login_attempts() if isinstance(server, Sshd) else server.attempts


def say_hello(inventory: Inventory) -> None:
    """Run a command on the first host."""

    async def main() -> None:
        with trio.fail_after(60):
            async with SshConnections(inventory) as connections:
                done = await connections.run(inventory.hosts[0], ["true"])
                assert done.status == 0

    trio.run(main)


def print_of(key: KeyPair) -> str:
    """A key's fingerprint as ssh-keygen computes it."""
    said = subprocess.run(
        ["ssh-keygen", "-lf", f"{key.private}.pub"], capture_output=True, text=True, check=True
    )
    return said.stdout.split()[1]


# S-SSH-1: an unknown key


def test_a_known_key_is_spoken_to(start: Start, tmp_path: Path, user_key: KeyPair) -> None:
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


def python_files(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """The product's modules in which one of these words occurs."""
    for package in ("bench", "brokerd", "fault_injection", "pubsubctl", "results"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in words):
                yield path, ast.parse(text)


def test_ssh_libraries_are_used_in_one_module_only_and_never_trust_anybody() -> None:
    line = ROOT / "pubsubctl" / "ssh" / "line.py"
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
    assert users == {line}
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
    assert "somebody answers in its place" in str(refused.value)


def test_another_kind_of_key_is_a_changed_key_too(
    start: Start, tmp_path: Path, user_key: KeyPair
) -> None:
    with start(make_key(tmp_path / "new", "ecdsa")) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)
        old = make_key(tmp_path / "old", "ed25519")
        (tmp_path / "known_hosts.ssh-test").write_text(f"[127.0.0.1]:{server.port} {old.public}\n")
        with pytest.raises(ChangedHostKey):
            say_hello(inventory)


def test_a_revoked_key_is_refused_though_it_is_known(
    start: Start, tmp_path: Path, user_key: KeyPair
) -> None:
    with start(make_key(tmp_path / "host")) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)
        with (tmp_path / "known_hosts.ssh-test").open("a") as file:
            file.write(f"@revoked * {server.host_key.public}\n")
        with pytest.raises(ChangedHostKey, match="revoked"):
            say_hello(inventory)


# S-SSH-3: first contact


@pytest.fixture
def met(start: Start, project: Path, user_key: KeyPair, tmp_path: Path) -> Iterator[Server]:  # noqa: F811
    """A server that an inventory in the current project names and does not know yet."""
    with start(make_key(tmp_path / "host")) as server:
        folder = project / "inventories"
        write_inventory(folder, {"n01": server}, user_key, known=False)
        yield server


def known_hosts_of(project: Path) -> Path:  # noqa: F811
    return project / "inventories" / "known_hosts.ssh-test"


TRUST = ("-i", "ssh-test", "inventory", "trust", "n01")


@pytest.mark.parametrize("verb", ["doctor", "status"])
def test_commands_say_whose_key_is_unknown_and_what_to_do(
    met: Server,
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
    verb: str,
) -> None:
    answer = call("-i", "ssh-test", verb)
    assert answer.status != 0
    said = answer.out + answer.err
    assert print_of(met.host_key) in said
    assert "inventory trust n01" in said
    assert login_attempts(met) == []
    assert not known_hosts_of(project).exists()


def test_a_script_that_names_no_fingerprint_trusts_nobody(
    met: Server,
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
) -> None:
    for more in ((), ("--yes",)):
        answer = call(*TRUST, *more)
        assert answer.status == 2
        assert "--fingerprint" in answer.err
    assert not known_hosts_of(project).exists()
    assert login_attempts(met) == []


def test_the_right_fingerprint_is_trusted_and_the_file_is_private(
    met: Server,
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
) -> None:
    shown = call(*TRUST, "--dry-run", "--json")
    assert shown.status == 0
    (machine,) = shown.document["machines"]
    assert machine["state"] == "unknown"
    assert not known_hosts_of(project).exists()

    answer = call(*TRUST, "--fingerprint", print_of(met.host_key), "--json")
    assert answer.status == 0, answer.err
    (machine,) = answer.document["machines"]
    assert machine["fingerprint"] == print_of(met.host_key)
    assert machine["state"] == "added"
    assert known_hosts_of(project).stat().st_mode & 0o777 == 0o600
    assert met.host_key.public in known_hosts_of(project).read_text()
    assert login_attempts(met) == []

    before = known_hosts_of(project).read_bytes()
    again = call(*TRUST, "--fingerprint", print_of(met.host_key), "--json")
    assert again.document["machines"][0]["state"] == "known"
    assert known_hosts_of(project).read_bytes() == before


def test_a_wrong_fingerprint_is_refused(
    met: Server,
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
    tmp_path: Path,
) -> None:
    answer = call(*TRUST, "--fingerprint", print_of(make_key(tmp_path / "other")))
    assert answer.status == 6
    assert print_of(met.host_key) in answer.err
    assert not known_hosts_of(project).exists()
    assert call(*TRUST, "--fingerprint", "SHA256:short").status == 2


@pytest.mark.parametrize("answered", ["yes\n", "y\n", "no\n", ""])
def test_a_person_is_shown_the_fingerprint_and_has_to_type_yes(
    met: Server,
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    answered: str,
) -> None:
    class Person:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answered

    monkeypatch.setattr("sys.stdin", Person())
    answer = call(*TRUST)
    assert print_of(met.host_key) in answer.err
    if answered == "yes\n":
        assert answer.status == 0
        assert met.host_key.public in known_hosts_of(project).read_text()
    else:
        assert answer.status == 6
        assert not known_hosts_of(project).exists()


def test_a_changed_key_is_not_trusted_either(
    met: Server,
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
    tmp_path: Path,
) -> None:
    old = make_key(tmp_path / "old")
    known_hosts_of(project).write_text(f"[127.0.0.1]:{met.port} {old.public}\n")
    before = known_hosts_of(project).read_bytes()
    answer = call(*TRUST, "--fingerprint", print_of(met.host_key))
    assert answer.status == 6
    assert "remove these lines" in answer.err
    assert known_hosts_of(project).read_bytes() == before


@real_sshd
def test_gateways_on_the_way_are_trusted_first(
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
    tmp_path: Path,
    user_key: KeyPair,
) -> None:
    with (
        running_sshd(tmp_path / "gw", authorized=[user_key]) as gateway,
        running_sshd(tmp_path / "n01", authorized=[user_key]) as host,
    ):
        write_inventory(
            project / "inventories",
            {"n01": host},
            user_key,
            gateways={"gw": gateway},
            jumps={"n01": "gw"},
            known=False,
        )
        prints = [print_of(server.host_key) for server in (gateway, host)]
        half = call(*TRUST, "--fingerprint", prints[0])
        assert half.status == 6
        assert gateway.host_key.public in known_hosts_of(project).read_text()
        whole = call(*TRUST, "--fingerprint", prints[1], "--json")
        states = [(row["name"], row["state"]) for row in whole.document["machines"]]
        assert states == [("gw", "known"), ("n01", "added")]


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
def test_a_key_in_the_agent_is_used_there_and_goes_nowhere(
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
    """An ssh-agent that holds a key, until the end of the block."""
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
        timeout=20,
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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of one's own."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    return folder


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
def test_commands_in_the_persons_own_configuration_run_only_when_asked_for(
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


@pytest.mark.parametrize("asked_for", [False, True])
def test_the_command_line_asks_for_it(
    met: Server,
    project: Path,  # noqa: F811
    call: Call,  # noqa: F811
    home: Path,
    asked_for: bool,
) -> None:
    (home / ".ssh" / "config").write_text("Host *\n    ProxyCommand /no/such/command\n")
    flags = ["--use-ssh-config"] if asked_for else []
    answer = call(*TRUST, "--dry-run", *flags)
    assert answer.status == (6 if asked_for else 0)
    assert ("/no/such/command" in answer.err) == asked_for


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
    """With the same RSA keys and SHA-2, both are."""
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
    """CVE-2026-44405 concerns 4.0.0 and before."""
    project_file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "paramiko>=5" in project_file["project"]["dependencies"]
    lock = (ROOT / ".setup" / "requirements.lock").read_text(encoding="utf-8")
    (locked,) = [line for line in lock.splitlines() if line.startswith("paramiko==")]
    assert int(locked.removeprefix("paramiko==").partition(".")[0]) >= 5


# known_hosts itself


KEYS = {kind: bytes([0, 0, 0, len(kind)]) + kind.encode() + b"key" for kind in KEY_TYPES}


def encoded(kind: str = "ssh-ed25519") -> str:
    return f"{kind} {base64.b64encode(KEYS[kind]).decode()}"


@pytest.mark.parametrize(
    "hosts, address, port, is_named",
    [
        ("n01.lab", "n01.lab", 22, True),
        ("N01.LAB", "n01.lab", 22, True),
        ("n01.lab", "n01.lab", 2222, False),
        ("[n01.lab]:2222", "n01.lab", 2222, True),
        ("[n01.lab]:22", "n01.lab", 22, True),
        ("a,n01.lab,b", "n01.lab", 22, True),
        ("*.lab", "n01.lab", 22, True),
        ("*.lab,!n01.lab", "n01.lab", 22, False),
        ("n0?.lab", "n01.lab", 22, True),
        ("n0[0-9].lab", "n01.lab", 22, False),
        ("::1", "::1", 22, True),
        ("[::1]:2222", "::1", 2222, True),
        ("n01", "n01.lab", 22, False),
    ],
)
def test_names_in_known_hosts(
    tmp_path: Path, hosts: str, address: str, port: int, is_named: bool
) -> None:
    path = tmp_path / "known"
    path.write_text(f"\n# comment\n{hosts} {encoded()} a comment\n")
    judgement = KnownHosts.load(path).judge(
        address, port, HostKey("ssh-ed25519", KEYS["ssh-ed25519"])
    )
    assert (judgement.standing is Standing.TRUSTED) == is_named
    assert judgement.standing is not Standing.CHANGED


def test_hashed_names_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text(f"[n01.lab]:2222 {encoded()}\nn02.lab {encoded('ssh-rsa')}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(path)], check=True, capture_output=True)
    assert "n01" not in path.read_text()
    known = KnownHosts.load(path)
    ed25519 = HostKey("ssh-ed25519", KEYS["ssh-ed25519"])
    assert known.judge("n01.lab", 2222, ed25519).standing is Standing.TRUSTED
    assert known.judge("n02.lab", 22, ed25519).standing is Standing.CHANGED
    assert known.judge("n03.lab", 22, ed25519).standing is Standing.UNKNOWN

    known.add("n03.lab", 22, ed25519, "n03")
    assert "n03.lab" not in path.read_text(), "names stay hidden where they were"
    assert KnownHosts.load(path).judge("n03.lab", 22, ed25519).standing is Standing.TRUSTED
    found = subprocess.run(
        ["ssh-keygen", "-F", "n03.lab", "-f", str(path)], capture_output=True, check=True
    )
    assert b"line 3" in found.stdout


def test_adding_a_line_leaves_the_others_alone_and_makes_the_file_private(tmp_path: Path) -> None:
    path = tmp_path / "known"
    before = f"# no newline at the end\nn01 {encoded()}"
    path.write_text(before)
    path.chmod(0o644)
    KnownHosts.load(path).add("::1", 2222, HostKey("ssh-rsa", KEYS["ssh-rsa"]), "n02")
    assert path.read_text() == f"{before}\n[::1]:2222 {encoded('ssh-rsa')} n02\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line, problem",
    [
        ("n01", "a line has"),
        ("n01 ssh-ed25519", "a line has"),
        ("n01 ssh-ed25519 ???", "not base64"),
        (f"n01 ssh-rsa {encoded().split()[1]}", "not of the type"),
        (f"@unheard n01 {encoded()}", "unknown marker"),
        (f"|1|???|??? {encoded()}", "not base64"),
    ],
)
def test_a_line_that_cannot_be_read_is_the_users_to_mend(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "known"
    path.write_text(f"\n{line}\n")
    with pytest.raises(UserError, match=f"{path}:2: .*{problem}"):
        KnownHosts.load(path)


def test_a_file_that_everybody_may_write_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(UserError, match="everybody may write it"):
        KnownHosts.load(path)


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    for kind in ("ed25519", "ecdsa", "rsa"):
        key = make_key(tmp_path / kind, kind)
        assert fingerprint(base64.b64decode(key.public.split()[1])) == print_of(key)


# S-INV-1: words


NASTY = [
    *"'\"`$\\|&;<>(){}[]*?!#~= \t\n\r-/%",
    *("$(touch PWNED)", "`touch PWNED`", "; touch PWNED", "&& touch PWNED", "${IFS}", "$'\\x41'"),
    *("--", "-n", "-e", "\\0", "\\n", "ü", "δ", "漢", "🙂", "\x01", "\x1b[31m", "\x7f", "a", "Z9"),
]


def test_any_word_arrives_as_it_is_through_a_real_shell(tmp_path: Path) -> None:
    seed = int(os.environ.get("QUOTING_SEED", "20260101"))
    chance = random.Random(seed)
    wanted = 100_000
    words = ["".join(chance.choices(NASTY, k=chance.randrange(0, 6))) for _ in range(wanted)]
    for begin in range(0, wanted, 2_000):
        batch = words[begin : begin + 2_000]
        line = command_line(["printf", r"%s\0", *batch])
        done = subprocess.run(["sh", "-c", line], capture_output=True, cwd=tmp_path, check=True)
        assert done.stderr == b"", f"seed {seed}"
        arrived = done.stdout.decode().split("\0")[:-1]
        assert arrived == batch, f"seed {seed}, from word {begin}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["\0", "a\0b", "\ud800", "x" * 131_072])
def test_words_that_no_command_line_can_carry_are_refused(word: str) -> None:
    with pytest.raises(UserError):
        command_line(["printf", word])


def test_a_command_is_never_a_text() -> None:
    with pytest.raises(AssertionError, match="a list of words"):
        command_line("rm -rf /")


def test_commands_begin_in_one_module_only_and_are_never_written_as_text() -> None:
    starts = {"exec_command", "invoke_shell", "open_session", "create_session", "sudo"}
    for path, tree in python_files(*starts, "ssh.connections"):
        uses_connections = "ssh.connections" in path.read_text(encoding="utf-8")
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr in starts:
                assert path.name == "line.py", f"{path}:{node.lineno}"
            if uses_connections and node.func.attr in ("run", "open") and len(node.args) > 1:
                words = node.args[1]
                is_text = isinstance(words, ast.JoinedStr | ast.BinOp) or (
                    isinstance(words, ast.Constant) and isinstance(words.value, str)
                )
                assert not is_text, f"{path}:{node.lineno}: a command is a list of words"
