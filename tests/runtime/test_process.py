"""Tests of brokers as processes on this machine: manual start, commands, kills and conflicts."""

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.client.client import connect
from brokerd.errors import ConfigError, ControlError
from brokerd.protocols.interface import CoreStatus
from brokerd.runtime.control_socket import ControlClient, open_control
from brokerd.runtime.process import run_broker
from tests.helpers.certificates import Certificates
from tests.helpers.descriptors import no_free_descriptors
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import free_address
from tests.helpers.small_disk import fill_disk, mounted_disk
from tests.helpers.warm_image import start_program

pytestmark = pytest.mark.end_to_end

NAMES = ("b0", "b1", "b2")
Configure = Callable[..., Path]


@pytest.fixture
def configure(tmp_path_factory: pytest.TempPathFactory) -> Configure:
    """Return a writer of configuration files for a chain of three brokers in one lab."""
    lab = tmp_path_factory.mktemp("lab")
    topology = lab / "topology.toml"
    topology.write_text(
        'schema = "pubsubctl/topology/2"\nname = "chain"\nkind = "tree"\n'
        f"brokers = {json.dumps(NAMES)}\n"
        'links = [["b0", "b1"], ["b1", "b2"]]\n'
    )
    addresses = {name: free_address() for name in NAMES}

    def write(name: str, **changes: Any) -> Path:
        folder = lab / name
        folder.mkdir(mode=0o700, exist_ok=True)
        values = {
            "broker": name,
            "topology_file": str(topology),
            "protocol": "delta_tree",
            "deployment_id": "d1",
            "listen": addresses[name],
            "state_folder": str(folder / "state"),
            "control_socket": str(folder / "control"),
            "log_folder": str(folder / "log"),
            **changes,
        }
        tables = {key: values.pop(key) for key in ("tls",) if key in values}
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        lines += ["[addresses]", *(f'{key} = "{value}"' for key, value in addresses.items())]
        for name, table in tables.items():
            lines += [f"[{name}]"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        (folder / "broker.toml").write_text("\n".join(lines) + "\n")
        return folder

    return write


Start = Callable[[Path], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Yield a function that starts brokers; kill the remaining ones after the test."""
    processes: list[subprocess.Popen[str]] = []

    def run(folder: Path) -> subprocess.Popen[str]:
        process = start_program(
            [sys.executable, "-m", "brokerd", "--config", str(folder / "broker.toml")],
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


async def ask(folder: Path, command: str, /, **arguments: Any) -> dict[str, Any]:
    async with open_control(folder / "control") as control:
        return await control.request(command, **arguments)


def is_ready(status: dict[str, Any]) -> bool:
    core = CoreStatus.from_mapping(status)
    return bool(core.state == "running" and not core.missing and status["probed"])


async def wait_until_up(folder: Path) -> dict[str, Any]:
    """Wait for a reply of the broker; return its status."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                return await ask(folder, "status")
            except ControlError:
                await trio.sleep(0.02)


async def wait_until_ready(*folders: Path) -> None:
    """Wait until every broker has all of its sessions, and has probed the other peers."""
    with trio.fail_after(PATIENCE_S):
        for folder in folders:
            status = await wait_until_up(folder)
            while not is_ready(status):
                await trio.sleep(0.02)
                status = await ask(folder, "status")


def stderr_of(process: subprocess.Popen[str], status: int) -> str:
    assert process.stderr is not None
    text = process.stderr.read()
    assert process.wait(timeout=PATIENCE_S) == status, text
    return text


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_three_brokers_carry_a_publication_and_stop_in_order(
    configure: Configure, start: Start, tmp_path: Path
) -> None:
    folders = [configure(name) for name in NAMES]
    processes = [start(folder) for folder in folders]
    addresses = [
        line.split('"')[1]
        for folder in folders
        for line in (folder / "broker.toml").read_text().splitlines()
        if line.startswith("listen")
    ]

    async def story() -> None:
        await wait_until_ready(*folders)
        status = await ask(folders[1], "status")
        assert (status["name"], status["incarnation"]) == ("b1", 1)
        assert sorted(status["wanted"]) == sorted(status["ready"]) == ["b0", "b2"]
        await ask(folders[0], "begin_run", run_id="r1", folder=str(tmp_path / "run"))
        async with (
            connect(addresses[0], "publisher", publishes=True) as publisher,
            connect(addresses[2], "subscriber") as subscriber,
        ):
            await subscriber.subscribe("true")
            await publisher.publish({"a": 1}, b"payload")
            publication = await anext(subscriber.publications())
            assert (publication.attributes, publication.payload) == ({"a": 1}, b"payload")
        assert (await ask(folders[0], "statistics"))["publications_received"] == 1
        await ask(folders[0], "end_run")

    trio.run(story)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        assert stderr_of(process, 0) == ""
    during = [line["event"] for line in lines(tmp_path / "run" / "events.jsonl")]
    assert (during[0], during[-1]) == ("run_begun", "run_ended")
    begun = lines(tmp_path / "run" / "events.jsonl")[0]
    assert begun["parameters"]["client_window"] > 0
    last = lines(tmp_path / "run" / "stats.jsonl")[-1]
    assert last["publications_received"] == 1
    counters = lines(tmp_path / "run" / "events.jsonl")[-1]["counters"]
    assert counters == {key: value for key, value in last.items() if key != "t_ns"}
    own = lines(folders[0] / "log" / "events.jsonl")
    assert (own[0]["event"], own[-1]["event"]) == ("started", "stopped")
    assert all(earlier["t_ns"] <= later["t_ns"] for earlier, later in pairwise(own))
    assert not (folders[0] / "control").exists()


def test_three_brokers_with_certificates_carry_a_publication_over_tcp(
    configure: Configure, start: Start, tmp_path: Path
) -> None:
    lab = Certificates(tmp_path, deployment="d1")
    folders = [configure(name, tls=asdict(lab.files("broker", name))) for name in NAMES]
    for folder in folders:
        start(folder)
    addresses = [
        line.split('"')[1]
        for folder in folders
        for line in (folder / "broker.toml").read_text().splitlines()
        if line.startswith("listen")
    ]
    run = lab.files("load", "r1")

    async def story() -> None:
        await wait_until_ready(*folders)
        async with (
            connect(addresses[0], "p.r1", publishes=True, tls=run) as publisher,
            connect(addresses[2], "s.r1", tls=run) as subscriber,
            connect(addresses[2], "s.r1") as plain,
        ):
            await subscriber.subscribe("true")
            payload = random.Random(1).randbytes(700_000)
            for _ in range(5):
                await publisher.publish({"a": 1}, payload)
                publication = await anext(subscriber.publications())
                assert (publication.attributes, publication.payload) == ({"a": 1}, payload)
            assert not plain.attached

    trio.run(story)


def test_a_killed_broker_restarts_in_recovery_with_a_new_incarnation(
    configure: Configure, start: Start
) -> None:
    folder = configure("b0")

    async def incarnation_of(process: subprocess.Popen[str]) -> tuple[int, bool]:
        status = await wait_until_up(folder)
        assert status["pid"] == process.pid
        process.kill()
        process.wait()
        started = [e for e in lines(folder / "log" / "events.jsonl") if e["event"] == "started"]
        return status["incarnation"], started[-1]["recovering"]

    assert trio.run(incarnation_of, start(folder)) == (1, False)
    assert trio.run(incarnation_of, start(folder)) == (2, True)
    configure("b0", deployment_id="d2")
    assert start(folder).wait(PATIENCE_S) == 78
    configure("b0")
    assert trio.run(incarnation_of, start(folder)) == (3, True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 2 MiB."""
    with mounted_disk(tmp_path / "disk", 2) as disk:
        yield disk


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("logged", [False, True])
def test_a_broker_on_a_full_disk_waits_for_room_and_reports_that(
    configure: Configure, start: Start, small_disk: Path, end: signal.Signals, logged: bool
) -> None:
    folder = configure("b0", state_folder=str(small_disk / "state"))
    with (folder.parent / "topology.toml").open("a") as topology:
        topology.write(f"[parameters.delta_tree]\npublication_log = {json.dumps(logged)}\n")

    async def story() -> None:
        first = start(folder)
        await wait_until_up(folder)
        first.send_signal(end)
        first.wait()
        filler = fill_disk(small_disk)
        second = start(folder)
        status = await wait_until_up(folder)
        assert (status["state"], status["incarnation"]) == ("no room on its disk", 0)
        filler.unlink()
        with trio.fail_after(PATIENCE_S):
            while status["state"] == "no room on its disk":
                await trio.sleep(0.02)
                status = await wait_until_up(folder)
        assert (status["incarnation"], status["pid"]) == (2, second.pid)
        second.send_signal(signal.SIGTERM)
        said = stderr_of(second, 0).splitlines()
        assert said[0].startswith(f"broker b0: no room in {small_disk}/state (")
        assert said[1:] == ["broker b0: there is room"]

    trio.run(story)
    events = [line["event"] for line in lines(folder / "log" / "events.jsonl")]
    assert events.count("disk_has_room") == 1


def test_a_first_start_on_a_full_disk_completes_once_room_is_available(
    configure: Configure, start: Start, small_disk: Path
) -> None:
    folder = configure("b0", state_folder=str(small_disk / "state"))
    (small_disk / "state").mkdir(mode=0o700)
    filler = fill_disk(small_disk)
    start(folder)

    async def story() -> None:
        assert (await wait_until_up(folder))["state"] == "no room on its disk"
        filler.unlink()
        with trio.fail_after(PATIENCE_S):
            while (status := await wait_until_up(folder))["state"] == "no room on its disk":
                await trio.sleep(0.02)
        assert status["incarnation"] == 1

    trio.run(story)
    (started,) = [e for e in lines(folder / "log" / "events.jsonl") if e["event"] == "started"]
    assert not started["recovering"]


def test_a_second_process_on_one_state_folder_is_refused(
    configure: Configure, start: Start
) -> None:
    first = start(configure("b0"))
    trio.run(wait_until_up, configure("b0"))
    text = stderr_of(start(configure("b0")), 4)
    assert f"in use by the process {first.pid}" in text
    assert "Traceback" not in text


def test_a_port_in_use_is_reported_and_costs_no_incarnation(
    configure: Configure, start: Start
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        text = stderr_of(start(configure("b0", listen=f"127.0.0.1:{port}")), 4)
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in text
    folder = configure("b0")
    start(folder)
    assert trio.run(wait_until_up, folder)["incarnation"] == 1


def test_a_control_socket_in_use_is_reported(configure: Configure, start: Start) -> None:
    first = configure("b0")
    start(first)
    trio.run(wait_until_up, first)
    second = configure("b1", control_socket=str(first / "control"))
    assert "another process serves this socket" in stderr_of(start(second), 4)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"broker": "b9"}, "no broker called 'b9'; did you mean"),
        ({"protocol": "gossip"}, "protocol = 'gossip'; known: best_effort, delta_tree, gryphon"),
        ({"listen": "0.0.0.0:7000"}, "loopback"),
        ({"listen": "192.0.2.1:7000"}, "off loopback it takes certificates"),
        ({"listen": "127.0.0.1"}, "an address and a port"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"tls": {"authority": "/a", "certificate": "/c"}}, "key"),
        (
            {"tls": {"authority": "/a", "certificate": "/c", "key": "/k"}},
            "authority = '/a': No such",
        ),
        ({"topology_file": "/nowhere.toml"}, "/nowhere.toml"),
        ({"control_socket": "/" + "x" * 120}, "107"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_with_the_reason(
    configure: Configure, start: Start, changes: dict[str, Any], why: str
) -> None:
    text = stderr_of(start(configure("b0", **changes)), 2)
    assert why in text
    assert "Traceback" not in text


def test_a_broker_with_a_heartbeat_unlike_its_topology_is_refused(
    configure: Configure, start: Start
) -> None:
    folder = configure("b0")
    topology = folder.parent / "topology.toml"
    topology.write_text(topology.read_text() + '[session]\nheartbeat = "300ms"\n')
    text = stderr_of(start(folder), 2)
    assert "session: heartbeat_ns = 250000000, but the topology has 300000000" in text


def test_the_agent_gets_the_error_itself(configure: Configure) -> None:
    with pytest.raises(ConfigError, match="topology_file"):
        run_broker({"broker": "b0"})


def test_a_broker_with_an_unreadable_store_ends_and_names_the_file(
    configure: Configure, start: Start
) -> None:
    folder = configure("b0")
    (folder / "state" / "meta.sqlite3").mkdir(parents=True)
    text = stderr_of(start(folder), 78)
    assert "state/meta.sqlite3: is no file" in text
    assert "Traceback" not in text


def test_a_store_that_is_none_is_refused(configure: Configure, start: Start) -> None:
    folder = configure("b0")
    (folder / "state").mkdir()
    (folder / "state" / "meta.sqlite3").write_text("no database" * 1_000)
    assert "meta.sqlite3" in stderr_of(start(folder), 78)


def test_a_broker_accepts_faults_only_if_fault_injection_is_enabled(
    configure: Configure, start: Start
) -> None:
    folder = configure("b0")
    process = start(folder)
    fault = {"fault_id": "f", "verb": "absorb", "peer": "b1", "direction": "both", "lease_ms": 0}

    async def refused(why: str, command: str = "fault_apply", **changes: Any) -> None:
        with pytest.raises(ControlError, match=why) as caught:
            await ask(folder, command, **(fault | changes))
        assert caught.value.kind == "user"

    async def without() -> None:
        await wait_until_up(folder)
        await refused("fault_injection = false")
        with pytest.raises(ControlError, match="no command 'stall'"):
            await ask(folder, "stall")

    trio.run(without)
    process.kill()
    process.wait()
    configure("b0", fault_injection=True)
    start(folder)

    async def with_faults() -> None:
        await wait_until_up(folder)
        await refused("no link to 'b7'", peer="b7")
        await refused("verb 'stall'", verb="stall")
        await refused("unknown argument 'verb'", command="fault_heal")
        await refused("'lease_ms' must be of type int", lease_ms="0")
        assert (await ask(folder, "fault_apply", **fault))["t_applied_ns"] > 0
        assert (await ask(folder, "status"))["faults"] == ["f"]
        assert (await ask(folder, "fault_heal", fault_id="f"))["healed"] is True
        assert (await ask(folder, "fault_heal", fault_id="f"))["healed"] is False
        assert (await ask(folder, "fault_counters"))["f"]["absorbed_messages"] == 0
        async with open_control(folder / "control") as control:
            await wait_for_the_lease(control, fault)

    async def wait_for_the_lease(control: ControlClient, fault: dict[str, Any]) -> None:
        events = await control.listen()
        await control.request("fault_apply", **(fault | {"fault_id": "g", "lease_ms": 50}))
        with trio.fail_after(PATIENCE_S):
            name, details = await events.receive()
        assert (name, details["fault_id"], details["by"]) == ("fault_healed", "g", "lease")

    trio.run(with_faults)


def test_a_new_broker_starts_on_command_and_a_restarted_one_at_once(
    configure: Configure, start: Start
) -> None:
    told, stopped = (configure(name, begin_within_ms=600_000, fsync=False) for name in NAMES[:2])

    async def wait_to_be_told(folder: Path) -> None:
        why = ""
        with trio.fail_after(PATIENCE_S):
            while "waits for the others" not in why:
                with pytest.raises(ControlError) as refused:
                    await ask(folder, "status")
                why = refused.value.text
                await trio.sleep(0.02)

    async def begin() -> int:
        await wait_to_be_told(told)
        await ask(told, "begin")
        incarnation: int = (await wait_until_up(told))["incarnation"]
        return incarnation

    first, never_begun = start(told), start(stopped)
    trio.run(wait_to_be_told, stopped)
    never_begun.send_signal(signal.SIGTERM)
    stderr_of(never_begun, 0)
    assert trio.run(begin) == 1
    first.kill()
    first.wait()
    start(told)
    assert trio.run(wait_until_up, told)["incarnation"] == 2


def test_a_broker_that_cannot_be_reached_is_named_until_it_can(
    configure: Configure, start: Start
) -> None:
    folders = [configure(name) for name in NAMES]
    for folder in folders[:2]:
        start(folder)

    async def story() -> None:
        status = await wait_until_up(folders[0])
        with trio.fail_after(PATIENCE_S):
            while list(status["unprobed"]) != ["b2"]:
                await trio.sleep(0.02)
                status = await ask(folders[0], "status")
        assert not status["probed"]
        start(folders[2])
        await wait_until_ready(*folders)
        assert (await ask(folders[0], "probe")) == {"reached": ["b1", "b2"], "missing": {}}

    trio.run(story)


def test_nothing_of_a_stopped_broker_is_left(configure: Configure, start: Start) -> None:
    folder = configure("b0", memory_limit_bytes=1 << 30, fsync=False)
    process = start(folder)
    trio.run(wait_until_up, folder)
    assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (1 << 30, 1 << 30)
    process.send_signal(signal.SIGINT)
    stderr_of(process, 0)
    assert not os.path.exists(folder / "control")
    assert trio.run(wait_until_up, configure_and_start(configure, start))["incarnation"] == 2


def configure_and_start(configure: Configure, start: Start) -> Path:
    folder = configure("b0")
    start(folder)
    return folder


def test_a_broker_without_a_free_descriptor_leaves_samples_out_and_serves(
    configure: Configure, start: Start
) -> None:
    async def story() -> None:
        folder = configure("b0")
        process = start(folder)
        status = await wait_until_up(folder)

        def samples() -> list[dict[str, Any]]:
            return lines(folder / "log/stats.jsonl")

        async with open_control(folder / "control") as control:
            await control.request("status")
            with no_free_descriptors(process.pid) as lower:
                with trio.fail_after(PATIENCE_S):
                    while all("rss_bytes" in sample for sample in samples()[-1:]):
                        lower()
                        await trio.sleep(0.02)
                assert "rss_bytes" not in await control.request("statistics")
            with trio.fail_after(PATIENCE_S):
                while "rss_bytes" not in samples()[-1]:
                    await trio.sleep(0.02)
            again = await control.request("status")
            assert again["incarnation"] == status["incarnation"]

    trio.run(story)


def test_every_file_of_a_broker_that_is_started_by_hand_is_private(
    configure: Configure, start: Start
) -> None:
    async def story() -> None:
        folder = configure("b0")
        start(folder)
        await wait_until_up(folder)
        run_folder = folder / "run"
        await ask(folder, "begin_run", run_id="r1", folder=str(run_folder))
        await ask(folder, "end_run")
        inside = [path for name in ("state", "log", "run") for path in (folder / name).rglob("*")]
        assert len(inside) > 5
        for path in (folder / "state", folder / "log", run_folder, *inside):
            assert path.lstat().st_mode & 0o077 == 0, path

    before = os.umask(0o022)
    try:
        trio.run(story)
    finally:
        os.umask(before)
