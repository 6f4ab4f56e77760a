"""Tests of subscribers in processes of their own: orders, and records of their databases."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from bench.load.remote_subscriber import ProcessSubscriber
from bench.load.subscriber_process import MOMENTS, MortalConnection, SubscriberProcess
from bench.load.subscribers import SubscriberSetting
from brokerd.client.application import Publication
from brokerd.client.events import GapAnnounced
from brokerd.model.identity import SourceId
from brokerd.wire.attributes import encode_attributes

A, B = SourceId(0, 0, 1), SourceId(0, 1, 1)


class Died(BaseException):
    """The end of a process at a moment of a transaction."""


class Consumer:
    """A broker's side of a consumer: the publications, and the number of commits."""

    def __init__(self, *batches: list[Publication]) -> None:
        self.batches = [*batches]
        self.commits = 0

    async def __anext__(self) -> Publication:
        return (await self.receive())[0]

    async def receive(self) -> list[Publication]:
        if not self.batches:
            await trio.sleep_forever()
        return self.batches.pop(0)

    async def commit(self) -> None:
        self.commits += 1

    def transaction(self) -> "Consumer":
        return self

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, *error: object) -> None:
        if error == (None, None, None):
            await self.commit()


class Records:
    """The receiver of a load generator; the calls are the records."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def receive(self, number: int, run: Any, now_ns: int) -> None:
        self.calls.append(("new", run.source, [*run.sequences]))

    def note_redelivered(self, number: int, run: Any, now_ns: int) -> None:
        self.calls.append(("again", run.source, [*run.sequences]))

    def note_commit(self, number: int, source: SourceId, first: int, last: int, ns: int) -> None:
        self.calls.append(("commit", source, [first, last]))

    def note_gap(self, number: int, gap: GapAnnounced, now_ns: int) -> None:
        self.calls.append(("gap", gap.source, [gap.first, gap.last]))


def order(source: SourceId, number: int, *, again: bool = False) -> Publication:
    return Publication(source, number, {"n": number}, b"x", (1,), again)


def process_of(folder: Path) -> SubscriberProcess:
    return SubscriberProcess({"database": str(folder / "s.sqlite"), "acknowledge": "auto"})


def consume(folder: Path, consumer: Consumer, mode: Any, dies_at: str = "") -> None:
    """Run the application of a consumer until it waits, or until the moment of its kill."""

    async def play() -> None:
        with closing(process_of(folder)) as process:
            process._database.dies_at = dies_at
            with trio.move_on_after(1) as scope, trio.CancelScope() as waiting:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process._consume, consumer, mode)  # type: ignore[arg-type]
                    await trio.testing.wait_all_tasks_blocked()
                    waiting.cancel()
            assert not scope.cancelled_caught

    trio.run(play)


def remote(folder: Path) -> tuple[ProcessSubscriber, Records, list[Any]]:
    records, orders = Records(), []
    host: Any = SimpleNamespace(
        setting=SimpleNamespace(log_folder=folder, seed=1),
        receiver=records,
        start_task=lambda task, *arguments: orders.append(arguments),
    )
    setting = SubscriberSetting("s", "s@1", "b", "", "true", True, "auto")
    return ProcessSubscriber(host, setting, 0), records, orders


def die(self: MortalConnection, moment: str) -> None:
    """End a process with an exception instead of SIGKILL."""
    if self.dies_at == moment:
        raise Died(moment)


def test_a_commit_is_recorded_before_the_deliveries_that_follow_it(tmp_path: Path) -> None:
    batches = [[order(A, 1), order(A, 2), order(B, 1)], [order(A, 3)]]
    consume(tmp_path, Consumer(*batches), "transacted")
    subscriber, records, _ = remote(tmp_path)
    subscriber._read()
    assert records.calls == [
        ("new", A, [1, 2]), ("new", B, [1]), ("commit", A, [1, 2]), ("commit", B, [1, 1]),
        ("new", A, [3]), ("commit", A, [3, 3]),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["auto", "transacted"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_consumer_commits_what_it_has_written(
    tmp_path: Path, moment: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill before the write leaves nothing, and a kill before the answer leaves no commit."""
    monkeypatch.setattr(MortalConnection, "reach", die)
    consumer = Consumer([order(A, 1), order(A, 2)][: 1 if mode == "auto" else 2])
    with pytest.raises(BaseExceptionGroup) as failure:
        consume(tmp_path, consumer, mode, moment)
    assert failure.group_contains(Died)
    is_written = moment in ("written", "token", "committed")
    assert consumer.commits == (moment == "committed")
    again = [order(A, 1, again=True)]
    consume(tmp_path, Consumer(again), mode)
    subscriber, records, _ = remote(tmp_path)
    subscriber._read()
    first = [("new", A, [1] if mode == "auto" else [1, 2])] if is_written else []
    assert records.calls == [*first, ("again", A, [1]), ("commit", A, [1, 1])]


def test_a_gap_is_recorded_between_the_deliveries_of_a_consumer(tmp_path: Path) -> None:
    with closing(process_of(tmp_path)) as process:
        on_gap = process._callbacks().on_gap
        process._note_committed(process._write([order(A, 1)]))
        on_gap(GapAnnounced(1, A, 2, 4, "lost"))
        process._write([order(A, 5)])
    subscriber, records, _ = remote(tmp_path)
    subscriber._read()
    calls = [("new", A, [1]), ("commit", A, [1, 1]), ("gap", A, [2, 4]), ("new", A, [5])]
    assert records.calls == calls


def test_the_blob_of_a_consumed_publication_is_the_one_published(tmp_path: Path) -> None:
    with closing(process_of(tmp_path)) as process:
        process._write([order(A, 7)])
        rows = process._database.execute("SELECT attributes, payload FROM received").fetchall()
    assert rows == [(encode_attributes({"n": 7}), b"x")]


def test_a_process_that_outlives_its_fault_is_killed_no_more(tmp_path: Path) -> None:
    """An order to die would otherwise be obeyed long after the end of the fault."""
    subscriber, _, orders = remote(tmp_path)
    sent: list[bytes] = []

    async def send_all(data: bytes) -> None:
        sent.append(data)

    async def play() -> None:
        subscriber._process = SimpleNamespace(stdin=SimpleNamespace(send_all=send_all))  # type: ignore[assignment]
        subscriber._is_subscribed = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscriber.crash_again_and_again, 1.0)
            await trio.testing.wait_all_tasks_blocked()
            subscriber.processed += 1
            subscriber._announce()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(play)
    assert sent == [b"die taken\n"]
    assert orders == [("die",)]


@pytest.mark.parametrize(
    "change, details, reason",
    [
        ("failed", {"reason": "connection refused", "address": "h:1"}, "h:1: connection refused"),
        ("lost", {"reason": "closed"}, "closed"),
        ("attached", {"source": None}, ""),
    ],
)
def test_a_process_reports_its_failed_attempt_with_the_broker(
    monkeypatch: pytest.MonkeyPatch, change: str, details: dict[str, Any], reason: str
) -> None:
    reports: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "bench.load.subscriber_process._report",
        lambda report, *, reason: reports.append((report, reason)),
    )
    SubscriberProcess._on_session(SubscriberProcess.__new__(SubscriberProcess), change, details)
    assert reports == [(change, reason)]
