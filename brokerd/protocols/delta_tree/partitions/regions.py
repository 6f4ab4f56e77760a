"""Regions: the parts of the tree with sources that a subscription does not receive from yet.

A region is a set of tags and covers the source brokers that any of the tags covers. A confirmation
carries a region towards the subscriber, and the region only shrinks after the subscription
has started. All tags of a subscription point away from home, and contain the path
from there; all functions here depend on that.

A tag covers a broker, with `beyond` all brokers behind that broker, and always the brokers behind
that have joined since the tree was deployed (*newcomers*, by number). A newcomer receives
subscriptions from linked brokers. So a newcomer lacks the subscriptions that the linked brokers
lack, and no broker asked a newcomer before the subscription started. The newcomer is open from the
moment that the linked brokers are.

Paper: [DFT11] §III (on and beyond a partition), §VIII-A.
"""

from collections.abc import Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.broker.state import Path
from brokerd.protocols.delta_tree.messages import Tag

Region = tuple[Tag, ...]
"""Tags in ascending order without repetition, so that equal sets are equal values."""

NOBODY = 1 << 62
"""The first newcomer's number in a tree without newcomers."""


def region(tags: Iterable[Tag]) -> Region:
    """Return the region of these tags.

    A tag inside another tag's coverage stays: after the removal of the larger tag, because its
    broker is back, the smaller tag still holds.
    """
    by_place: dict[tuple[BrokerNumber, Path, bool], Tag] = {}
    for tag in tags:
        by_place.setdefault(tag.place, tag)
    return tuple(by_place[place] for place in sorted(by_place))


def find_covering_tag(
    tags: Iterable[Tag], path: Path, newcomers: BrokerNumber = NOBODY
) -> Tag | None:
    """Return the first tag that covers the last broker of `path`, which begins at the home."""
    reaches_behind = path[-1] >= newcomers
    for tag in tags:
        node = tag.path[-1]
        if node == path[-1] or ((tag.beyond or reaches_behind) and node in path):
            return tag
    return None


def covers(tags: Iterable[Tag], path: Path, newcomers: BrokerNumber = NOBODY) -> bool:
    """Return True if publications from the last broker of `path` (home … broker) are withheld."""
    return find_covering_tag(tags, path, newcomers) is not None


def intersect(
    held: Iterable[Tag],
    replacement: Iterable[Tag],
    *,
    newcomers: BrokerNumber = NOBODY,
) -> Region:
    """Return a region that covers exactly the brokers that both regions cover.

    Every change to the tags of a started subscription uses this function, so a stale or larger
    replacement cannot close an open part.
    """
    old, new = region(held), region(replacement)
    return region([*_keep_tags(old, new), *_select_entered(old, new, newcomers)])


def select_tags_under(tags: Iterable[Tag], broker: BrokerNumber) -> Region:
    """Return the tags for `broker` and for brokers behind it, seen from the home."""
    return region(tag for tag in tags if broker in tag.path)


def includes(larger: Iterable[Tag], smaller: Iterable[Tag]) -> bool:
    """Return True if every tag of `smaller` lies within one tag of `larger`.

    True means that every broker covered by `smaller` is covered by `larger`. False is possible
    for a region that only several tags together fill: that costs a message, no more.
    """
    held = region(larger)
    return all(
        any(covers((tag,), part.path) and (tag.beyond or not part.beyond) for tag in held)
        for part in smaller
    )


def _keep_tags(old: Region, new: Region) -> Iterable[Tag]:
    """Yield the old tags with a still covered node, no farther than the new tags reach."""
    for tag in old:
        over = [other for other in new if covers((other,), tag.path)]
        if over:
            beyond = tag.beyond and any(other.beyond for other in over)
            yield Tag(tag.path, tag.detector, tag.incarnation, tag.number, beyond)


def _select_entered(old: Region, new: Region, newcomers: BrokerNumber) -> Iterable[Tag]:
    """Yield the new tags behind an old tag's node: a part of that tag is still covered."""
    reaching = [tag for tag in old if tag.beyond]
    for other in new:
        joined = other.node >= newcomers and any(tag.node in other.path[:-1] for tag in old)
        if joined or covers(reaching, other.path):
            yield other
