"""Regions: the parts of the tree with sources that a subscription does not receive from yet.

A region is a set of tags and covers the source brokers that any of the tags covers. A confirmation
carries a region towards the subscriber, and the region only shrinks after the subscription
has started. All tags of a subscription point away from home, and contain the path
from there; all functions here depend on that.

A tag covers a broker, with `beyond` all brokers behind that broker, and always the brokers behind
that have joined since the tree was deployed (*newcomers*, by number). A newcomer receives
subscriptions from linked brokers. So a newcomer lacks the subscriptions that the linked brokers
lack, and no broker sent a newcomer a request before the subscription started. The newcomer is open
from the moment that the linked brokers are.

A region shrinks when a tagged broker returns and confirms. The broker that receives the
confirmation removes the tags under the returned broker, keeps the tags that the confirmation still
names, and notifies all brokers towards home. A notified broker reduces tags in the same way. Both
ends intersect: the first end may hold tags that notifiers have passed, the other may receive a
notifier from such a broker.

Paper: [DFT11] §III (on and beyond a partition), §VIII-A lines 859-900. Deviates: the paper adds the
new tags unconditionally, which closes open sources; per subscription, since tags and cut belong to
a subscription.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.delta_tree.messages import (
    Path,
    RecoveryNotifier,
    SubscriptionConfirmation,
    Tag,
)

Region = tuple[Tag, ...]
"""Tags in ascending order without repetition, so that equal sets are equal values."""


LARGEST_BROKER = (1 << 16) - 1

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


def find_covering_tag(tags: Iterable[Tag], path: Path, newcomers: BrokerNumber) -> Tag | None:
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
        covering = [other for other in new if covers((other,), tag.path)]
        if covering:
            beyond = tag.beyond and any(other.beyond for other in covering)
            yield Tag(tag.path, tag.detector, tag.incarnation, tag.number, beyond)


def _select_entered(old: Region, new: Region, newcomers: BrokerNumber) -> Iterable[Tag]:
    """Yield the new tags behind an old tag's node: a part of that tag is still covered."""
    reaching = [tag for tag in old if tag.beyond]
    for other in new:
        joined = other.node >= newcomers and any(tag.node in other.path[:-1] for tag in old)
        if joined or covers(reaching, other.path):
            yield other


Cut = dict[SourceId, int]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The tags that replace `removed` tags, and the beginnings of streams from the other sources.

    Attributes:
        source_paths: home … source broker, for every broker with a source in the cut.
    """

    removed: Region
    added: Region
    cut: tuple[tuple[SourceId, int], ...]
    source_paths: tuple[Path, ...]

    @classmethod
    def of(cls, message: RecoveryNotifier) -> "Replacement":
        """Return the replacement in a notifier."""
        return cls(message.removed, message.added, message.cut, message.source_paths)


def replacement_for(
    tags: Region,
    peer: BrokerNumber,
    message: SubscriptionConfirmation,
    newcomers: BrokerNumber = NOBODY,
) -> Replacement | None:
    """Return the change of settled tags by a confirmation; None without a change.

    A restarted broker may confirm again with larger tags than before: these are ignored.
    """
    removed = select_tags_under(tags, peer)
    if not removed:
        return None
    added = intersect(removed, message.tags, newcomers=newcomers)
    if includes(added, removed):
        return None
    return Replacement(removed, added, message.cut, message.source_paths)


def replace_tags(
    tags: Region,
    cut: Cut,
    replacement: Replacement,
    newcomers: BrokerNumber = NOBODY,
) -> tuple[Region, Region]:
    """Return the rest of `tags`, and the touched tags; raise `cut` for the touched tags.

    The cut of an open source must not rise: that would cause a gap in a stream.
    """
    touched = tuple(tag for tag in tags if includes(replacement.removed, (tag,)))
    raise_covered_cut(cut, touched, replacement.cut, replacement.source_paths, newcomers)
    left = [tag for tag in tags if tag not in touched]
    kept = intersect(touched, replacement.added, newcomers=newcomers)
    return region([*left, *kept]), touched


def refine(
    replacement: Replacement,
    earlier: Iterable[Replacement],
    newcomers: BrokerNumber = NOBODY,
) -> Replacement:
    """Return the replacement without tags that earlier replacements have removed.

    The emitter may lack the earlier replacements, if they have passed it.
    """
    added, cut = replacement.added, dict(replacement.cut)
    paths = {path[-1]: path for path in replacement.source_paths}
    for each in earlier:
        added, touched = replace_tags(added, cut, each, newcomers)
        covered_paths = [path for path in each.source_paths if covers(touched, path, newcomers)]
        paths.update((path[-1], path) for path in covered_paths)
    return Replacement(replacement.removed, added, tuple(cut.items()), tuple(paths.values()))


def raise_cut(cut: Cut, other: Iterable[tuple[SourceId, int]]) -> None:
    """Raise `cut` to the maximum of both, source by source."""
    for source, sequence in other:
        if sequence > cut.get(source, 0):
            cut[source] = sequence


def raise_covered_cut(
    cut: Cut,
    tags: Region,
    other: Iterable[tuple[SourceId, int]],
    source_paths: Iterable[Path],
    newcomers: BrokerNumber,
) -> None:
    """Raise `cut` to the maximum of both for the sources that `tags` cover."""
    if not tags:
        return
    covered = {path[-1]: covers(tags, path, newcomers) for path in source_paths}
    raise_cut(cut, [item for item in other if covered[item[0].broker]])


# ---------------------------------------------------------------- paths


def is_plain_path(path: Path) -> bool:
    """Return True if the numbers can be brokers, without repetition."""
    return len(set(path)) == len(path) and all(0 <= broker <= LARGEST_BROKER for broker in path)


def join_paths(home_to_here: Path, here_to_peer: Path) -> Path:
    """Return the primary path from a home broker to a peer, given both paths through this broker.

    If both paths share links, the primary path branches off before it gets here.
    """
    shared = 0
    limit = min(len(home_to_here), len(here_to_peer))
    while shared + 1 < limit and home_to_here[-2 - shared] == here_to_peer[shared + 1]:
        shared += 1
    return home_to_here[: len(home_to_here) - shared] + here_to_peer[shared + 1 :]


def path_distance(one: Path, other: Path) -> int:
    """Return the number of links between the ends of two paths from the same broker."""
    shared = 0
    for here, there in zip(one, other, strict=False):
        if here != there:
            break
        shared += 1
    return len(one) + len(other) - 2 * shared
