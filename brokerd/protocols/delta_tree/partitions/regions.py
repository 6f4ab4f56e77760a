"""Regions: the parts of the tree whose sources a subscription does not hear yet.

A region is a set of tags and stands for the source brokers that any of them covers. It is what
a confirmation carries towards the subscriber, and it only ever shrinks after the subscription
has started. All tags of one subscription point away from its home, and each carries the path
from there; everything here rests on that.

A tag covers its broker, with `beyond` what lies behind it, and always what lies behind it and has
joined since the tree was deployed (*newcomers*, by number): a newcomer learns from those it is
linked to what they know, so of a subscription that they are unaware of it is unaware, too, and
nobody asked it before the subscription started. It is heard from the moment they are.

Paper: [DFT11] §III (on and beyond a partition), §VIII-A.
"""

from collections.abc import Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.broker.state import Path
from brokerd.protocols.delta_tree.messages import Tag

Region = tuple[Tag, ...]
"""Tags in ascending order, none twice, so that equal sets are equal values."""

NOBODY = 1 << 62
"""As the first newcomer's number: nobody has joined."""


def region(tags: Iterable[Tag]) -> Region:
    """The region of these tags.

    A tag inside another one's coverage stays: when the larger one is taken away because its
    broker is back, the smaller one still holds.
    """
    by_place: dict[tuple[BrokerNumber, Path, bool], Tag] = {}
    for tag in tags:
        by_place.setdefault(tag.place, tag)
    return tuple(by_place[place] for place in sorted(by_place))


def covering(tags: Iterable[Tag], path: Path, newcomers: BrokerNumber = NOBODY) -> Tag | None:
    """The first tag that covers the last broker of `path`, which begins at the home."""
    reaches_behind = path[-1] >= newcomers
    for tag in tags:
        node = tag.path[-1]
        if node == path[-1] or ((tag.beyond or reaches_behind) and node in path):
            return tag
    return None


def covers(tags: Iterable[Tag], path: Path, newcomers: BrokerNumber = NOBODY) -> bool:
    """Whether publications from the last broker of `path` (home … broker) are withheld."""
    return covering(tags, path, newcomers) is not None


def intersect(
    held: Iterable[Tag],
    replacement: Iterable[Tag],
    *,
    newcomers: BrokerNumber = NOBODY,
) -> Region:
    """A region that covers exactly the brokers that both cover.

    Every change to the tags of a started subscription goes through here, so a stale or larger
    replacement cannot close what is open.
    """
    old, new = region(held), region(replacement)
    return region([*_kept(old, new), *_entered(old, new, newcomers)])


def under(tags: Iterable[Tag], broker: BrokerNumber) -> Region:
    """The tags for `broker` and for what lies behind it, seen from the home."""
    return region(tag for tag in tags if broker in tag.path)


def includes(larger: Iterable[Tag], smaller: Iterable[Tag]) -> bool:
    """Whether each tag of `smaller` lies within one tag of `larger`.

    True means that every broker covered by `smaller` is covered by `larger`. False may be said
    of a region that only several tags together fill: that costs a message, no more.
    """
    held = region(larger)
    return all(
        any(covers((tag,), part.path) and (tag.beyond or not part.beyond) for tag in held)
        for part in smaller
    )


def _kept(old: Region, new: Region) -> Iterable[Tag]:
    """The old tags whose node is still covered, no farther than the new ones reach."""
    for tag in old:
        over = [other for other in new if covers((other,), tag.path)]
        if over:
            beyond = tag.beyond and any(other.beyond for other in over)
            yield Tag(tag.path, tag.detector, tag.incarnation, tag.number, beyond)


def _entered(old: Region, new: Region, newcomers: BrokerNumber) -> Iterable[Tag]:
    """The new tags that lie behind an old one's node: a part of it is covered still."""
    reaching = [tag for tag in old if tag.beyond]
    for other in new:
        joined = other.node >= newcomers and any(tag.node in other.path[:-1] for tag in old)
        if joined or covers(reaching, other.path):
            yield other
