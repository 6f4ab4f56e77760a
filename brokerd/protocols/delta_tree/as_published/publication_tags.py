"""Tags of publications by brokers on the way, for `tag_eval` "pt"; unused in profile "robust".

Every broker within 2δ links of a detector tags publications from a source on or beyond one of the
detector's partitions, if the partition is in the broker's table or in the tags of a subscription
that the broker routes by. A home broker withholds a publication from a subscription with a tag for
the same broker, of the same detector: a publication from the broker itself always, a publication
from beyond if the tag has `beyond`. A broker examines no more of a publication's path than is
necessary for the whole of a partition: 3δ + 1 brokers.

A partition is identified by the detector and the unreachable broker, not by the partition's number:
if the same broker is lost again, the same publications are withheld.

Paper: [DFT11] §VI lines 630-645 and 663-675, §VIII lines 917-944.
"""

from collections.abc import Iterable

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, PartitionId
from brokerd.protocols.delta_tree.broker.state import Path, State
from brokerd.protocols.delta_tree.messages import PublicationTag, Tag
from brokerd.protocols.delta_tree.partitions.partition_table import PartitionTable
from brokerd.protocols.delta_tree.subscriptions.routing_table import (
    LocalSubscription,
    RoutingTable,
)

PublicationTags = tuple[PublicationTag, ...]


class Untagged:
    """Publications without tags; the path alone decides about withholding."""

    def tags_along(self, given: PublicationTags, path: Path) -> PublicationTags:
        """Return the tags of publications along `path` (source … here), with this broker's."""
        return given

    def check(self, peer: BrokerNumber, tags: PublicationTags, path: Path) -> None:
        """Check that received tags are for partitions that the publications come from.

        Raises:
            RemoteProtocolError: they are not; the fault of the peer that sent them.
        """
        if tags:
            raise RemoteProtocolError(peer, "tagged publications, in a profile without")

    def find_withholding_tag(
        self, local: LocalSubscription, path: Path, given: PublicationTags, covered: Tag | None
    ) -> Tag | None:
        """Return the tag for which tagged publications are withheld from a subscription.

        Args:
            covered: the tag that covers their path.
        """
        return covered


class Tagging(Untagged):
    """The tags that one broker adds to publications, and withholding by tags."""

    def __init__(self, state: State, partitions: PartitionTable, table: RoutingTable) -> None:
        self._state = state
        self._partitions = partitions
        self._table = table
        self._trail = 3 * state.parameters.delta + 1

    def tags_along(self, given: PublicationTags, path: Path) -> PublicationTags:
        """See Untagged."""
        found = {tag.place: tag for tag in given}
        near = path[-self._trail - 1 :]
        for partition in self._known():
            tag = tag_for(partition, path, near)
            if tag is not None:
                found.setdefault(tag.place, tag)
        return tuple(found.values()) if len(found) > len(given) else given

    def check(self, peer: BrokerNumber, tags: PublicationTags, path: Path) -> None:
        """See Untagged."""
        for tag in tags:
            if tag != tag_for(tag.partition, path, path) or tag.partition.number < 1:
                raise RemoteProtocolError(peer, f"is not from {tuple(tag)}"[:300])

    def _known(self) -> Iterable[PartitionId]:
        yield from self._partitions
        for row in self._table.tagged.values():
            for tag in row.tags:
                detector = tag.path[: tag.path.index(tag.detector) + 1]
                if _distance(detector, row.path) <= self._partitions.reach:
                    yield tag.partition

    def find_withholding_tag(
        self, local: LocalSubscription, path: Path, given: PublicationTags, covered: Tag | None
    ) -> Tag | None:
        """See Untagged. A disagreement of path and tags is recorded in the event log."""
        withheld = find_first_tag(local.tags, given, has_joined=path[0] >= self._state.newcomers)
        if (covered is None) != (withheld is None):
            missing = withheld is None
            self._state.counters["tags_missing" if missing else "tags_extra"] += 1
            self._state.machine.record(
                "missing_tag" if missing else "extra_tag",
                client=local.client,
                number=local.number,
                path=list(path),
            )
        return withheld


def make_tagging(state: State, partitions: PartitionTable, table: RoutingTable) -> Untagged:
    """Return the tagging for `tag_eval`."""
    if state.parameters.tag_eval == "pt":
        return Tagging(state, partitions, table)
    return Untagged()


def tag_for(partition: PartitionId, path: Path, near: Path) -> PublicationTag | None:
    """Return the tag of publications along `path` for a partition; None without one.

    Args:
        near: the end of the path, which is searched for the partition.
    """
    if not partition.nodes or partition.nodes[-1] not in near:
        return None
    node = partition.nodes[-1]
    place = path.index(node)
    if place == 0:
        return PublicationTag(partition, beyond=False)
    nearer = (partition.detector, *partition.nodes)[-2]
    return PublicationTag(partition, beyond=True) if path[place - 1] != nearer else None


def join_tags(parts: Iterable[PublicationTags]) -> PublicationTags:
    """Return the tags of publications of a source that leave together.

    A tag of one publication holds for all: they come from the same broker.
    """
    found: dict[tuple[BrokerNumber, BrokerNumber], PublicationTag] = {}
    for tags in parts:
        found.update((tag.place, tag) for tag in tags)
    return tuple(found.values())


def find_first_tag(
    tags: Iterable[Tag], given: PublicationTags, *, has_joined: bool = False
) -> Tag | None:
    """Return the first tag of a subscription for which tagged publications are withheld.

    Args:
        has_joined: the source's broker has joined; a tag covers it at any place behind.
    """
    beyond = {tag.place: tag.beyond for tag in given}
    for tag in tags:
        kind = beyond.get((tag.detector, tag.node))
        if kind is not None and (tag.beyond or not kind or has_joined):
            return tag
    return None


def _distance(home_to_detector: Path, home_to_here: Path) -> int:
    """Return the number of links between the ends of two paths from a home."""
    shared = 0
    for one, other in zip(home_to_detector, home_to_here, strict=False):
        if one != other:
            break
        shared += 1
    return len(home_to_detector) + len(home_to_here) - 2 * shared
