"""The partition table: unreachable brokers with their detectors, up to 2δ links from here.

Every broker that becomes unreachable makes a partition. The detector announces the partition to
every broker within 2δ links, over all sessions. The detector withdraws the partition when the
broker is reachable again and no subscription is tagged for this partition: not before the
confirmation of the last recovery notifier with a tag of the partition, or a publication from behind
the partition could count as safe.

In profile "robust" the table is only for inspection. With `tag_eval` "pt" brokers stamp
publications from the table (`annotations.py`).

Paper: [DFT11] §III lines 317-346, §IV lines 362-370, §VIII lines 896-900 and 917-944.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, PartitionId
from brokerd.protocols.delta_tree.messages import (
    PartitionGone,
    PartitionNew,
    PartitionNumbers,
    Path,
    Tag,
)
from brokerd.protocols.delta_tree.regions import is_plain_path, join_paths
from brokerd.protocols.delta_tree.sessions import Node, Sessions
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.parts.bounds import check_incarnation

LIVE_LIMIT = 1_024
"""Greatest number of live partitions of a detector; no correct broker exceeds it."""

TOMBSTONE_RANGES = 64


@dataclass(slots=True, eq=False)
class Detector:
    """The known partitions of a broker.

    Attributes:
        path: detector … here.
        ended: ranges of ended numbers, ascending; all earlier incarnations have ended, too.
    """

    path: Path
    incarnation: int
    live: dict[int, PartitionId] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(default_factory=list)

    def is_gone(self, number: int) -> bool:
        """Return True if the partition of this number has ended."""
        return any(first <= number <= last for first, last in self.ended)

    def end(self, first: int, last: int) -> bool:
        """End the partitions numbered in [first, last]; return True if one was not ended before."""
        if any(start <= first and last <= end for start, end in self.ended):
            return False
        for number in [number for number in self.live if first <= number <= last]:
            del self.live[number]
        joined: list[tuple[int, int]] = []
        for start, end in sorted([*self.ended, (first, last)]):
            if joined and start <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((start, end))
        self.ended = self._merge_to_limit(joined)
        return True

    def _merge_to_limit(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Merge ranges down to the limit; unannounced numbers between two ranges end, too."""
        place = 0
        while len(ranges) > TOMBSTONE_RANGES and place + 1 < len(ranges):
            (first, last), (following, end) = ranges[place], ranges[place + 1]
            if any(last < number < following for number in self.live):
                place += 1
            else:
                ranges[place : place + 2] = [(first, end)]
        return ranges


class PartitionTable:
    """The partition table of a broker (PT)."""

    def __init__(self, state: State, sessions: Sessions) -> None:
        self._state = state
        self._sessions = sessions
        self.reach = 2 * state.parameters.delta
        self.detectors: dict[BrokerNumber, Detector] = {}
        self._ended: dict[int, None] = {}
        self._holds: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(detector.live) for detector in self.detectors.values())

    def __iter__(self) -> Iterator[PartitionId]:
        for detector in self.detectors.values():
            yield from detector.live.values()

    # ------------------------------------------------------------ our own

    def follow_sessions(self) -> None:
        """Record brokers that have become unreachable, and brokers that are reachable again."""
        begun, ended = self._sessions.take_partition_changes()
        self._ended.update(dict.fromkeys(ended))
        if not begun:
            return
        own = self._own_detector()
        for node in begun:
            partition = PartitionId(
                self._state.broker, self._state.incarnation, node.partition, node.path[1:]
            )
            own.live[partition.number] = partition
            self._state.machine.record(
                "partition_new", number=partition.number, nodes=list(partition.nodes)
            )
        made = [own.live[node.partition] for node in begun]
        for peer in self._sessions.ready():
            self._send_new(peer, made)

    def hold(self, tags: Iterable[Tag]) -> None:
        """Keep the partitions of these tags until as many calls of `release`."""
        for tag in tags:
            if tag.detector == self._state.broker and tag.incarnation == self._state.incarnation:
                self._holds[tag.number] = self._holds.get(tag.number, 0) + 1

    def release(self, tags: Iterable[Tag]) -> None:
        """Undo one `hold`."""
        for tag in tags:
            if tag.detector == self._state.broker and tag.incarnation == self._state.incarnation:
                left = self._holds.pop(tag.number) - 1
                if left:
                    self._holds[tag.number] = left

    def withdraw_ended(self) -> None:
        """Withdraw every ended partition without a hold.

        Paper: [DFT11] §VIII-A lines 896-900. Deviates: the paper does so at once.
        """
        if not self._ended:
            return
        due = [number for number in self._ended if number not in self._holds]
        own = self._own_detector()
        for number in due:
            del self._ended[number]
            own.end(number, number)
            self._state.machine.record("partition_gone", number=number)
        if due:
            here, incarnation = self._state.broker, self._state.incarnation
            withdrawn = [PartitionNumbers(here, incarnation, number, number) for number in due]
            for peer in self._sessions.ready():
                self._send_gone(peer, withdrawn)

    # ------------------------------------------------------------ everybody's

    def synchronise(self, peer: Node) -> None:
        """Send the partition table to a peer with a ready session, before all other messages.

        The peer replies with the entries that this broker lacks, and receives the answer. The reply
        omits this broker's own partitions, so this broker sends the ended numbers of own
        partitions.
        """
        here, incarnation = self._state.broker, self._state.incarnation
        ended = [PartitionNumbers(here, incarnation, 0, 0)] if self._state.restarted else []
        if here in self.detectors:
            ranges = self.detectors[here].ended
            ended += [PartitionNumbers(here, incarnation, first, last) for first, last in ranges]
        self._send_gone(peer, ended)
        self._send_new(peer, list(self))

    def on_new(self, peer: BrokerNumber, message: PartitionNew) -> None:
        """Add new partitions of brokers nearby, and forward them.

        Paper: [DFT11] §IV lines 362-370.
        """
        paths = self._checked_paths(peer, message.paths)
        partitions = [
            partition
            for partition in message.partitions
            if not self._has_left((partition.detector, *partition.nodes))
        ]
        for partition in partitions:
            self._check_partition(peer, partition, paths)
            self._check_leap(peer, partition.detector, partition.incarnation)
        fresh: list[PartitionId] = []
        stale: list[PartitionNumbers] = []
        for partition in partitions:
            detector = self._detector(partition.detector, partition.incarnation, paths)
            number = partition.number
            if detector is None:
                latest = self.detectors[partition.detector].incarnation
                stale.append(PartitionNumbers(partition.detector, latest, 0, 0))
            elif detector.is_gone(number):
                stale.append(
                    PartitionNumbers(partition.detector, detector.incarnation, number, number)
                )
            elif number not in detector.live:
                detector.live[number] = partition
                fresh.append(partition)
        self._correct_about_departed(peer, message)
        if stale:
            self._send_gone(self._sessions.node(peer), stale)
        if fresh:
            for node in self._sessions.ready():
                if node.broker != peer:
                    self._send_new(node, fresh)

    def on_gone(self, peer: BrokerNumber, message: PartitionGone) -> None:
        """End partitions, and all partitions of earlier incarnations of their detectors.

        Paper: [DFT11] §VIII-A lines 896-900.
        """
        paths = self._checked_paths(peer, message.paths)
        withdrawn = [
            numbers for numbers in message.withdrawn if not self._state.has_left(numbers.detector)
        ]
        for numbers in withdrawn:
            if numbers.detector not in paths or not self._possible(numbers):
                raise RemoteProtocolError(peer, f"withdraws {tuple(numbers)}")
            self._check_leap(peer, numbers.detector, numbers.incarnation)
        changes: list[PartitionNumbers] = []
        for numbers in withdrawn:
            known = self.detectors.get(numbers.detector)
            before = known.incarnation if known is not None else 0
            detector = self._detector(numbers.detector, numbers.incarnation, paths)
            if detector is None:
                continue
            is_new = numbers.incarnation > before
            if numbers.last:
                is_new = detector.end(numbers.first, numbers.last) or is_new
            if is_new:
                changes.append(numbers)
        if changes:
            for node in self._sessions.ready():
                if node.broker != peer:
                    self._send_gone(node, changes)

    def forget(self, broker: BrokerNumber) -> None:
        """Remove the partitions of a departed leaf; other brokers may still mention them."""
        detector = self.detectors.get(broker)
        if detector is not None and detector.live:
            numbers = PartitionNumbers(broker, detector.incarnation, 1, max(detector.live))
            for node in self._sessions.ready():
                self._send_gone(node, [numbers])
        self.detectors.pop(broker, None)

    # ------------------------------------------------------------ inside

    def _correct_about_departed(self, peer: BrokerNumber, message: PartitionNew) -> None:
        """Announce to a peer that partitions by a departed leaf, or for one, have ended.

        Brokers within δ + 1 links of the leaf are notified of its departure. A broker up to 2δ
        links away is corrected over a session.

        Raises:
            RemoteProtocolError: a detector's path does not end here.
        """
        departed = [
            partition
            for partition in message.partitions
            if self._has_left((partition.detector, *partition.nodes))
        ]
        detectors = dict.fromkeys(partition.detector for partition in departed)
        to_peer = self._sessions.node(peer).path
        paths: dict[BrokerNumber, Path] = {}
        for path in message.paths:
            if path and path[0] in detectors:
                if path[-1] != self._state.broker or not is_plain_path(path):
                    raise RemoteProtocolError(peer, f"no detector's path: {path[:20]}")
                onward = join_paths(path, to_peer)
                if 1 < len(onward) <= self.reach + 1:
                    paths[path[0]] = onward
        ended = [
            PartitionNumbers(each.detector, each.incarnation, each.number, each.number)
            for each in departed
            if each.detector in paths
        ]
        possible = tuple(numbers for numbers in ended if self._possible(numbers))
        if possible:
            self._state.machine.send(peer, PartitionGone(possible, tuple(paths.values())))

    def _has_left(self, brokers: Iterable[BrokerNumber]) -> bool:
        return any(map(self._state.has_left, brokers))

    def _own_detector(self) -> Detector:
        here = self._state.broker
        own = self.detectors.get(here)
        if own is None:
            own = self.detectors[here] = Detector((here,), self._state.incarnation)
        return own

    def _detector(
        self, number: BrokerNumber, incarnation: int, paths: dict[BrokerNumber, Path]
    ) -> Detector | None:
        """Return the detector's record for this incarnation, new if needed; None if outdated."""
        known = self.detectors.get(number)
        if known is None or known.incarnation < incarnation:
            known = self.detectors[number] = Detector(paths[number], incarnation)
        return known if known.incarnation == incarnation else None

    def _checked_paths(
        self, peer: BrokerNumber, paths: tuple[Path, ...]
    ) -> dict[BrokerNumber, Path]:
        """Return the checked path from every detector to here.

        Raises:
            RemoteProtocolError: a path is no detector's path, is longer than 2δ links, or differs
                from the recorded path.
        """
        neighbourhood = self._state.neighbourhood
        found: dict[BrokerNumber, Path] = {}
        for path in paths:
            if self._has_left(path):
                continue
            self._state.check_path(path, peer)
            far = path[: -neighbourhood.radius - 1]
            known = self.detectors.get(path[0])
            if (
                len(path) - 1 > self.reach
                or any(broker in neighbourhood.paths for broker in far)
                or (known is not None and known.path != path)
            ):
                raise RemoteProtocolError(peer, f"no detector's path: {path[:20]}")
            found[path[0]] = path
        return found

    def _check_partition(
        self, peer: BrokerNumber, partition: PartitionId, paths: dict[BrokerNumber, Path]
    ) -> None:
        """Check that a partition is possible.

        Raises:
            RemoteProtocolError: its brokers form no path, or a path that contradicts the
                neighbourhood.
        """
        neighbourhood = self._state.neighbourhood
        path = paths.get(partition.detector)
        region = (partition.detector, *partition.nodes)
        known = self.detectors.get(partition.detector)
        same = None
        if known is not None and known.incarnation == partition.incarnation:
            same = known.live.get(partition.number)
        if (
            path is not None
            and partition.number > 0
            and partition.incarnation > 0
            and 1 < len(region) <= neighbourhood.radius + 1
            and is_plain_path(region)
            and (same is None or same == partition)
            and (same is not None or known is None or len(known.live) < LIVE_LIMIT)
        ):
            onward = join_paths(path[::-1], region)
            near, far = onward[: neighbourhood.radius + 1], onward[neighbourhood.radius + 1 :]
            fits = near == (neighbourhood.center,) or neighbourhood.paths.get(near[-1]) == near
            strange = any(broker in neighbourhood.paths for broker in far)
            if fits and not strange and is_plain_path(onward):
                return
        raise RemoteProtocolError(peer, f"no partition: {tuple(partition)}"[:300])

    def _check_leap(self, peer: BrokerNumber, detector: BrokerNumber, incarnation: int) -> None:
        """Check that a detector's incarnation, which ends all earlier ones, does not leap.

        Raises:
            RemoteProtocolError: the incarnation leaps.
        """
        known = self.detectors.get(detector)
        check_incarnation(peer, detector, known.incarnation if known else 0, incarnation)

    @staticmethod
    def _possible(numbers: PartitionNumbers) -> bool:
        return numbers.incarnation > 0 and (
            0 < numbers.first <= numbers.last or numbers.first == numbers.last == 0
        )

    def _send_new(self, peer: Node, partitions: list[PartitionId]) -> None:
        paths = self._paths_to(peer, [partition.detector for partition in partitions])
        sent = tuple(partition for partition in partitions if partition.detector in paths)
        if sent:
            self._state.machine.send(peer.broker, PartitionNew(sent, tuple(paths.values())))

    def _send_gone(self, peer: Node, withdrawn: list[PartitionNumbers]) -> None:
        paths = self._paths_to(peer, [numbers.detector for numbers in withdrawn])
        sent = tuple(numbers for numbers in withdrawn if numbers.detector in paths)
        if sent:
            self._state.machine.send(peer.broker, PartitionGone(sent, tuple(paths.values())))

    def _paths_to(self, peer: Node, detectors: Iterable[BrokerNumber]) -> dict[BrokerNumber, Path]:
        """Return the paths to a peer from the detectors within reach, except the peer itself."""
        found: dict[BrokerNumber, Path] = {}
        for number in dict.fromkeys(detectors):
            known = self.detectors.get(number)
            path = known.path if known is not None else (number,)
            onward = join_paths(path, peer.path)
            if 1 < len(onward) <= self.reach + 1:
                found[number] = onward
        return found
