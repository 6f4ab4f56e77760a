"""Stories about hosts over SSH: real sshd on loopback, commands, streams, files, dropped lines."""

import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
import trio
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_EOF

from pubsubctl.deployment.client_access import ClientAccess
from pubsubctl.errors import HostError, Unreachable, UserError
from pubsubctl.hosts.ssh.connections import CommandOutcome, SshConnections
from pubsubctl.hosts.ssh.errors import ConnectionFailed, ConnectionLost, LoginRefused
from pubsubctl.inventory.inventory import Host
from tests.helpers.certificates import Certificates
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ssh_inventory import inventory_of
from tests.helpers.ssh_server import NO_SSHD, SSHD, KeyPair, Sshd, make_key, running_sshd

pytestmark = pytest.mark.skipif(SSHD is None, reason=NO_SSHD)

Story = Callable[[SshConnections, Host], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the SSH agent of the user."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(scope="module")
def user_key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return make_key(tmp_path_factory.mktemp("user") / "id_test")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, user_key: KeyPair) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd"), authorized=[user_key]) as running:
        yield running


@pytest.fixture
def tell(tmp_path: Path, server: Sshd, user_key: KeyPair) -> Callable[..., None]:
    """Return a function that runs a story with connections to one host."""

    def run(story: Story, **settings: str) -> None:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key, **settings)

        async def main() -> None:
            with trio.fail_after(PATIENCE_S):
                async with SshConnections(inventory) as connections:
                    await story(connections, inventory.hosts[0])

        trio.run(main)

    return run


Tell = Callable[..., None]


def test_a_command_receives_arguments_and_input_and_returns_status_and_outputs(tell: Tell) -> None:
    words = ["it's", "$(touch PWNED)", "", "a b", "--", "-n", "ü\n"]

    async def story(connections: SshConnections, host: Host) -> None:
        script = 'printf "%s|" "$@"; cat; echo wrong >&2; exit 7'
        done = await connections.run(host, ["sh", "-c", script, "sh", *words], stdin=b"input")
        assert done == CommandOutcome(7, ("|".join(words) + "|input").encode(), b"wrong\n")

    tell(story)


def test_one_connection_serves_all_commands(tell: Tell, server: Sshd) -> None:
    before = server.log.count("Accepted publickey")

    async def story(connections: SshConnections, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(12):  # more than sshd opens sessions at once
                nursery.start_soon(connections.run, host, ["true"])

    tell(story)
    assert server.log.count("Accepted publickey") == before + 1


def test_a_command_that_does_not_end_is_left_after_its_time(tell: Tell) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        with pytest.raises(HostError, match=r"n01: `sh` did not end within 0\.5 s: still here"):
            await connections.run(
                host, ["sh", "-c", "echo still here >&2; sleep 600"], timeout_s=0.5
            )
        assert (await connections.run(host, ["echo", "next"])).stdout == b"next\n"

    tell(story)


def test_a_stream_carries_bytes_both_ways_until_its_input_ends(tell: Tell) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        block = os.urandom(3 << 20)
        received = bytearray()
        async with connections.open(host, ["cat"]) as stream, trio.open_nursery() as nursery:

            async def send() -> None:
                await stream.send_all(block)
                await stream.send_eof()

            nursery.start_soon(send)
            while data := await stream.receive_some():
                received += data
        assert received == block

    tell(story)


def test_nothing_is_lost_when_a_receive_is_cancelled(tell: Tell) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        script = 'for i in $(seq 500); do echo "$i"; done'
        received = bytearray()
        async with connections.open(host, ["sh", "-c", script]) as stream:
            while data := await stream.receive_some(30):
                received += data
                with trio.move_on_after(0.0003):  # often too short
                    received += await stream.receive_some(30)
        assert received.split() == [b"%d" % number for number in range(1, 501)]

    tell(story)


def test_a_failed_command_breaks_its_stream_and_reports_its_last_output(tell: Tell) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        with pytest.raises(HostError, match="n01: `sh` ended with status 4: no such root"):
            async with connections.open(
                host, ["sh", "-c", "echo no such root >&2; exit 4"]
            ) as stream:
                await stream.receive_some()

    tell(story)


def test_leaving_the_block_ends_the_command(tell: Tell, tmp_path: Path) -> None:
    mark = tmp_path / "ended"

    async def story(connections: SshConnections, host: Host) -> None:
        script = f"echo ready; cat; touch {mark}"
        async with connections.open(host, ["sh", "-c", script]) as stream:
            assert await stream.receive_some() == b"ready\n"
        while not mark.exists():
            await trio.sleep(0.01)

    tell(story)


def test_a_cut_connection_raises_an_error_in_waiting_tasks(tell: Tell, server: Sshd) -> None:
    async def cut(connections: SshConnections, host: Host) -> None:
        async with connections.open(host, ["cat"]) as stream:
            await stream.send_all(b"x")
            await stream.receive_some()
            for pid in server.session_pids():
                os.kill(pid, signal.SIGKILL)
            await stream.receive_some()

    async def story(connections: SshConnections, host: Host) -> None:
        with pytest.raises(ConnectionLost, match="n01: connection lost during `cat`"):
            await cut(connections, host)
        assert (await connections.run(host, ["echo", "again"])).stdout == b"again\n"

    tell(story)


def test_a_command_that_a_signal_ended_is_not_a_lost_connection(tell: Tell) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        done = await connections.run(host, ["sh", "-c", "echo before; kill -9 $$"])
        assert (done.status, done.stdout) in {(-1, b"before\n"), (137, b"before\n")}

    tell(story)


def test_a_command_with_a_cut_connection_has_no_status(tell: Tell, server: Sshd) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        for _ in range(5):
            with pytest.raises(ConnectionLost):
                await connections.run(host, ["sh", "-c", 'echo x; kill -9 "$PPID"'])

    tell(story)


def test_a_host_that_falls_silent_is_noticed(tell: Tell, server: Sshd) -> None:
    frozen: list[int] = []

    async def freeze(connections: SshConnections, host: Host) -> None:
        async with connections.open(host, ["cat"]) as stream:
            await stream.send_all(b"x")
            await stream.receive_some()
            frozen.extend(server.session_pids())
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            await stream.receive_some()

    async def story(connections: SshConnections, host: Host) -> None:
        with pytest.raises(ConnectionLost, match="no sign of life for"):
            await freeze(connections, host)

    try:
        tell(story, ssh='keepalive = "500ms"')
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGKILL)


def test_cancelling_waits_for_no_thread(tell: Tell) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        async with connections.open(host, ["sleep", "600"]) as stream:
            with trio.move_on_after(0.2) as scope:
                await stream.send_all(bytes(64 << 20))  # nobody reads: the window fills up
            assert scope.cancelled_caught
        assert (await connections.run(host, ["true"])).status == 0

    tell(story)


def test_files_go_there_and_back(tell: Tell, tmp_path: Path) -> None:
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "back"
    source.write_bytes(os.urandom(9 << 20) + b"odd")
    there.write_text("an older one")

    async def story(connections: SshConnections, host: Host) -> None:
        await connections.put(host, source, str(there), mode=0o640)
        await connections.get(host, str(there), back)

    tell(story)
    assert back.read_bytes() == there.read_bytes() == source.read_bytes()
    assert there.stat().st_mode & 0o777 == 0o640
    assert back.stat().st_mode & 0o777 == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_a_partial_copy_is_resumed(tell: Tell, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(b"new" * 1000)
    found = there.stat()
    partial = tmp_path / f".back.{found.st_size:x}-{int(found.st_mtime):x}.part"
    partial.write_bytes(b"OLD" * 100)
    (tmp_path / ".back.1-1.part").write_bytes(b"of another version")

    async def story(connections: SshConnections, host: Host) -> None:
        await connections.get(host, str(there), back)

    tell(story)
    assert back.read_bytes() == b"OLD" * 100 + b"new" * 900, "only the rest was fetched"
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "large", "missing"])
def test_only_regular_files_of_the_agreed_size_are_fetched(
    tell: Tell, tmp_path: Path, kind: str
) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    match kind:
        case "link":
            there.symlink_to("/etc/passwd")
        case "fifo":
            os.mkfifo(there)
        case "folder":
            there.mkdir()
        case "large":
            there.write_bytes(bytes(1001))
    reasons = {"large": "1001 bytes; at most 1000", "missing": "no such file"}

    async def story(connections: SshConnections, host: Host) -> None:
        with pytest.raises(HostError, match=reasons.get(kind, "not a regular file")):
            await connections.get(host, str(there), back, most_bytes=1000)

    tell(story)
    assert not back.exists()


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a\nb", "/a\0b", "~/", "/", "~root/x"])
def test_paths_that_could_mean_something_else_are_refused(tell: Tell, path: str) -> None:
    async def story(connections: SshConnections, host: Host) -> None:
        with pytest.raises(UserError):
            await connections.get(host, path, Path("nowhere"))
        with pytest.raises(UserError):
            await connections.put(host, Path(__file__), path)

    tell(story)


def test_ways_through_gateways_nest_and_each_gateway_has_one_connection(
    tmp_path: Path, server: Sshd, user_key: KeyPair
) -> None:
    with (
        running_sshd(tmp_path / "outer", authorized=[user_key]) as outer,
        running_sshd(tmp_path / "inner", authorized=[user_key]) as inner,
    ):
        inventory = inventory_of(
            tmp_path,
            {"n01": server, "n02": server, "n03": server},
            user_key,
            gateways={"gw1": outer, "gw2": inner},
            jumps={"n01": "gw1,gw2", "n02": "gw1,gw2", "n03": "none"},
        )

        async def main() -> None:
            async with SshConnections(inventory) as connections:
                async with trio.open_nursery() as nursery:
                    for host in inventory.hosts:
                        nursery.start_soon(connections.run, host, ["true"])
                script = 'echo "${SSH_CONNECTION%% *}"'
                done = await connections.run(inventory.hosts[0], ["sh", "-c", script])
                assert done.stdout == b"127.0.0.1\n"

        trio.run(main)
        assert outer.log.count("Accepted publickey") == 1
        assert inner.log.count("Accepted publickey") == 1


def test_a_client_reaches_a_broker_behind_a_gateway(tmp_path: Path) -> None:
    key, certificates = make_key(tmp_path / "id"), Certificates(tmp_path)
    broker = certificates.credentials("broker", "b0")
    closed = "127.0.0.1:1"

    async def answer(stream: trio.SocketStream) -> None:
        secured = await broker.welcome(stream)
        await secured.send_all(await secured.receive_some())
        await secured.aclose()

    async def main(gateway: Sshd) -> None:
        inventory = inventory_of(
            tmp_path, {"n01": gateway}, key, gateways={"gw": gateway}, jumps={"n01": "gw"}
        )
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        protocol: Any = None
        access = ClientAccess(
            "d", protocol, inventory, {"b0": address}, {address: "n01", closed: "n01"}
        )
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, answer, listeners)
                async with access.dialling(certificates.files("client", "c")) as dial:
                    assert dial is not None
                    async with await dial(address) as stream:
                        await stream.send_all(b"hello")
                        assert await stream.receive_some() == b"hello"
                        assert await stream.receive_some() == b""
                    with pytest.raises(ConnectionError, match="n01: through gw: no conn"):
                        await dial(closed)
                nursery.cancel_scope.cancel()

    with running_sshd(tmp_path / "sshd", authorized=[key]) as gateway:
        trio.run(main, gateway)


def test_a_gateway_that_may_not_forward_is_named(
    tmp_path: Path, server: Sshd, user_key: KeyPair
) -> None:
    with running_sshd(
        tmp_path / "gw", authorized=[user_key], lines=["AllowTcpForwarding no"]
    ) as gateway:
        inventory = inventory_of(
            tmp_path, {"n01": server}, user_key, gateways={"gw": gateway}, jumps={"n01": "gw"}
        )

        async def main() -> None:
            async with SshConnections(inventory) as connections:
                with pytest.raises(ConnectionFailed, match="gateway gw: it may not be used as one"):
                    await connections.run(inventory.hosts[0], ["true"])

        trio.run(main)


def test_ipv6_is_spoken(tmp_path: Path, user_key: KeyPair) -> None:
    with running_sshd(tmp_path / "six", authorized=[user_key], address="::1") as server:
        inventory = inventory_of(tmp_path, {"n01": server}, user_key)

        async def main() -> None:
            async with SshConnections(inventory) as connections:
                assert (await connections.run(inventory.hosts[0], ["true"])).status == 0

        trio.run(main)


def test_a_refused_connection_is_reported_with_its_address(
    tmp_path: Path, server: Sshd, user_key: KeyPair
) -> None:
    gone = Sshd(1, server.host_key, server.folder, server.process)
    inventory = inventory_of(tmp_path, {"n01": gone}, user_key)

    async def main() -> None:
        async with SshConnections(inventory) as connections:
            with pytest.raises(Unreachable, match=r"n01: 127\.0\.0\.1:1: connection refused"):
                await connections.run(inventory.hosts[0], ["true"])

    trio.run(main)


def test_a_key_that_is_not_authorized_is_refused_with_a_remedy(
    tmp_path: Path, server: Sshd
) -> None:
    stranger = make_key(tmp_path / "id_stranger")
    inventory = inventory_of(tmp_path, {"n01": server}, stranger)

    async def main() -> None:
        async with SshConnections(inventory) as connections:
            with pytest.raises(LoginRefused, match="authorized_keys"):
                await connections.run(inventory.hosts[0], ["true"])

    trio.run(main)


def test_a_locked_key_is_left_to_the_agent(tmp_path: Path, server: Sshd) -> None:
    locked = make_key(tmp_path / "id_locked", passphrase="correct horse")
    inventory = inventory_of(tmp_path, {"n01": server}, locked)

    async def main() -> None:
        async with SshConnections(inventory) as connections:
            with pytest.raises(UserError, match=r"locked by a passphrase .* ssh-add"):
                await connections.run(inventory.hosts[0], ["true"])

    trio.run(main)


def test_a_missing_key_file_is_reported_with_its_inventory_line(
    tmp_path: Path, server: Sshd
) -> None:
    gone = make_key(tmp_path / "id_gone")
    gone.private.unlink()
    inventory = inventory_of(tmp_path, {"n01": server}, gone)
    said = rf"^{inventory.path}:\d+: identity = '{tmp_path}/id_gone' of n01: no such file"

    async def main() -> None:
        async with SshConnections(inventory) as connections:
            with pytest.raises(UserError, match=said):
                await connections.run(inventory.hosts[0], ["true"])

    trio.run(main)


def test_a_channel_is_not_closed_while_its_end_of_input_is_being_sent(
    tell: Tell, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSH ends a whole connection on a message for a closed channel."""
    before = server.log.count("Accepted publickey")
    closed = threading.Event()
    send = paramiko.Transport._send_user_message  # type: ignore[attr-defined]

    def hold_back_end_of_input(transport: paramiko.Transport, data: paramiko.Message) -> None:
        kind = data.asbytes()[0]
        if kind == MSG_CHANNEL_EOF:
            closed.wait(0.5)  # `true` has ended long before
        send(transport, data)
        if kind == MSG_CHANNEL_CLOSE:
            closed.set()

    monkeypatch.setattr(paramiko.Transport, "_send_user_message", hold_back_end_of_input)

    async def story(connections: SshConnections, host: Host) -> None:
        assert (await connections.run(host, ["true"])).status == 0
        assert (await connections.run(host, ["true"])).status == 0

    tell(story)
    assert "nonexistent channel" not in server.log
    assert server.log.count("Accepted publickey") == before + 1
