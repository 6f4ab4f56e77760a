"""The subscribers of one load generator: records and checks of received deliveries.

Every delivery becomes a row of deliveries.rec and a step of the online checker. Both work on runs:
a run of exactly the expected publications costs a few comparisons, at any length.

Rows have layer 1 (application) for deliveries that passed the duplicate check of the client
library. Deliveries that the library withheld have layer 0 (wire), so the wire had the rows of both
layers. Rare records about many publications are lines of gaps.jsonl and commits.jsonl, each with
its place: the number of earlier rows of deliveries.rec.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from bench.load.content import AttributeSet, ContentTables, SourceContent
from bench.load.expected_content import ContentCheck, MatchTables, RunContent
from bench.load.online_checker import OnlineChecker
from bench.load.records import (
    LatencySamples,
    Level,
    Stretches,
    delivery_rows,
    notice_rows,
    position_rows,
)
from bench.load.stream_progress import StreamProgress
from brokerd.client.events import GapAnnounced
from brokerd.history.records import APPLICATION, ROW_BYTES, WIRE
from brokerd.model.client_messages import Notice
from brokerd.model.identity import PartitionId, SourceId
from brokerd.model.publication import Place, PublicationRun
from results.rules.expectation import parse_predicate
from results.rules.terms import Partition

SUM_END = 1 << 63
"""Sums of positions are modulo this, so that documents need no more than 64 bits."""


@dataclass(frozen=True, slots=True)
class SubscriberSetting:
    """The settings of one subscriber, from the controller.

    Attributes:
        name: name of the subscriber in logs.
        client: name of the client at its broker; different in every run.
        broker, address: the broker of the subscriber.
        predicate: predicate of the workload, without the fence.
        own_process: True for a process of its own, with a database of its application.
        acknowledge: "auto" or "transacted": the broker keeps the position, and this is the mode of
            commits; "": the application's database has the position.
        absences: begin and end of each absence under churn, in ns from the start of the
            measurement.
        failover: addresses of further brokers, in this order, if the broker is unreachable.
    """

    name: str
    client: str
    broker: str
    address: str
    predicate: str
    own_process: bool = False
    acknowledge: str = ""
    absences: tuple[tuple[int, int], ...] = ()
    failover: tuple[str, ...] = ()

    @property
    def subscription(self) -> str:
        """The name of the only subscription in logs."""
        return f"{self.name}/1"

    def predicate_with_fence(self, run_id: str) -> str:
        """Return the predicate of the subscription, with the fences of this run."""
        return f"({self.predicate}) or fence = '{run_id}'"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return the settings in the content of a control message."""
        absences = tuple((from_ns, to_ns) for from_ns, to_ns in values.get("absences", ()))
        failover = tuple(values.get("failover", ()))
        return cls(**{**values, "absences": absences, "failover": failover})


class SourceDirectory:
    """The sources of a run, with their contents.

    Attributes:
        names: publisher identities by their numbers in records, with unknown publishers.
    """

    def __init__(
        self,
        brokers: Sequence[str],
        seed: int,
        tables_by_size: Mapping[int, ContentTables],
    ) -> None:
        self.names: list[str] = []
        self._brokers = brokers
        self._seed = seed
        self._tables = tables_by_size
        self._numbers: dict[SourceId, int] = {}
        self._known: dict[str, tuple[int, int]] = {}
        self._contents: dict[tuple[str, int], SourceContent] = {}

    def register(self, identity: str, publisher_index: int, size_bytes: int) -> None:
        """Register publisher number `publisher_index` of the workload as `identity`."""
        self._known[identity] = (publisher_index, size_bytes)

    def identity(self, source: SourceId) -> str:
        """Return the name of a source's publisher in logs."""
        if source.broker < len(self._brokers):
            return f"{self._brokers[source.broker]}/{source.publisher}"
        return f"#{source.broker}/{source.publisher}"

    def partition(self, partition: PartitionId) -> Partition:
        """Return a partition with the names of logs."""
        detector, *nodes = [
            self._brokers[number] if number < len(self._brokers) else f"#{number}"
            for number in (partition.detector, *partition.nodes)
        ]
        return Partition(detector, partition.incarnation, partition.number, tuple(nodes))

    def number(self, source: SourceId) -> int:
        """Return the number of a source's publisher in records."""
        number = self._numbers.get(source)
        if number is None:
            identity = self.identity(source)
            if identity not in self.names:
                self.names.append(identity)
            number = self._numbers[source] = self.names.index(identity)
        return number

    def content(self, identity: str, incarnation: int) -> SourceContent | None:
        """Return the contents of a source; None for a source outside this run."""
        known = self._known.get(identity)
        if known is None:
            return None
        content = self._contents.get((identity, incarnation))
        if content is None:
            index, size_bytes = known
            tables = self._tables[size_bytes]
            content = SourceContent(tables, self._seed, index, incarnation)
            self._contents[identity, incarnation] = content
        return content


class Receiver:
    """A recorder and judge of the deliveries to all subscribers of this process.

    Attributes:
        delivered: number of rows of layer 1, with fences.
        withheld: number of rows of layer 0.
        notices: number of rows that announce publications withheld by a partition.
        rows: number of all rows.
        partitions: the partitions of notices, by their numbers in records.
        positions_by_stream: the number and the sum of positions in each stream, by its name; the
            sum is modulo SUM_END.
    """

    def __init__(
        self,
        settings: Sequence[SubscriberSetting],
        attribute_sets: Sequence[AttributeSet],
        blobs: Sequence[bytes],
        fence_blob: bytes,
        directory: SourceDirectory,
        record: Callable[[bytes | bytearray], None],
        samples: LatencySamples | None = None,
        write_line: Callable[[str, Mapping[str, Any]], None] | None = None,
        record_positions: Callable[[bytes | bytearray], None] | None = None,
        *,
        in_total_order: bool = False,
        may_overtake: bool = False,
        level: Level = "full",
    ) -> None:
        self.delivered = 0
        self.withheld = 0
        self.notices = 0
        self.partitions: list[Partition] = []
        self.positions_by_stream: dict[str, tuple[int, int]] = {}
        self.subscriptions = [setting.subscription for setting in settings]
        self._directory = directory
        self._record = record
        self._stretches = None if level == "full" else Stretches(level, record)
        self._rows = 0
        self._write_line = write_line
        self._samples = samples
        self._record_positions = record_positions
        self.streams: list[str] = []
        self._streams: dict[tuple[int, SourceId], _Stream] = {}
        self._content_check = ContentCheck(blobs, fence_blob)
        match = MatchTables(attribute_sets)
        tables = {
            predicate: match.table(parse_predicate(predicate))
            for predicate in {setting.predicate: None for setting in settings}
        }
        self.checker = OnlineChecker(
            {setting.subscription: tables[setting.predicate] for setting in settings},
            directory.content,
            in_total_order=in_total_order,
            may_overtake=may_overtake,
        )

    @property
    def rows(self) -> int:
        """The number of places in deliveries.rec; a row of a stretch takes a place per delivery."""
        return self._rows + (self._stretches.written if self._stretches is not None else 0)

    @property
    def sample(self) -> dict[str, Any]:
        """The publications with a time of receipt, if not all publications have one."""
        return {} if self._stretches is None else {"sample": self._stretches.sample}

    def settle(self, now_ns: int) -> None:
        """Write all received deliveries."""
        if self._stretches is not None:
            self._stretches.settle(now_ns, now_ns)

    def receive(self, subscription: int, run: PublicationRun, received_ns: int) -> None:
        """Record and judge a run that the application of a subscription received."""
        stream = self._stream(subscription, run.source)
        examined = self._content_check.examine(run, stream.content)
        is_next = stream.lane is not None and stream.lane.take(run.sequences, examined)
        if is_next and self._stretches is not None and run.place is None:
            self._write_next(self._stretches, stream, run.sequences, received_ns, examined)
        else:
            self._write_run(stream, run, received_ns, APPLICATION, examined)
        self.delivered += len(run)
        if self._samples is not None:
            self._samples.note(stream.source, run.sequences, received_ns, received_ns)
        if stream.lane is None:
            self.checker.foreign += len(run)
        elif self.checker.order is not None:
            name, publisher = self.subscriptions[subscription], stream.publisher
            publishers = self._directory.names
            self.checker.order.got(name, publishers[publisher], stream.incarnation, run.sequences)

    def _write_next(
        self,
        stretches: Stretches,
        stream: "_Stream",
        sequences: Sequence[int],
        received_ns: int,
        examined: RunContent,
    ) -> None:
        """Record a run of exactly the expected publications, as stretches and sampled rows."""
        numbers = stream.subscription, stream.publisher, stream.incarnation
        for part, is_sampled in stretches.parts(sequences):
            if not is_sampled and stretches.take(*numbers, sequences[part], received_ns):
                continue
            stretches.end(*numbers, received_ns)
            digests = examined.digests[part]
            self._record(delivery_rows(sequences[part], received_ns, digests, *numbers))
            self._rows += len(digests)

    def note_notice(self, subscription: int, notice: Notice, received_ns: int) -> None:
        """Record publications that a partition withholds from the subscription."""
        stream = self._stream(subscription, notice.source)
        partition = self._directory.partition(notice.partition)
        if partition not in self.partitions:
            self.partitions.append(partition)
        self._end_stretch(stream, received_ns)
        rows = notice_rows(
            notice.ranges, received_ns, subscription, stream.publisher, stream.incarnation,
            self.partitions.index(partition),
        )  # fmt: skip
        self._record(rows)
        self.notices += len(rows) // ROW_BYTES
        self._rows += len(rows) // ROW_BYTES
        if stream.lane is not None:
            for first, last in notice.ranges:
                stream.lane.withhold(first, last, str(partition), received_ns)

    def note_gap(self, subscription: int, gap: GapAnnounced, received_ns: int) -> None:
        """Record publications that the subscription never receives."""
        stream = self._stream(subscription, gap.source)
        self._end_stretch(stream, received_ns)
        line = self._line(stream, gap.first, gap.last, received_ns)
        self._write("gaps", {**line, "reason": gap.reason})
        if stream.lane is not None:
            stream.lane.announce_gap(gap.first, gap.last, gap.reason, received_ns)

    def note_commit(
        self, subscription: int, source: SourceId, first: int, last: int, committed_ns: int
    ) -> None:
        """Record that the application committed publications, so that no restart repeats them."""
        stream = self._stream(subscription, source)
        self._end_stretch(stream, committed_ns)
        self._write("commits", self._line(stream, first, last, committed_ns))

    def note_redelivered(self, subscription: int, run: PublicationRun, received_ns: int) -> None:
        """Record a run that is marked as a possible redelivery after a restart of the application.

        Only checkers with the protocol's promises decide whether the redelivery was allowed.
        """
        stream = self._stream(subscription, run.source)
        examined = self._content_check.examine(run, stream.content)
        self._write_run(stream, run, received_ns, APPLICATION, examined, again=True)
        self.delivered += len(run)
        if stream.lane is None:
            self.checker.foreign += len(run)
        else:
            stream.lane.take_marked(run.sequences, examined)

    def note_withheld(self, subscription: int, run: PublicationRun, received_ns: int) -> None:
        """Record a run that the client library withheld as already delivered."""
        stream = self._stream(subscription, run.source)
        examined = self._content_check.examine(run, stream.content)
        self._write_run(stream, run, received_ns, WIRE, examined)
        self.withheld += len(run)

    def _end_stretch(self, stream: "_Stream", now_ns: int) -> None:
        """End the open stretch, so that the next record has its place behind earlier deliveries."""
        if self._stretches is not None:
            self._stretches.end(stream.subscription, stream.publisher, stream.incarnation, now_ns)

    def _stream(self, subscription: int, source: SourceId) -> "_Stream":
        stream = self._streams.get((subscription, source))
        if stream is None:
            number = self._directory.number(source)
            identity = self._directory.names[number]
            content = self._directory.content(identity, source.incarnation)
            name = self.subscriptions[subscription]
            lane = self.checker.progress_of(name, identity, source.incarnation)
            stream = _Stream(
                subscription, number, source.incarnation, content, lane,
                f"{identity}/{source.incarnation}",
            )  # fmt: skip
            self._streams[subscription, source] = stream
        return stream

    def _write(self, name: str, line: Mapping[str, Any]) -> None:
        if self._write_line is not None:
            self._write_line(name, line)

    def _line(self, stream: "_Stream", first: int, last: int, t_ns: int) -> dict[str, Any]:
        return {
            "t_ns": t_ns,
            "sub_id": self.subscriptions[stream.subscription],
            "source": self._directory.names[stream.publisher],
            "incarnation": stream.incarnation,
            "first": first,
            "last": last,
            "place": self.rows,
        }

    def _write_run(
        self,
        stream: "_Stream",
        run: PublicationRun,
        received_ns: int,
        layer: int,
        examined: RunContent,
        *,
        again: bool = False,
    ) -> None:
        self._end_stretch(stream, received_ns)
        if run.place is not None:
            self._write_place(run.place, received_ns)
        self._record(
            delivery_rows(
                run.sequences, received_ns, examined.digests, stream.subscription,
                stream.publisher, stream.incarnation, examined.fences, layer, again=again,
            )
        )  # fmt: skip
        self._rows += len(run)

    def _write_place(self, place: Place, received_ns: int) -> None:
        """Record the positions of the next rows in a stream that is not their source's."""
        if self._record_positions is None:
            return
        name = "/".join(map(str, place.stream))
        if name not in self.streams:
            self.streams.append(name)
        number = self.streams.index(name)
        count, total = self.positions_by_stream.get(name, (0, 0))
        total = (total + sum(place.positions)) % SUM_END
        self.positions_by_stream[name] = count + len(place.positions), total
        self._record_positions(position_rows(place.positions, received_ns, self.rows, number))


@dataclass(frozen=True, slots=True)
class _Stream:
    """The deliveries of one source to one subscription: numbers in records, and checks."""

    subscription: int
    publisher: int
    incarnation: int
    content: SourceContent | None
    lane: StreamProgress | None
    source: str
