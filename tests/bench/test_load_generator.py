"""Tests of a load generator: commands of its socket, its schedule and its records."""

import json
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
import trio.testing

from bench.load import load_generator
from bench.load.load_files import LoadSetting
from bench.load.load_generator import LoadGenerator
from brokerd.history.writer import RecordWriter
from brokerd.model.publication import PublicationRun
from brokerd.runtime.control_socket import ControlClient, open_control
from brokerd.runtime.streams import first_message
from brokerd.sessions.messages import Hello
from brokerd.wire.fast_path import StraightReader
from results.rules.expectation import ExpectedContent
from tests.helpers.fake_broker import FakeBroker
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS

RUN_ID = "20300101T000000Z-abcdef"
SEED = 8
WORKLOAD = {
    "seed": SEED,
    "attributes": {"sets": 30, "symbol": {"choose": 3}},
    "publishers": [{"at": "p1", "count": 2, "size": "25B"}],
}
EXPECTED = ExpectedContent.from_workload(WORKLOAD, RUN_ID)
FILTERS = ("true", "symbol = 'SYMBOL001'")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder with a short path, because the folder contains a socket."""
    with TemporaryDirectory(prefix="lg-") as name:
        yield Path(name)


def setting(
    folder: Path,
    broker: FakeBroker,
    *,
    rate: tuple[int, int],
    window: int,
    own_processes: tuple[int, ...] = (),
    absences: Sequence[Sequence[int]] = (),
    failover: Sequence[FakeBroker] = (),
) -> LoadSetting:
    clients = {"broker": "p1", "address": broker.address}
    next_ones = [each.address for each in failover]
    return LoadSetting.from_mapping(
        {
            "process": "load",
            "log_folder": str(folder / "logs"),
            "control_socket": str(folder / "s" / "load.sock"),
            "run_id": RUN_ID,
            "seed": SEED,
            "brokers": ["p1"],
            "attributes": [["symbol", {"choose": 3}]],
            "sets": 30,
            "protocol": "delta_tree",
            "deployment_id": "d1",
            "topology_digest": "",
            "addresses": {address: f"p{n + 2}" for n, address in enumerate(next_ones)},
            "lateness_limit_ns": 10**9,
            "publishers": [
                {
                    "index": n, "name": f"p1-pub-{n + 1}", "client": f"p1-pub-{n + 1}.x", **clients,
                    "rate": list(rate), "size_bytes": 25, "arrivals": "fixed", "window": window,
                }
                for n in range(2)
            ],
            "subscribers": [
                {
                    "name": f"p1-sub-{n + 1}", "client": f"p1-sub-{n + 1}.x", **clients,
                    "predicate": predicate, "own_process": n + 1 in own_processes,
                    "absences": absences if n == 0 else (), "failover": next_ones,
                }
                for n, predicate in enumerate(FILTERS)
            ],
        }
    )  # fmt: skip


@asynccontextmanager
async def begun(nursery: trio.Nursery, told: LoadSetting) -> AsyncIterator[ControlClient]:
    """Yield a load generator without clients that obeys commands."""
    nursery.start_soon(LoadGenerator(told).run)
    while not Path(told.control_socket).is_socket():
        await trio.sleep(0.01)
    async with open_control(told.control_socket) as control:
        yield control


@asynccontextmanager
async def running(
    folder: Path,
    broker: FakeBroker,
    *,
    rate: tuple[int, int] = (400, 1),
    window: int = 1000,
    own_processes: tuple[int, ...] = (),
    absences: Sequence[Sequence[int]] = (),
) -> AsyncIterator[ControlClient]:
    """Yield a load generator whose clients are attached and have subscribed."""
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.serve)
            told = setting(
                folder, broker, rate=rate, window=window, own_processes=own_processes,
                absences=absences,
            )  # fmt: skip
            async with begun(nursery, told) as control:
                await control.request("connect")
                await reach(control, "not_attached", [])
                publishers = (await control.request("publishers"))["publishers"]
                await control.request("know_publishers", publishers=publishers)
                await control.request("subscribe")
                await reach(control, "not_started", [])
                yield control
            nursery.cancel_scope.cancel()


def test_a_load_generator_reports_why_its_clients_cannot_attach(folder: Path) -> None:
    async def play() -> str:
        broker = FakeBroker(address=f"127.0.0.1:{OWN_PORTS[0]}")  # where nobody listens
        told = setting(folder, broker, rate=(1, 1), window=1)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                async with begun(nursery, told) as control:
                    await control.request("connect")
                    while not (why := (await control.request("status"))["attach_failure"]):
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
        return str(why)

    assert trio.run(play) == f"127.0.0.1:{OWN_PORTS[0]}: connection refused"


def test_subscribers_fail_over_to_the_next_broker(folder: Path) -> None:
    first, second = FakeBroker(protocol="best_effort"), FakeBroker(protocol="best_effort")
    life = trio.CancelScope()

    async def live(*, task_status: trio.TaskStatus[None]) -> None:
        with life:
            await first.serve(task_status=task_status)

    async def play() -> None:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(live)
                await nursery.start(second.serve)
                told = setting(folder, first, rate=(1, 1), window=1, failover=[second])
                async with begun(nursery, told) as control:
                    await control.request("connect")
                    await reach(control, "not_attached", [])
                    life.cancel()
                    while len(second.clients) < len(FILTERS):
                        await trio.sleep(0.01)
                    await reach(control, "not_attached", ["p1-pub-1", "p1-pub-2"])
                nursery.cancel_scope.cancel()

    trio.run(play)
    lines = (folder / "logs" / "sessions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    came = [(row["client"], row["broker"]) for row in rows if row["event"] == "up"]
    assert sorted(came[4:]) == [("p1-sub-1", "p2"), ("p1-sub-2", "p2")]
    left = [row["client"] for row in rows if row["event"] == "down"]
    assert sorted(left[:4]) == ["p1-pub-1", "p1-pub-2", "p1-sub-1", "p1-sub-2"]


@pytest.mark.parametrize("at_once", [1, 3])
def test_no_more_clients_than_a_broker_has_room_for_begin_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """The broker refuses everyone; a refused client makes room for clients that have not tried."""
    monkeypatch.setattr(load_generator, "BEGINNING_AT_ONCE", at_once)
    beginning, seen, most = set[str](), set[str](), 0
    all_seen = trio.Event()

    async def refuse(stream: trio.SocketStream) -> None:
        nonlocal most
        hello = await first_message(stream, StraightReader())
        assert isinstance(hello, Hello)
        if hello.name not in seen:
            seen.add(hello.name)
            beginning.add(hello.name)
            await trio.testing.wait_all_tasks_blocked(0.01)
            most = max(most, len(beginning))
            beginning.remove(hello.name)
            if len(seen) == 4 and not beginning:
                all_seen.set()
        await stream.aclose()

    async def play() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        told = setting(folder, FakeBroker(address=f"127.0.0.1:{port}"), rate=(1, 1), window=1)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, refuse, [listener])
                async with begun(nursery, told) as control:
                    await control.request("connect")
                    await all_seen.wait()
                nursery.cancel_scope.cancel()

    trio.run(play)
    assert most == at_once


async def reach(control: ControlClient, key: str, value: object) -> None:
    while (await control.request("status"))[key] != value:
        await trio.sleep(0.01)


async def fence(control: ControlClient) -> None:
    await control.request("fence")
    await reach(control, "not_fenced", [])
    fences = [
        {"publisher": p["identity"], "incarnation": p["incarnation"], "sequence": sequence}
        for p in (await control.request("publishers"))["publishers"]
        for sequence in p["fences"]
    ]
    await control.request("expect_fences", fences=fences)


async def whole_run(
    control: ControlClient,
    duration_ns: int = 300_000_000,
    *,
    is_measured: bool = True,
    starts_ns: list[int] | None = None,
) -> dict[str, Any]:
    """Run fence, load, fence, drain and finish; return the reply to `finish`.

    Args:
        starts_ns: receives the time at which the load has to start.
    """
    await fence(control)
    await reach(control, "fences_missing", 0)
    t0_ns = (await control.request("status"))["now_ns"] + 20_000_000
    end_ns = t0_ns + duration_ns
    if starts_ns is not None:
        starts_ns.append(t0_ns)
    measure_from_ns = t0_ns if is_measured else end_ns
    await control.request("start", t0_ns=t0_ns, measure_from_ns=measure_from_ns, end_ns=end_ns)
    await reach(control, "state", "stopped")
    await fence(control)
    await reach(control, "open", 0)
    await reach(control, "fences_missing", 0)
    return await control.request("finish")


def rows(folder: Path, layout: str, code: str) -> list[tuple[Any, ...]]:
    return [*struct.iter_unpack(code, (folder / "logs" / f"{layout}.rec").read_bytes())]


def sidecar(folder: Path, layout: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "logs" / f"{layout}.rec.json").read_text())
    return content


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "logs" / name).read_text().splitlines()]


def test_a_load_generator_needs_no_package_that_broker_machines_lack() -> None:
    program = "import sys; import bench.load.load_generator; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pydantic", "numpy", "rich", "typer", "pyspark"}
    assert "trio" in loaded


def test_a_run_is_recorded_as_its_seed_determines(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            return await whole_run(control)

    finished = trio.run(play)
    assert finished["problems"] == []
    assert finished["offered"] == 2 * 400 * 3 // 10
    assert finished["sent"] == finished["acknowledged"] == finished["offered"] + 4
    assert finished["late_max_ns"] >= finished["late_p99_ns"] > 0

    publications = rows(folder, "publications", "<qqqHHI")
    facts = sidecar(folder, "publications")
    assert facts["closed"] is True
    assert all(name.startswith("p1/") for name in facts["tables"]["publishers"])
    names = facts["tables"]["publisher_names"]
    fences = 0
    for sequence, intended_ns, sent_ns, publisher, incarnation, chosen in publications:
        name = names[facts["tables"]["publishers"][publisher]]
        index = EXPECTED.publishers[name].index
        fences += chosen == EXPECTED.fence_set
        if chosen != EXPECTED.fence_set:
            assert chosen == EXPECTED.choice(index, incarnation, sequence)[0]
        assert intended_ns <= sent_ns
    assert fences == 4
    assert facts["tables"]["attribute_sets"][-1] == {"fence": RUN_ID}

    reserved = rows(folder, "intents", "<qqHH12x")
    for publisher in (0, 1):
        first_sent = min(row[2] for row in publications if row[3] == publisher)
        first_block = next(row for row in reserved if row[2] == publisher)
        assert first_block[1] <= first_sent
        assert first_block[0] >= max(row[0] for row in publications if row[3] == publisher)

    deliveries = rows(folder, "deliveries", "<qqIIHHBBxx")
    facts = sidecar(folder, "deliveries")
    assert facts["tables"]["subscriptions"] == ["p1-sub-1/1", "p1-sub-2/1"]
    assert {row[7] for row in deliveries} == {1}
    assert sum(row[3] == 0 for row in deliveries) == len(publications)
    for sequence, _, digest, subscription, publisher, incarnation, kind, _ in deliveries:
        name = names[facts["tables"]["publishers"][publisher]]
        is_fence = kind == 1
        expected = EXPECTED.digest(EXPECTED.publishers[name], incarnation, sequence, fence=is_fence)
        assert digest == expected
        if subscription == 1 and not is_fence:
            chosen = EXPECTED.choice(EXPECTED.publishers[name].index, incarnation, sequence)[0]
            assert EXPECTED.attributes(chosen) == {"symbol": "SYMBOL001"}

    online = json.loads((folder / "logs" / "online.json").read_text())
    assert online["totals"]["missing"] == online["totals"]["duplicate"] == 0
    assert online["totals"]["owed"] == online["totals"]["deliveries"] == len(deliveries) - 8
    subscriptions = lines(folder, "subscriptions.jsonl")
    assert [line["predicate"] for line in sorted(subscriptions, key=lambda s: s["sub_id"])] == [
        *FILTERS
    ]
    assert all(line["t_issued_ns"] <= line["t_accepted_ns"] for line in subscriptions)
    assert [line["event"] for line in lines(folder, "sessions.jsonl")].count("up") == 4
    assert lines(folder, "stats.jsonl")[-1]["sent"] == finished["sent"]


def test_everything_delivered_is_acknowledged_to_the_broker(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> None:
        async with running(folder, broker) as control:
            await whole_run(control)

    trio.run(play)
    for client in ("p1-sub-1.x", "p1-sub-2.x"):
        lasts: dict[Any, int] = {}
        for name, source, first, last in broker.acknowledged:
            if name == client:
                assert lasts.get(source, 0) < first <= last
                lasts[source] = last
        closing = {row[3]: row[0] for row in rows(folder, "publications", "<qqqHHI")}
        assert sorted(lasts.values()) == sorted(closing.values())


def lose_every_50th(run: PublicationRun) -> list[PublicationRun]:
    kept = [place for place, sequence in enumerate(run.sequences) if sequence % 50]
    return [run.select(kept)] if kept else []


def repeat_every_run(run: PublicationRun) -> list[PublicationRun]:
    return [run, run]


def test_the_online_checker_counts_publications_that_the_broker_lost(folder: Path) -> None:
    broker = FakeBroker(spoil=lose_every_50th)

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            return await whole_run(control)

    finished = trio.run(play)
    lost = [row for row in rows(folder, "publications", "<qqqHHI") if row[0] % 50 == 0]
    matching = [row for row in lost if EXPECTED.attributes(row[5]) == {"symbol": "SYMBOL001"}]
    assert len(lost) == 4
    assert finished["online"]["missing"] == len(lost) + len(matching)


def test_a_withheld_duplicate_is_a_row_of_the_wire_layer(folder: Path) -> None:
    broker = FakeBroker(spoil=repeat_every_run)

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            return await whole_run(control)

    finished = trio.run(play)
    assert finished["online"]["duplicate"] == 0
    assert finished["withheld"] == finished["delivered"]
    layers = [row[7] for row in rows(folder, "deliveries", "<qqIIHHBBxx")]
    assert layers.count(0) == layers.count(1) == finished["delivered"]


def test_a_lost_session_leaves_intended_times_unchanged(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> dict[str, Any]:
        async with running(folder, broker) as control:
            await fence(control)
            t0_ns = (await control.request("status"))["now_ns"]
            end_ns = t0_ns + 2_000_000_000
            await control.request("start", t0_ns=t0_ns, measure_from_ns=t0_ns, end_ns=end_ns)
            while (await control.request("status"))["sent"] < 50:
                await trio.sleep(0.005)
            broker.acknowledges = False
            broker.drop_sessions()
            await trio.sleep(0.05)
            broker.acknowledges = True
            await reach(control, "state", "stopped")
            await reach(control, "open", 0)
            return await control.request("finish")

    finished = trio.run(play)
    assert finished["problems"] == []
    assert finished["offered"] == 1_600
    assert finished["acknowledged"] == finished["sent"] == 1_602
    events = [line["event"] for line in lines(folder, "sessions.jsonl")]
    assert events.count("up") >= 8
    publications = rows(folder, "publications", "<qqqHHI")
    stalled = max(sent_ns - intended_ns for _, intended_ns, sent_ns, *_ in publications)
    assert stalled >= 40_000_000, "nothing waited for the session"
    intended = sorted(row[1] for row in publications if row[3] == 0 and row[0] > 1)
    assert {b - a for a, b in pairwise(intended)} == {2_500_000}


def test_publishing_at_the_maximum_rate_lasts_until_the_end(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> dict[str, Any]:
        async with running(folder, broker, rate=(0, 1), window=512) as control:
            return await whole_run(control, duration_ns=1_500_000_000, starts_ns=starts_ns)

    starts_ns: list[int] = []
    finished = trio.run(play)
    sent = sorted(row[2] for row in rows(folder, "publications", "<qqqHHI"))
    assert sent[2] >= starts_ns[0], "nothing between the first fences and the start"
    assert finished["sent"] > 2_000
    assert finished["acknowledged"] == finished["sent"]
    assert finished["online"]["missing"] == finished["online"]["corrupted"] == 0
    assert finished["online"]["owed"] == finished["online"]["deliveries"]


def test_unfinished_logs_are_marked_as_not_closed(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> None:
        async with running(folder, broker) as control:
            await fence(control)
            await reach(control, "fences_missing", 0)

    trio.run(play)
    for layout in ("publications", "acks", "intents", "deliveries"):
        assert sidecar(folder, layout)["closed"] is False
    assert len(rows(folder, "publications", "<qqqHHI")) == 2, "what there was is there"


def test_commands_in_the_wrong_order_are_refused_or_change_nothing(folder: Path) -> None:
    broker = FakeBroker()

    async def play() -> tuple[dict[str, Any], dict[str, Any]]:
        async with running(folder, broker) as control:
            await control.request("connect")
            for _ in range(2):
                await control.request("subscribe")
            first = await whole_run(control, is_measured=False)
            with pytest.raises(Exception, match="cannot start: load is finished"):
                await control.request("start", t0_ns=0, measure_from_ns=0, end_ns=1)
            return first, await control.request("finish")

    first, second = trio.run(play)
    assert first == second
    assert first["late_max_ns"] == 0, "nothing was due in the measure phase"
    assert {line["sub_id"] for line in lines(folder, "subscriptions.jsonl")} == {
        *("p1-sub-1/1", "p1-sub-2/1")
    }
    assert broker.subscriptions == 2, "a client subscribes once"


def test_files_are_closed_after_a_sync_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = FakeBroker()
    begun, released = threading.Event(), threading.Event()
    sync = RecordWriter.sync

    def sync_slowly(writer: RecordWriter) -> None:
        begun.set()
        assert released.wait(PATIENCE_S)
        sync(writer)

    async def play() -> dict[str, Any]:
        async with running(tmp_path, broker) as control, trio.open_nursery() as nursery:
            monkeypatch.setattr(RecordWriter, "sync", sync_slowly)
            now_ns = (await control.request("status"))["now_ns"]
            end_ns = now_ns + 60_000_000_000
            await control.request("start", t0_ns=now_ns, measure_from_ns=now_ns, end_ns=end_ns)
            while not begun.is_set():
                await trio.sleep(0.005)
            async with open_control(tmp_path / "s" / "load.sock") as second:
                nursery.start_soon(second.request, "finish")
                await reach(control, "state", "finished")
                released.set()
                return await control.request("finish")

    assert trio.run(play)["problems"] == []
    sidecar = json.loads((tmp_path / "logs" / "intents.rec.json").read_text(encoding="utf-8"))
    assert sidecar["closed"]
