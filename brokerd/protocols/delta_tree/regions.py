"""Regions: the parts of the tree whose sources a subscription does not hear yet.

A region is a set of tags and stands for the source brokers that any of them covers. It is what
a confirmation carries towards the subscriber, and it only ever shrinks after the subscription
has started. All tags of one subscription point away from its home, and each carries the path
from there; everything here rests on that.

Paper: [DFT11] §III (on and beyond a partition), §VIII-A.
"""

from collections.abc import Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import Tag
from brokerd.protocols.delta_tree.state import Path

Region = tuple[Tag, ...]
"""Tags in ascending order, none twice, so that equal sets are equal values."""


def region(tags: Iterable[Tag]) -> Region:
    """The region of these tags.

    A tag inside another one's coverage stays: when the larger one is taken away because its
    broker is back, the smaller one still holds.
    """
    by_place: dict[tuple[BrokerNumber, Path, bool], Tag] = {}
    for tag in tags:
        by_place.setdefault(tag.place, tag)
    return tuple(by_place[place] for place in sorted(by_place))


def covering(tags: Iterable[Tag], path: Path) -> Tag | None:
    """The first tag that covers the last broker of `path`, which begins at the home."""
    for tag in tags:
        node = tag.path[-1]
        if node == path[-1] or (tag.beyond and node in path):
            return tag
    return None


def covers(tags: Iterable[Tag], path: Path) -> bool:
    """Whether publications from the last broker of `path` (home … broker) are withheld."""
    return covering(tags, path) is not None


def intersect(held: Iterable[Tag], replacement: Iterable[Tag], *, halved: bool = False) -> Region:
    """A region that covers exactly the brokers that both cover.

    Every change to the tags of a started subscription goes through here, so a stale or larger
    replacement cannot close what is open.

    Args:
        halved: leave out the second half (the mutant of that name).
    """
    old, new = region(held), region(replacement)
    entered = () if halved else _entered(old, new)
    return region([*_kept(old, new), *entered])


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


def _entered(old: Region, new: Region) -> Iterable[Tag]:
    """The new tags that lie behind an old one's node: a part of it is covered still."""
    reaching = [tag for tag in old if tag.beyond]
    return (other for other in new if covers(reaching, other.path))
