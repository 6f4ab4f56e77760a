"""Tree handovers: moves of subscriptions to a storage of another tree, with other epochs.

Any two roots have the same publications of a publisher, in the same order and without a gap. So
everything through an epoch of a root corresponds, for another root, to a sequence number of every
publisher. The first storage sends everything through an epoch at which its root has whatever the
other root had when the subscription had begun there. The successor storage sends everything after
that, except for publications that its root had not had by then and the first root had.

Paper: [GES] §4 (roaming clients). Deviates: the paper defines no move from storage to storage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.ges_reliable.changes import Changes
from brokerd.protocols.ges_reliable.following import Followed, Following
from brokerd.protocols.ges_reliable.messages import Begun, Wish
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

CROSSING: Final = "crossing"
"""Purpose of the deadline at which a root is asked again for its epoch."""


@dataclass(slots=True, eq=False)
class Crossing:
    """The tree handover of a subscription.

    Attributes:
        first_root, next_root: of the present storage, and of the successor storage.
        after: the epoch after which the subscription continues at the successor.
        there: per source, the last number through that epoch.
        then: called once the client has acknowledged everything before.
    """

    local: Followed
    first_root: BrokerNumber
    next_root: BrokerNumber
    then: Callable[[], None]
    after: int = 0
    there: Mapping[SourceId, int] = field(default_factory=dict)


class Crossings:
    """The tree handovers at an access broker.

    Args:
        wait_ns: the wait before a root that is behind is asked again.

    Attributes:
        waited: the number of these waits.
    """

    def __init__(
        self, changes: Changes, machine: EventMachine, deadlines: DeadlineQueue[Any], wait_ns: int
    ) -> None:
        self._changes = changes
        self._machine = machine
        self._deadlines = deadlines
        self._wait_ns = wait_ns
        self._waiting: dict[BrokerNumber, list[Crossing]] = {}
        self.waited = 0

    def use(self, following: Following) -> None:
        """Take the part that fetches for clients."""
        self._following = following

    def cross(
        self,
        local: Followed,
        first_root: BrokerNumber,
        next_root: BrokerNumber,
        then: Callable[[], None],
    ) -> None:
        """Begin a subscription at its successor; its storage has been notified of the successor.

        A repeated handover, here or elsewhere, uses the later of two epochs. Nothing from the
        successor is delivered before the last requests are durable at both storages.
        """
        crossing = Crossing(local, first_root, next_root, then)
        self._tell_heir(crossing, lambda begun: self._look(next_root, crossing, self._on_next))

    def due(self, root: BrokerNumber) -> None:
        """Ask a root again that was behind a while ago."""
        for crossing in self._waiting.pop(root, []):
            if not crossing.local.is_over:
                self._look(root, crossing, self._on_first)

    def _tell_heir(self, crossing: Crossing, then: Callable[[Begun], None], **more: Any) -> None:
        local = crossing.local
        assert local.heir is not None, f"{local} stays"
        about = local.key, local.generation, local.predicate
        wish = Wish(*about, before=local.storage, **more)
        self._changes.tell(local.heir, wish, _unless_over(local, then))

    def _look(
        self, root: BrokerNumber, crossing: Crossing, then: Callable[[Crossing, Begun], None]
    ) -> None:
        local = crossing.local
        wish = Wish(local.key, local.generation, None, looks=True)
        self._changes.tell(root, wish, _unless_over(local, lambda begun: then(crossing, begun)))

    def _on_next(self, crossing: Crossing, looked: Begun) -> None:
        """Record the epoch of the successor's root; the successor sends everything after it."""
        assert looked.after is not None, f"a root is nowhere: {looked}"
        crossing.after, crossing.there = looked.after, dict(looked.had_of)
        self._look(crossing.first_root, crossing, self._on_first)

    def _on_first(self, crossing: Crossing, looked: Begun) -> None:
        """Cut the subscription once the first root has everything that the successor's root has.

        Publications from an earlier tree count as present.
        """
        local, root, until = crossing.local, crossing.first_root, looked.after
        assert until is not None, f"a root is nowhere: {looked}"
        here = dict(looked.had_of)
        for source, last in local.had_of:
            here[source] = max(last, here.get(source, 0))
        if any(here.get(source, 0) < last for source, last in crossing.there.items()):
            self.waited += 1
            self._waiting.setdefault(root, []).append(crossing)
            if (CROSSING, root) not in self._deadlines:
                self._deadlines.set((CROSSING, root), self._machine.now_ns + self._wait_ns)
        elif local.handed > until:
            # More was given on since it said that: no more is, and it is asked again.
            self._following.stop(local)
            local.until = local.handed
            self._look(root, crossing, self._on_first)
        else:
            self._cut(crossing, until, here)

    def _cut(self, crossing: Crossing, until: int, here: Mapping[SourceId, int]) -> None:
        """Set the last epoch from the first storage; everything after it is the successor's."""
        local, there = crossing.local, crossing.there
        is_held, local.until = local.until is not None, until
        if is_held:
            self._following.begin(local, local.handed, told=local.told)
        ahead = ((source, last) for source, last in here.items() if last > there.get(source, 0))
        had_of = tuple(sorted(ahead))

        def begun(answer: Begun) -> None:
            assert answer.after is not None, f"{local} has not begun"
            assert local.storage is not None, f"{local} is stored nowhere"
            local.onward = answer.after, answer.had_of
            about = local.key, local.generation, local.predicate
            wish = Wish(*about, heir=local.heir, until=until)
            self._changes.tell(local.storage, wish, _unless_over(local, leave))

        def leave(_: Begun) -> None:
            self._following.leave(local, crossing.then)

        self._tell_heir(crossing, begun, had=crossing.after, had_of=had_of)


def _unless_over(local: Followed, then: Callable[[Begun], None]) -> Callable[[Begun], None]:
    """Return a callback that calls `then` while a subscription is neither closed nor elsewhere."""

    def answered(begun: Begun) -> None:
        if not local.is_over and begun.after is not None:
            then(begun)

    return answered
