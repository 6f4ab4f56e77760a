"""Stories about control sockets: access, replies, and bad input."""

import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
import trio.testing

from brokerd.errors import ConfigError, ControlError
from brokerd.runtime import control, control_socket
from brokerd.runtime.control import ControlServer, serve_control
from brokerd.runtime.control_socket import open_control
from brokerd.wire.control import Answer, EventNotice, Refusal, Request, encode_control
from tests.helpers.connections import many_connections
from tests.helpers.descriptors import no_free_descriptors
from tests.helpers.patience import PATIENCE_S


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a private folder with a path short enough for a socket."""
    with TemporaryDirectory(prefix="ctl-") as name:
        yield Path(name)


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run a story, and fail if the story hangs."""

    async def bounded() -> None:
        with trio.fail_after(PATIENCE_S):
            await story()

    trio.run(bounded)


async def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


@asynccontextmanager
async def serving(path: Path, **handlers: control.Handler):
    async with trio.open_nursery() as nursery:
        server: ControlServer = await nursery.start(serve_control, path, {"echo": echo, **handlers})
        yield server
        nursery.cancel_scope.cancel()


def test_values_of_every_allowed_kind_survive_a_round_trip(folder: Path) -> None:
    values = {
        "none": None,
        "yes": True,
        "small": -1,
        "large": 2**63,
        "float": 0.1,
        "text": "δ ≤ 3\n",
        "bytes": b"\x00\xff",
        "list": [1, [2, {"deep": []}]],
        "map": {"": {}},
    }

    async def story() -> None:
        async with serving(folder / "s"), open_control(folder / "s") as client:
            assert await client.request("echo", **values) == values

    run(story)


def test_answers_find_their_requests_whatever_their_order(folder: Path) -> None:
    async def story() -> None:
        gates = {name: trio.Event() for name in "ab"}

        async def wait(arguments: dict[str, Any]) -> dict[str, Any]:
            await gates[arguments["gate"]].wait()
            return {"passed": arguments["gate"]}

        order: list[str] = []
        async with serving(folder / "s", wait=wait), open_control(folder / "s") as client:

            async def ask(gate: str) -> None:
                order.append((await client.request("wait", gate=gate))["passed"])
                gates["a"].set()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, "a")
                nursery.start_soon(ask, "b")
                gates["b"].set()
        assert order == ["b", "a"]

    run(story)


def test_an_unknown_command_is_refused_with_the_nearest_name(folder: Path) -> None:
    async def story() -> None:
        async with serving(folder / "s"), open_control(folder / "s") as client:
            with pytest.raises(ControlError, match="did you mean 'echo'") as caught:
                await client.request("ecco")
            assert caught.value.kind == "user"

    run(story)


def test_a_failing_handler_is_an_internal_error_and_the_server_lives_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError("too round")

    async def refuse(_: dict[str, Any]) -> dict[str, Any]:
        raise ConfigError("x.toml: speed = 0")

    async def unspeakable(_: dict[str, Any]) -> dict[str, Any]:
        return {"set": {1, 2}}

    async def story() -> None:
        handlers = {"fail": fail, "refuse": refuse, "unspeakable": unspeakable}
        async with serving(folder / "s", **handlers), open_control(folder / "s") as client:
            with pytest.raises(ControlError, match="ZeroDivisionError: too round") as caught:
                await client.request("fail")
            assert caught.value.kind == "internal"
            with pytest.raises(ControlError, match="speed = 0") as caught:
                await client.request("refuse")
            assert caught.value.kind == "user"
            with pytest.raises(ControlError, match="set is not allowed") as caught:
                await client.request("unspeakable")
            assert caught.value.kind == "internal"
            assert await client.request("echo", still="here") == {"still": "here"}

    run(story)
    assert "ZeroDivisionError" in caplog.text, "the traceback belongs into the log"


def test_only_listeners_receive_events_and_receive_all_in_order(folder: Path) -> None:
    async def story() -> None:
        async with (
            serving(folder / "s") as server,
            open_control(folder / "s") as deaf,
            open_control(folder / "s") as client,
        ):
            server.publish_event("too early", {})
            events = await client.listen()
            for number in range(5):
                server.publish_event("tick", {"n": number})
            for number in range(5):
                assert await events.receive() == ("tick", {"n": number})
            await deaf.request("echo")
            with pytest.raises(trio.WouldBlock):
                deaf.events.receive_nowait()

    run(story)


def test_a_listener_that_does_not_read_is_dropped_without_delay_to_others(folder: Path) -> None:
    async def story() -> None:
        async with serving(folder / "s") as server, open_control(folder / "s") as other:
            stream = await trio.open_unix_socket(folder / "s")
            async with stream:
                await stream.send_all(encode_control(Request(1, "events", {})))
                await stream.receive_some(1)  # its answer has begun: it listens
                block = "x" * 100_000
                for _ in range(control.EVENT_BUFFER + 10):
                    server.publish_event("block", {"x": block})
                assert await other.request("echo", a=1) == {"a": 1}
                while await stream.receive_some(1 << 20):
                    pass

    run(story)


def test_a_started_request_finishes_after_its_client_disconnects(folder: Path) -> None:
    async def story() -> None:
        begun, go_on, finished = trio.Event(), trio.Event(), trio.Event()

        async def act(_: dict[str, Any]) -> dict[str, Any]:
            begun.set()
            await go_on.wait()
            finished.set()
            return {}

        async with serving(folder / "s", act=act):
            stream = await trio.open_unix_socket(folder / "s")
            await stream.send_all(encode_control(Request(1, "act", {})))
            await begun.wait()
            await stream.aclose()
            async with open_control(folder / "s") as other:
                await other.request("echo")  # a round trip: the server has seen it go
            go_on.set()
            await finished.wait()

    run(story)


def test_a_request_fails_as_undecided_if_its_server_dies(folder: Path) -> None:
    async def story() -> None:
        async with trio.open_nursery() as nursery:
            begun = trio.Event()

            async def hang(_: dict[str, Any]) -> dict[str, Any]:
                begun.set()
                await trio.sleep_forever()
                raise AssertionError

            async def serve(task_status: Any) -> None:
                with trio.CancelScope() as scope:
                    async with serving(folder / "s", hang=hang):
                        task_status.started(scope)
                        await trio.sleep_forever()

            scope = await nursery.start(serve)

            async def kill() -> None:
                await begun.wait()
                scope.cancel()

            async with open_control(folder / "s") as client:
                nursery.start_soon(kill)
                with pytest.raises(ControlError, match="during hang") as caught:
                    await client.request("hang")
                assert caught.value.kind == "closed"
                with pytest.raises(ControlError) as caught:
                    await client.request("echo")
                assert caught.value.kind == "closed"
        assert not (folder / "s").exists()

    run(story)


def test_a_cancelled_request_does_not_disturb_the_next_request(folder: Path) -> None:
    async def story() -> None:
        gate = trio.Event()

        async def slow(_: dict[str, Any]) -> dict[str, Any]:
            await gate.wait()
            return {"late": True}

        async with serving(folder / "s", slow=slow), open_control(folder / "s") as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.request, "slow")
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            gate.set()
            assert await client.request("echo", n=2) == {"n": 2}

    run(story)


def test_a_client_asks_no_more_at_once_than_a_server_takes(folder: Path) -> None:
    async def story() -> None:
        served: list[int] = []
        all_there, gate = trio.Event(), trio.Event()

        async def slow(_: dict[str, Any]) -> dict[str, Any]:
            served.append(len(served))
            if len(served) == control.MAXIMUM_REQUESTS:
                all_there.set()
            await gate.wait()
            return {}

        async with (
            serving(folder / "s", slow=slow),
            open_control(folder / "s") as client,
            trio.open_nursery() as nursery,
        ):
            for _ in range(control.MAXIMUM_REQUESTS + 20):
                nursery.start_soon(client.request, "slow")
            await all_there.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert len(served) == control.MAXIMUM_REQUESTS
            gate.set()
        assert len(served) == control.MAXIMUM_REQUESTS + 20

    run(story)


def test_a_request_above_the_concurrency_limit_is_refused_as_busy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "REQUESTS_AT_ONCE", control.MAXIMUM_REQUESTS + 1)

    async def story() -> None:
        gate = trio.Event()

        async def slow(_: dict[str, Any]) -> dict[str, Any]:
            await gate.wait()
            return {}

        refused: list[str] = []
        async with serving(folder / "s", slow=slow), open_control(folder / "s") as client:

            async def ask() -> None:
                try:
                    await client.request("slow")
                except ControlError as error:
                    refused.append(error.kind)
                    gate.set()

            async with trio.open_nursery() as nursery:
                for _ in range(control.MAXIMUM_REQUESTS + 1):
                    nursery.start_soon(ask)
        assert refused == ["busy"]

    run(story)


def test_an_error_inside_a_connection_is_raised_unchanged(folder: Path) -> None:
    async def story() -> None:
        async with serving(folder / "s"):
            with pytest.raises(KeyError):
                async with open_control(folder / "s"):
                    raise KeyError("mine")

    run(story)


def test_a_stream_serves_as_well_as_a_socket() -> None:
    """`attach` can carry a control connection over standard input and output."""

    async def story() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        server = ControlServer({"echo": echo})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve_stream, theirs)
            async with open_control(ours) as client:
                assert await client.request("echo", a=[1]) == {"a": [1]}

    run(story)


def test_an_end_does_not_wait_for_a_listener_that_has_left() -> None:
    """The listener leaves with events that it has not read."""

    async def story() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        server = ControlServer({"echo": echo})
        theirs.send_stream.send_all_hook = trio.sleep_forever
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve_stream, theirs)
            await ours.send_all(encode_control(Request(1, "events", {})))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(server.wait_answered)
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()

    run(story)


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize("checkpoints", range(12))
def test_an_end_waits_until_all_answers_are_written(checkpoints: int) -> None:
    """The server ends at any moment after a request; trio runs ready tasks in either order."""

    async def story() -> None:
        for _ in range(8):
            ours, theirs = trio.testing.memory_stream_pair()
            served = trio.Event()

            async def end(arguments: dict[str, Any], served: trio.Event = served) -> dict[str, Any]:
                served.set()
                return arguments

            server = ControlServer({"echo": echo, "end": end})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve_stream, theirs)
                await ours.send_all(encode_control(Request(1, "echo", {"n": 1})))
                await ours.send_all(encode_control(Request(2, "end", {})))
                await served.wait()
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                await server.wait_answered()
                nursery.cancel_scope.cancel()
            written = b"".join([chunk async for chunk in ours])
            expected = [encode_control(Answer(1, {"n": 1})), encode_control(Answer(2, {}))]
            assert written in (b"".join(expected), b"".join(reversed(expected)))

    run(story)


def test_the_socket_is_for_its_owner_alone(folder: Path) -> None:
    path = folder / "new" / "agent.sock"

    async def story() -> None:
        async with serving(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert not path.exists()

    run(story)


def test_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    open_folder = folder / "open"
    open_folder.mkdir()
    open_folder.chmod(0o755)
    linked = folder / "linked"
    linked.symlink_to(folder)

    async def story() -> None:
        for bad, reason in ((open_folder, "mode 0755"), (linked, "not a folder")):
            with pytest.raises(ConfigError, match=reason):
                control.bind_control_socket(bad / "s")

    run(story)


def test_a_path_of_107_bytes_is_served_and_one_of_108_is_refused_at_both_ends(
    folder: Path,
) -> None:
    def path_of(length: int) -> Path:
        return folder / ("x" * (length - len(os.fsencode(folder)) - 1))

    async def story() -> None:
        async with serving(path_of(107)), open_control(path_of(107)) as client:
            assert await client.request("echo") == {}
        with pytest.raises(ConfigError, match="108 bytes; the kernel takes 107"):
            control.bind_control_socket(path_of(108))
        with pytest.raises(ConfigError, match="108 bytes"):
            async with open_control(path_of(108)):
                pass

    run(story)


def test_a_stale_socket_is_replaced_and_a_living_one_is_not(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "s"))

    async def story() -> None:
        with pytest.raises(ControlError, match="no broker answers"):
            async with open_control(folder / "s"):
                pass
        async with serving(folder / "s"), open_control(folder / "s") as client:
            with pytest.raises(ControlError, match="another process serves") as caught:
                await serve_control(folder / "s", {})
            assert caught.value.kind == "busy"
            assert await client.request("echo") == {}
            async with open_control(folder / "s") as second:
                assert await second.request("echo") == {}

    run(story)


def test_a_file_that_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "s").write_text("precious")

    async def story() -> None:
        with pytest.raises(ConfigError, match="in the way"):
            await serve_control(folder / "s", {})

    run(story)
    assert (folder / "s").read_text() == "precious"


# ---------------------------------------------------------------- hostile input


def frame(header: bytes) -> bytes:
    return struct.pack(">II", len(header) + 4, len(header)) + header


HOSTILE = {
    "a frame of 4 GiB": b"\xff\xff\xff\xff\x00\x00\x00\x05",
    "a header longer than its frame": struct.pack(">II", 10, 100) + b"x" * 100,
    "a payload": struct.pack(">II", 10, 1) + b"x" * 6,
    "an empty header": frame(b""),
    "a bare number": frame(b"\x01"),
    "an empty array": frame(b"\x80"),
    "an unknown kind": frame(b"\x82\x09\x01"),
    "true for the kind": frame(b"\x84\xf5\x01\x64echo\xa0"),
    "true for the id": frame(b"\x84\x01\xf5\x64echo\xa0"),
    "a negative id": frame(b"\x84\x01\x20\x64echo\xa0"),
    "an id beyond 63 bits": frame(b"\x84\x01\x1b\xff\xff\xff\xff\xff\xff\xff\xff\x64echo\xa0"),
    "a field too many": frame(b"\x85\x01\x01\x64echo\xa0\x00"),
    "bytes behind the value": frame(b"\x84\x01\x01\x64echo\xa0\x00"),
    "an integer key": frame(b"\x84\x01\x01\x64echo\xa1\x01\x02"),
    "a bytes key": frame(b"\x84\x01\x01\x64echo\xa1\x41a\x02"),
    "a key twice": frame(b"\x84\x01\x01\x64echo\xa2\x61a\x01\x61a\x02"),
    "not a number": frame(b"\x84\x01\x01\x64echo\xa1\x61a\xf9\x7e\x00"),
    "undefined": frame(b"\x84\x01\x01\x64echo\xa1\x61a\xf7"),
    "a big integer": frame(b"\x84\x01\x01\x64echo\xa1\x61a\xc2\x49" + b"\x01" * 9),
    "a cycle": frame(b"\xd8\x1c\x81\xd8\x1d\x00"),
    "a regular expression": frame(b"\x84\x01\x01\x64echo\xa1\x61a\xd8\x23\x61a"),
    "an unknown tag": frame(b"\x84\x01\x01\x64echo\xa1\x61a\xd9\xff\xff\x00"),
    "depth": frame(b"\x81" * 5000 + b"\x00"),
    "an indefinite array": frame(b"\x9f\x01\xff"),
    "text that is not UTF-8": frame(b"\x84\x01\x01\x62\xff\xfe\xa0"),
    "a command name without end": frame(b"\x84\x01\x01\x78\xc8" + b"e" * 200 + b"\xa0"),
    "an answer": encode_control(Answer(1, {})),
    "a refusal": encode_control(Refusal(1, "user", "no")),
    "an event": encode_control(EventNotice("boo", {})),
    "half a frame": encode_control(Request(1, "echo", {}))[:-1],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_input_ends_its_own_connection_only(
    folder: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(folder / "s"), open_control(folder / "s") as bystander:
            stream = await trio.open_unix_socket(folder / "s")
            async with stream:
                await stream.send_all(HOSTILE[name])
                await stream.send_eof()
                assert await stream.receive_some(100) == b"", "nothing is answered"
            assert await bystander.request("echo", a=1) == {"a": 1}

    run(story)
    (record,) = caplog.records
    assert "control connection closed" in record.getMessage()
    assert len(record.getMessage()) < 500


@pytest.mark.parametrize("name", [name for name in HOSTILE if not name.startswith("a")])
def test_a_hostile_server_ends_the_client_with_an_error(name: str) -> None:
    async def story() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        async with open_control(ours) as client:
            await theirs.send_all(HOSTILE[name])
            await theirs.aclose()
            with pytest.raises(ControlError) as caught:
                await client.request("echo")
            assert caught.value.kind == "closed"
            with pytest.raises(ControlError) as first:
                await client.request("echo")
        with pytest.raises(ControlError) as later:
            await client.request("echo")
        # A request that was sent before the end names itself beside the reason.
        texts = [each.value.text.removesuffix(" (during echo)") for each in (first, later)]
        assert texts[0] == texts[1], "the first reason stays"
        assert "closed by us" not in texts[1]

    run(story)


@pytest.mark.parametrize("uid, is_served", [(None, True), (0, True), (12_345, False)])
def test_no_other_user_but_root_is_served(
    uid: int | None, is_served: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file mode keeps others out; a socket that was handed on does not."""
    own = os.geteuid() if uid is None else uid
    monkeypatch.setattr(control, "peer_uid", lambda _: own)

    answers: list[Any] = []

    async def story() -> None:
        async with serving(tmp_path / "c" / "s"), open_control(tmp_path / "c" / "s") as client:
            try:
                answers.append(await client.request("echo", n=1))
            except ControlError as error:
                answers.append(error.kind)

    run(story)
    assert answers == [{"n": 1} if is_served else "closed"]


def test_a_frame_that_arrives_too_slowly_closes_its_connection(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        clock_ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ControlServer({}).serve_stream, theirs)
            await clock_ours.send_all(b"\x00")
            assert await clock_ours.receive_some(1) == b""

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert "a frame took over 10 s" in caplog.text


def test_silent_connections_leave_room_for_a_request(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "control"
        async with serving(path), open_control(path) as asking:
            await asking.request("echo")
            connect = partial(trio.open_unix_socket, str(path))
            async with many_connections(2 * control.MAXIMUM_CONNECTIONS, connect) as silent:
                async with open_control(path) as client:
                    assert await client.request("echo", n=1) == {"n": 1}
                assert await asking.request("echo", n=2) == {"n": 2}
                assert await silent[0].receive_some(1) == b"", "the oldest is closed"

    run(story)


def test_a_connection_that_has_sent_a_request_is_not_closed_for_another(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "control"
        async with serving(path), AsyncExitStack() as stack:
            clients = []
            for number in range(control.MAXIMUM_CONNECTIONS):
                client = await stack.enter_async_context(open_control(path))
                assert await client.request("echo", n=number) == {"n": number}
                clients.append(client)
            async with open_control(path) as one_too_many:
                with pytest.raises(ControlError):
                    await one_too_many.request("echo")
            for number, client in enumerate(clients):
                assert await client.request("echo", n=number) == {"n": number}

    run(story)


def test_a_client_without_a_free_descriptor_is_refused_and_may_ask_again(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "control"
        async with serving(path):
            with no_free_descriptors():
                with pytest.raises(ControlError, match="not reached") as caught:
                    async with open_control(path):
                        pass
                assert caught.value.kind == "closed"
            async with open_control(path) as client:
                assert await client.request("echo", n=1) == {"n": 1}

    run(story)
