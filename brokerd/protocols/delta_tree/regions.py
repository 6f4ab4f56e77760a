"""Regions: the parts of the tree whose sources a subscription does not hear yet.

A region is a set of tags and stands for the source brokers that any of them covers. It is what
a confirmation carries towards the subscriber, and it only ever shrinks after the subscription
has started. All tags of one subscription point away from its home: `detector` lies on the path
from the home to `node`. Everything here rests on that.
"""

from collections.abc import Callable, Iterable

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import Tag
from brokerd.protocols.delta_tree.state import Path

Region = tuple[Tag, ...]
"""Tags in ascending order, none twice, so that equal sets are equal values."""

PathFunction = Callable[[BrokerNumber, BrokerNumber], Path]


def region(tags: Iterable[Tag]) -> Region:
    """The region of these tags.

    A tag inside another one's coverage stays: when the larger one is taken away because its
    broker is back, the smaller one still holds.
    """
    return tuple(sorted(dict.fromkeys(tags), key=_place))


class Regions:
    """What regions cover and have in common, for a broker that knows some paths.

    Args:
        path: path(start, broker) gives the brokers between the two, both included. Who knows no
            more than the path from the home to `broker` may give that one instead. It has the
            tagged node on it exactly when the other one has, because tags point away from the
            home, as long as `under` is asked about brokers farther from the home than `here`.

    Paper: [DFT11] §III (on and beyond a partition), §VIII-A.
    """

    def __init__(self, path: PathFunction) -> None:
        self._path = path

    def covers(self, tags: Iterable[Tag], source: BrokerNumber) -> bool:
        """Whether publications of this source broker are withheld."""
        return any(self._tag_covers(tag, source) for tag in tags)

    def coverage(
        self, tags: Iterable[Tag], brokers: Iterable[BrokerNumber]
    ) -> tuple[BrokerNumber, ...]:
        """Those of `brokers` that are covered, in the order given."""
        held = region(tags)
        return tuple(broker for broker in brokers if self.covers(held, broker))

    def intersect(self, held: Iterable[Tag], replacement: Iterable[Tag]) -> Region:
        """A region that covers exactly the brokers that both cover.

        Every change to the tags of a started subscription goes through here, so a stale or
        larger replacement cannot close what is open.
        """
        old, new = region(held), region(replacement)
        return region([*self._kept(old, new), *self._entered(old, new)])

    def under(self, tags: Iterable[Tag], here: BrokerNumber, broker: BrokerNumber) -> Region:
        """The tags for `broker` and for what lies behind it, seen from `here`."""
        return region(tag for tag in tags if broker in self._path(here, tag.node))

    def includes(self, larger: Iterable[Tag], smaller: Iterable[Tag]) -> bool:
        """Whether each tag of `smaller` lies within one tag of `larger`.

        True means that every broker covered by `smaller` is covered by `larger`. False may be
        said of a region that only several tags together fill: that costs a message, no more.
        """
        held = region(larger)
        return all(
            any(
                self._tag_covers(tag, part.node) and (tag.beyond or not part.beyond) for tag in held
            )
            for part in smaller
        )

    def _tag_covers(self, tag: Tag, broker: BrokerNumber) -> bool:
        if tag.node == broker:
            return True
        return tag.beyond and tag.node in self._path(tag.detector, broker)

    def _kept(self, old: Region, new: Region) -> Iterable[Tag]:
        """The old tags whose node is still covered, no farther than the new ones reach."""
        for tag in old:
            covering = [other for other in new if self._tag_covers(other, tag.node)]
            if covering:
                beyond = tag.beyond and any(other.beyond for other in covering)
                yield Tag(tag.detector, tag.node, beyond)

    def _entered(self, old: Region, new: Region) -> Iterable[Tag]:
        """The new tags that lie behind an old one's node: a part of it is covered still."""
        reaching = [tag for tag in old if tag.beyond]
        return (other for other in new if self.covers(reaching, other.node))


def _place(tag: Tag) -> tuple[BrokerNumber, BrokerNumber, bool]:
    return tag.detector, tag.node, tag.beyond
