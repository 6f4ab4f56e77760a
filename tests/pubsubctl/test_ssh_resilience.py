"""Stories about SSH failures: lost answers, dropped and silent servers, Ctrl-C."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pubsubctl.errors import IntegrityError
from pubsubctl.hosts.ssh.connections import SshConnections
from pubsubctl.hosts.ssh.errors import ConnectionFailed, UnknownHostKey
from pubsubctl.hosts.ssh.file_transfers import Upload
from pubsubctl.inventory.inventory import Inventory
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ssh_inventory import inventory_of, write_inventory
from tests.helpers.ssh_server import NO_SSHD, SSHD, KeyPair, make_key, running_sshd
from tests.helpers.ssh_stand_in import running_stand_in

ROOT = Path(__file__).parents[2]
QUICK = 'keepalive = "500ms"\nconnect_timeout = "300ms"\nretries = 0'


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the SSH agent of the user."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def user_key(tmp_path: Path) -> KeyPair:
    return make_key(tmp_path / "id_test")


def say_hello_to_all(inventory: Inventory) -> dict[str, str]:
    """Run a command on every host; return host → error."""
    failures: dict[str, str] = {}

    async def main() -> None:
        async with SshConnections(inventory) as connections, trio.open_nursery() as nursery:

            async def one(index: int) -> None:
                host = inventory.hosts[index]
                try:
                    await connections.run(host, ["true"])
                except ConnectionFailed as error:
                    failures[host.name] = str(error)

            for index in range(len(inventory.hosts)):
                nursery.start_soon(one, index)

    trio.run(main)
    return failures


# Files whose connection is lost


@dataclass
class Disk:
    """A host's disk behind SFTP; `plan` selects the request at which the connection is lost.

    Attributes:
        plan: request → whether the request is executed before the loss.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    plan: dict[str, bool] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def _requested(self, request: str, carry_out: Callable[[], Any]) -> Any:
        self.requests.append(request)
        is_carried_out = self.plan.pop(request, None)
        result = carry_out() if is_carried_out is not False else None
        if is_carried_out is not None:
            raise EOFError
        return result

    def create(self, path: str, mode: int) -> Any:
        disk = self

        class File(BytesIO):
            def set_pipelined(self, value: bool) -> None:
                pass

            def write(self, data: Any) -> int:
                disk._requested("write", lambda: None)
                disk.files[path] += bytes(data)
                return len(data)

        self._requested("create", lambda: self.files.__setitem__(path, b""))
        return File()

    def open(self, path: str, mode: str) -> Any:
        raise AssertionError("an upload reads nothing")

    def lstat(self, path: str) -> Any:
        if path not in self.files:
            raise FileNotFoundError(path)
        return os.stat_result((0o100600, 0, 0, 0, 0, 0, len(self.files[path]), 0, 0, 0))

    def posix_rename(self, old: str, new: str) -> None:
        self._requested("rename", lambda: self.files.__setitem__(new, self.files.pop(old)))

    def remove(self, path: str) -> None:
        del self.files[path]


@pytest.mark.parametrize(
    "request_, is_carried_out, copies",
    [("rename", True, 1), ("rename", False, 1), ("write", False, 2), ("create", True, 2)],
)
def test_a_lost_answer_is_looked_up_and_not_guessed(
    tmp_path: Path, request_: str, is_carried_out: bool, copies: int
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"new content")
    disk = Disk({"/there": b"older"}, plan={request_: is_carried_out})
    upload = Upload(source, "/there", 0o600, where="n01: /there")
    with pytest.raises(EOFError):
        upload.attempt(disk)
    upload.attempt(disk)
    assert disk.files == {"/there": b"new content"}
    assert disk.requests.count("create") == copies
    assert disk.requests.count("rename") == 1 + (request_ == "rename" and not is_carried_out)


def test_an_incomplete_upload_replaces_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"new content")

    class Full(Disk):
        def lstat(self, path: str) -> Any:
            found = super().lstat(path)
            return os.stat_result((*found[:6], found.st_size - 1, *found[7:10]))

    disk = Full({"/there": b"older"})
    with pytest.raises(IntegrityError, match="n01: /there: 11 bytes sent, 10 arrived"):
        Upload(source, "/there", 0o600, where="n01: /there").attempt(disk)
    assert disk.files["/there"] == b"older"


# Servers that hang up, and servers that say nothing


@pytest.mark.parametrize("retries", [0, 2])
def test_a_connection_that_is_dropped_is_tried_again_as_often_as_agreed(
    tmp_path: Path, user_key: KeyPair, retries: int
) -> None:
    with running_stand_in(make_key(tmp_path / "host"), authorized=user_key, drop_first=2) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key, ssh=f"retries = {retries}")
        failures = say_hello_to_all(inventory)
        assert server.connections == retries + 1
    if retries == 0:
        assert "hung up during the handshake" in failures["n01"]
    else:
        assert failures == {}


def test_a_refused_key_is_not_tried_again(tmp_path: Path, user_key: KeyPair) -> None:
    with running_stand_in(make_key(tmp_path / "host")) as server:
        inventory = inventory_of(
            tmp_path, {"n01": server}, user_key, ssh="retries = 5", known=False
        )
        assert "inventory trust n01" in say_hello_to_all(inventory)["n01"]
        assert server.connections == 1


@dataclass
class Silent:
    """A server that accepts connections and sends nothing.

    Attributes:
        most: maximum number of simultaneous connections.
    """

    port: int
    host_key: KeyPair
    address: str = "127.0.0.1"
    taken: int = 0
    now: int = 0
    most: int = 0

    known_hosts_line = ""


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Silent]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = Silent(listener.getsockname()[1], make_key(tmp_path / "silent"))
    lock = threading.Lock()

    def hold(connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(4096):
                    pass
            except OSError:
                pass
        with lock:
            server.now -= 1

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with lock:
                server.taken += 1
                server.now += 1
                server.most = max(server.most, server.now)
            threading.Thread(target=hold, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield server
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_only_so_many_connections_are_made_at_once(
    tmp_path: Path, user_key: KeyPair, silent: Silent
) -> None:
    hosts = {f"n{number:02}": silent for number in range(8)}
    inventory = inventory_of(
        tmp_path, hosts, user_key, ssh="connect_timeout = '1s'\nretries = 0\nforks = 3"
    )
    failures = say_hello_to_all(inventory)
    assert len(failures) == 8
    assert silent.taken == 8
    # One that was given up may be seen to end after the next one came.
    assert 1 < silent.most <= 2 * 3


@pytest.mark.skipif(SSHD is None, reason=NO_SSHD)
def test_a_gateway_is_not_flooded(tmp_path: Path, user_key: KeyPair, silent: Silent) -> None:
    hosts = {f"n{number:02}": silent for number in range(3)}
    with running_sshd(tmp_path / "gw", authorized=[user_key]) as gateway:
        inventory = inventory_of(
            tmp_path,
            hosts,
            user_key,
            gateways={"gw": gateway},
            jumps=dict.fromkeys(hosts, "gw"),
            ssh='connect_timeout = "5s"\nretries = 0\nforks = 8\nforks_per_gateway = 1',
        )
        assert len(say_hello_to_all(inventory)) == 3
        assert gateway.log.count("Accepted publickey") == 1
    assert silent.taken == 3
    assert 1 <= silent.most <= 2


def test_a_dead_gateway_is_waited_for_once_not_once_per_host(
    tmp_path: Path, user_key: KeyPair, silent: Silent
) -> None:
    hosts = {f"n{number:02}": silent for number in range(6)}
    inventory = inventory_of(
        tmp_path,
        hosts,
        user_key,
        gateways={"gw": silent},
        jumps=dict.fromkeys(hosts, "gw"),
        ssh=QUICK,
    )
    failures = say_hello_to_all(inventory)
    assert set(failures) == set(hosts)
    assert all(text.startswith("gw: ") for text in failures.values())
    assert silent.taken == 1


def test_ctrl_c_waits_for_no_silent_server(
    tmp_path: Path, user_key: KeyPair, silent: Silent
) -> None:
    path = write_inventory(tmp_path, {"n01": silent}, user_key, ssh='connect_timeout = "10min"')
    process = subprocess.Popen(
        [sys.executable, "-m", "pubsubctl", "-i", path, "inventory", "trust", "-n", "n01"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path)},
        stderr=subprocess.PIPE,
    )
    try:
        while silent.now == 0:
            assert process.poll() is None
            threading.Event().wait(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert said.endswith(b"error: interrupted\n")


# Errors and cancellation come out as they are


def test_an_error_in_the_block_is_not_wrapped_and_ends_the_connections(
    tmp_path: Path, user_key: KeyPair
) -> None:
    with running_stand_in(make_key(tmp_path / "host"), authorized=user_key) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)

        async def main() -> None:
            async with SshConnections(inventory) as connections:
                await connections.run(inventory.hosts[0], ["true"])
                raise LookupError("of the caller")

        with pytest.raises(LookupError, match="of the caller"):
            trio.run(main)


def test_cancelling_everything_from_outside_is_quiet(
    tmp_path: Path, user_key: KeyPair, silent: Silent
) -> None:
    inventory = inventory_of(tmp_path, {"n01": silent}, user_key)

    async def main() -> None:
        with trio.move_on_after(0.2) as scope:
            async with SshConnections(inventory) as connections:
                await connections.run(inventory.hosts[0], ["true"])
        assert scope.cancelled_caught

    trio.run(main)


def test_connections_can_be_used_in_one_run_after_the_other(
    tmp_path: Path, user_key: KeyPair
) -> None:
    with running_stand_in(make_key(tmp_path / "host"), authorized=user_key) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)
        connections = SshConnections(inventory)

        async def main() -> None:
            async with connections:
                assert (await connections.run(inventory.hosts[0], ["true"])).status == 0

        for _ in range(2):
            trio.run(main)
        assert server.connections == 2


def test_a_key_that_is_trusted_during_the_connection_counts_at_once(
    tmp_path: Path, user_key: KeyPair
) -> None:
    with running_stand_in(make_key(tmp_path / "host"), authorized=user_key) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key, known=False)
        host = inventory.hosts[0]

        async def main() -> None:
            async with SshConnections(inventory) as connections:
                with pytest.raises(UnknownHostKey):
                    await connections.run(host, ["true"])
                connections.trust(host, await connections.host_key(host))
                assert (await connections.run(host, ["true"])).status == 0

        trio.run(main)


@pytest.mark.skipif(SSHD is None, reason=NO_SSHD)
def test_a_stream_keeps_the_rules_of_trio(tmp_path: Path, user_key: KeyPair) -> None:
    with running_sshd(tmp_path / "sshd", authorized=[user_key]) as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)

        async def closed_meanwhile(stream: trio.abc.Stream) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()

        async def main() -> None:
            async with (
                SshConnections(inventory) as connections,
                connections.open(inventory.hosts[0], ["cat"]) as stream,
            ):
                await stream.send_all(b"abcdef")
                assert await stream.receive_some(2) == b"ab"
                assert await stream.receive_some(100) == b"cdef"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(closed_meanwhile, stream)
                    await trio.testing.wait_all_tasks_blocked()
                    with pytest.raises(trio.BusyResourceError):
                        await stream.receive_some()
                    await stream.aclose()
                with pytest.raises(trio.ClosedResourceError):
                    await stream.send_all(b"more")
                with pytest.raises(trio.ClosedResourceError):
                    await stream.send_eof()
                await stream.aclose()

        trio.run(main)
