"""The shrinking of the region that lacks a subscription.

A tagged broker returns and confirms. The broker that receives the confirmation removes the tags
under the returned broker, keeps the tags that the confirmation still names, and notifies all
brokers towards home. A notified broker reduces tags in the same way. Both ends intersect: the first
end may hold tags that notifiers went past, the other may receive a notifier from such a broker.

Paper: [DFT11] §VIII-A lines 859-900. Deviates: the paper adds the new tags unconditionally,
which closes open gates; per subscription, since tags and cut belong to a subscription.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.delta_tree.broker.state import Path
from brokerd.protocols.delta_tree.messages import RecoveryNotifier, SubscriptionConfirmation
from brokerd.protocols.delta_tree.partitions.regions import (
    NOBODY,
    Region,
    covers,
    includes,
    intersect,
    region,
    select_tags_under,
)

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

    The emitter may lack the earlier replacements, if they went past it.
    """
    added, cut = replacement.added, dict(replacement.cut)
    paths = {path[-1]: path for path in replacement.source_paths}
    for each in earlier:
        added, touched = replace_tags(added, cut, each, newcomers)
        heard = [path for path in each.source_paths if covers(touched, path, newcomers)]
        paths.update((path[-1], path) for path in heard)
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
    newcomers: BrokerNumber = NOBODY,
) -> None:
    """Raise `cut` to the maximum of both for the sources that `tags` cover."""
    if not tags:
        return
    covered = {path[-1]: covers(tags, path, newcomers) for path in source_paths}
    raise_cut(cut, [item for item in other if covered[item[0].broker]])
