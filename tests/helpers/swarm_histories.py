"""Observations of a swarm's clients, as histories for the checker of real runs.

The oracle of a swarm and the reference checker share nothing but the text of the promise. One
history is one subscription. The opening fence is the position of each source when the client
learned that the subscription had started; the closing fence is the position at the end.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from brokerd.model.client_messages import Notice
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.publication import Buffer
from brokerd.simulator.search.client_moves import SubscriptionRequest
from brokerd.simulator.search.plan import Plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.world.clients import Observers
from brokerd.wire.attributes import decode_attributes
from results.reference.contents import Contents, Publisher
from results.reference.history import (
    ACKNOWLEDGED,
    FENCE,
    DeliveryRow,
    History,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
    Violation,
)
from results.reference.rule import check
from results.rules.terms import Notice as Told
from results.rules.terms import Partition


@dataclass(frozen=True)
class SwarmContent(Contents):
    """The contents of a plan: (publisher's index, sequence) → attribute set and digest."""

    chosen: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def choice(self, publisher_index: int, incarnation: int, sequence: int) -> tuple[int, int]:
        return self.chosen[publisher_index, sequence][0], 0

    def digest(self, publisher: Publisher, incarnation: int, sequence: int, *, fence: bool) -> int:
        return 0 if fence else self.chosen[publisher.index, sequence][1]


@dataclass
class _Seen:
    """The observations of one subscription; `started` has the published count of each client."""

    delivered: list[tuple[SourceId, int, int]] = field(default_factory=list)
    notices: list[tuple[Notice, int]] = field(default_factory=list)
    started: dict[ClientId, int] | None = None
    ended: bool = False


class Recorder:
    """A recorder of all that applications do and receive in one run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.run = PlanRun(plan, check_purity=False)
        self._published: dict[ClientId, list[tuple[bytes, bytes]]] = {}
        self._sources: dict[ClientId, SourceId] = {}
        self.seen: dict[tuple[ClientId, int], _Seen] = {}
        cluster = self.run._cluster
        oracle = cluster.oracle
        cluster.population.observer = Observers(self, oracle)
        publish, unsubscribe = oracle.published, oracle.on_unsubscribed

        def published(client: ClientId, sequence: int, blob: bytes, payload: bytes) -> None:
            self._published.setdefault(client, []).append((blob, payload))
            publish(client, sequence, blob, payload)

        def unsubscribed(client: ClientId, number: int) -> None:
            self._subscription(client, number).ended = True
            unsubscribe(client, number)

        oracle.published = published  # type: ignore[method-assign]
        oracle.on_unsubscribed = unsubscribed  # type: ignore[method-assign]

    def play(self) -> tuple[SeedReport, list[Violation]]:
        """Return the oracle's report, and the reference checker's violations."""
        report = self.run.report(-1, "")
        return report, self.judge(ended=report.rule in ("", "incomplete"))

    def judge(self, *, ended: bool) -> list[Violation]:
        """Return the reference checker's violations; with `ended`, no delivery may be missing."""
        return [
            violation
            for history in self._histories(ended=ended)
            for violation in check(history).violations
            if violation.kind != "withheld_unjustified"  # reasons are not looked for here
        ]

    # ------------------------------------------------------------ what is seen; ClientObserver

    def on_connected(self, client: ClientId, source: SourceId | None) -> None:
        if source is not None:
            self._sources[client] = source

    def on_started(self, client: ClientId, number: int) -> None:
        seen = self._subscription(client, number)
        if seen.started is None:
            seen.started = {name: len(contents) for name, contents in self._published.items()}

    def on_delivered(
        self,
        client: ClientId,
        number: int,
        source: SourceId,
        sequence: int,
        blob: bytes,
        payload: Buffer,
    ) -> None:
        digest = zlib.crc32(payload, zlib.crc32(blob))
        self._subscription(client, number).delivered.append((source, sequence, digest))

    def on_withheld(self, client: ClientId, notice: Notice) -> None:
        seen = self._subscription(client, notice.subscription)
        seen.notices.append((notice, len(seen.delivered)))

    def on_gap(
        self, client: ClientId, number: int, source: SourceId, first: int, last: int, reason: str
    ) -> None:
        raise AssertionError(f"{client} was told of a gap, which no protocol here promises")

    def on_acknowledged(self, client: ClientId, sequence: int) -> None:
        """Count the publication as committed: publishers of a swarm abandon none."""

    def _subscription(self, client: ClientId, number: int) -> _Seen:
        return self.seen.setdefault((client, number), _Seen())

    # ------------------------------------------------------------ as histories

    def _histories(self, *, ended: bool) -> Iterator[History]:
        asked: dict[tuple[ClientId, int], str] = {}
        numbers: dict[ClientId, int] = {}
        for move in self._plan.moves:
            if isinstance(move, SubscriptionRequest):
                numbers[move.client] = number = numbers.get(move.client, 0) + 1
                asked[move.client, number] = move.predicate
        content = self._content()
        for (client, number), seen in self.seen.items():
            closed = ended and not seen.ended and seen.started is not None
            logs = []
            fences: dict[SourceId, tuple[DeliveryRow, DeliveryRow]] = {}
            for name, source in self._sources.items():
                log = self._publisher_log(content, name, source, seen, closed)
                logs.append(log)
                at = [row.sequence for row in log.published if row.sequence % 2]
                if at:
                    place = self._place(source)
                    first, last = (DeliveryRow(place, 1, n, 0, 0, FENCE) for n in at)
                    fences[source] = first, last
            rows, places = self._list_deliveries(seen, fences, closed)
            names = self._plan.topology.brokers
            yield History(
                content,
                logs,
                [
                    SubscriptionLog(
                        f"{client}/{number}",
                        client.partition("-")[2],
                        asked[client, number],
                        rows,
                        closed,
                        self._notices(seen, places),
                    )
                ],
                [(names[a], names[b]) for a, b in self._plan.topology.links],
                deliveries_per_pair_min=0,
                delta=self._plan.topology.delta,
            )

    def _publisher_log(
        self, content: SwarmContent, name: ClientId, source: SourceId, seen: _Seen, closed: bool
    ) -> PublisherLog:
        """Return the log of a publisher, with odd sequences as fences.

        Sequences are doubled, which leaves room for fences. A stream that was not received from the
        start opens with its first delivery.
        """
        index = content.publishers[name].index
        count = len(self._published.get(name, ()))
        rows = [
            PublicationRow(1, 2 * sequence, content.chosen[index, 2 * sequence][0], 0)
            for sequence in range(1, count + 1)
        ]
        got = [sequence for of, sequence, _ in seen.delivered if of == source]
        told = any(notice.source == source for notice, _ in seen.notices)
        opening = None
        if told:
            opening = min(got, default=None)
            opening = None if opening is None else opening - 1
        elif seen.started is not None:
            opening = min([*(sequence - 1 for sequence in got), seen.started.get(name, 0)])
        if opening is not None and (closed or got):
            for at in (2 * opening + 1, 2 * count + 3):
                rows.append(PublicationRow(1, at, content.fence_set, 0))
            rows.sort(key=lambda row: row.sequence)
        answers = [(1, 1, 2 * count + 3, ACKNOWLEDGED)]
        return PublisherLog(self._place(source), name, rows, answers)

    def _list_deliveries(
        self,
        seen: _Seen,
        fences: Mapping[SourceId, tuple[DeliveryRow, DeliveryRow]],
        closed: bool,
    ) -> tuple[list[DeliveryRow], list[int]]:
        """Return the deliveries, sources between fences, and the place of each delivery."""
        rows: list[DeliveryRow] = []
        places: list[int] = []
        opening = {source: first for source, (first, _) in fences.items()}
        for source, sequence, digest in seen.delivered:
            places.append(len(rows))
            if source in opening:
                rows.append(opening.pop(source))
            rows.append(DeliveryRow(self._place(source), 1, 2 * sequence, 0, digest))
        places.append(len(rows))
        if closed:
            rows += [*opening.values(), *(last for _, last in fences.values())]
        return rows, places

    def _notices(self, seen: _Seen, places: list[int]) -> list[Told]:
        names = self._plan.topology.brokers
        return [
            Told(
                self._place(notice.source),
                1,
                2 * first,
                2 * last,
                Partition(
                    names[notice.partition.detector],
                    notice.partition.incarnation,
                    notice.partition.number,
                    tuple(names[node] for node in notice.partition.nodes),
                ),
                places[place],
                0,
            )
            for notice, place in seen.notices
            for first, last in notice.ranges
        ]

    def _place(self, source: SourceId) -> str:
        return f"{self._plan.topology.brokers[source.broker]}/{source.publisher}"

    def _content(self) -> SwarmContent:
        sets: dict[bytes, int] = {}
        chosen: dict[tuple[int, int], tuple[int, int]] = {}
        publishers: dict[str, Publisher] = {}
        for index, name in enumerate(self._sources):
            publishers[name] = Publisher(name, name.partition("-")[2], index, 0)
            for sequence, (blob, payload) in enumerate(self._published.get(name, ()), 1):
                digest = zlib.crc32(payload, zlib.crc32(blob))
                chosen[index, 2 * sequence] = sets.setdefault(blob, len(sets)), digest
        attributes = [decode_attributes(blob) for blob in sets]
        return SwarmContent("swarm", 0, attributes, publishers, chosen=chosen)
