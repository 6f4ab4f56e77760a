"""Publications tagged by brokers on their way, for `tag_eval` "pt"; nothing in profile "robust".

Every broker within 2δ links of a detector tags what comes from a source on or beyond one of its
partitions, be the partition in its table or in the tags of a subscription it routes by. A home
broker withholds a publication from a subscription that has a tag for the same broker, of the
same detector; one on it always, one beyond it where the subscription does not hear what lies
beyond. A broker looks no farther back along a publication's path than it needs to see the whole
of such a partition: 3δ + 1 brokers.

A partition is known by its detector and the broker that could not be reached, not by its number:
where the same broker has been lost again, what is kept from a subscription is the same.

Paper: [DFT11] §VI lines 630-645 and 663-675, §VIII lines 917-944.
"""

from collections.abc import Callable, Iterable

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, PartitionId
from brokerd.protocols.delta_tree.broker.state import Path, State
from brokerd.protocols.delta_tree.messages import PublicationTag, Tag
from brokerd.protocols.delta_tree.partitions.partition_table import PartitionTable

PublicationTags = tuple[PublicationTag, ...]


class Tagging:
    """What one broker tags publications with.

    Args:
        tags: those of all subscriptions that this broker routes by, each with the path from the
            subscription's home to here.
    """

    def __init__(
        self,
        state: State,
        partitions: PartitionTable,
        tags: Callable[[], Iterable[tuple[Path, Tag]]],
    ) -> None:
        self._state = state
        self._partitions = partitions
        self._tags = tags
        self._trail = 3 * state.parameters.delta + 1

    def tagged(self, given: PublicationTags, path: Path) -> PublicationTags:
        """The tags of publications that come along `path` (source … here), with this broker's."""
        found = {tag.place: tag for tag in given}
        near = path[-self._trail - 1 :]
        for partition in self._known():
            tag = tag_for(partition, path, near)
            if tag is not None:
                found.setdefault(tag.place, tag)
        return tuple(found.values()) if len(found) > len(given) else given

    def check(self, peer: BrokerNumber, tags: PublicationTags, path: Path) -> None:
        """Make sure that received tags are for partitions that the publications come from.

        Raises:
            RemoteProtocolError: they are not; the fault of the peer that sent them.
        """
        if tags and self._state.parameters.tag_eval != "pt":
            raise RemoteProtocolError(peer, "tagged publications, in a profile without")
        for tag in tags:
            if tag != tag_for(tag.partition, path, path) or tag.partition.number < 1:
                raise RemoteProtocolError(peer, f"does not come from {tuple(tag)}"[:300])

    def _known(self) -> Iterable[PartitionId]:
        yield from self._partitions
        for here, tag in self._tags():
            if _distance(tag.path[: tag.path.index(tag.detector) + 1], here) <= (
                self._partitions.reach
            ):
                yield tag.partition


def tag_for(partition: PartitionId, path: Path, near: Path) -> PublicationTag | None:
    """What publications along `path` are tagged with for a partition; None when with nothing.

    Args:
        near: the end of the path, where the partition is looked for.
    """
    if not partition.nodes or partition.nodes[-1] not in near:
        return None
    node = partition.nodes[-1]
    place = path.index(node)
    if place == 0:
        return PublicationTag(partition, beyond=False)
    nearer = (partition.detector, *partition.nodes)[-2]
    return PublicationTag(partition, beyond=True) if path[place - 1] != nearer else None


def joined(parts: Iterable[PublicationTags]) -> PublicationTags:
    """The tags of publications of one source that leave together.

    What holds for one of them holds for all: they come from the same broker.
    """
    found: dict[tuple[BrokerNumber, BrokerNumber], PublicationTag] = {}
    for tags in parts:
        found.update((tag.place, tag) for tag in tags)
    return tuple(found.values())


def withheld_by(tags: Iterable[Tag], given: PublicationTags) -> Tag | None:
    """The first tag of a subscription for which tagged publications are withheld from it."""
    beyond = {tag.place: tag.beyond for tag in given}
    for tag in tags:
        kind = beyond.get((tag.detector, tag.node))
        if kind is not None and (tag.beyond or not kind):
            return tag
    return None


def _distance(home_to_detector: Path, home_to_here: Path) -> int:
    """How many links lie between the ends of two paths from one home."""
    shared = 0
    for one, other in zip(home_to_detector, home_to_here, strict=False):
        if one != other:
            break
        shared += 1
    return len(home_to_detector) + len(home_to_here) - 2 * shared
