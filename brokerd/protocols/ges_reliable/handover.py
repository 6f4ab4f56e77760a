"""Handovers of subscriptions to a successor storage: the storage of the client's present unit.

A tree handover moves a subscription to a storage of another tree, with other epochs. Any two roots
have the same publications of a publisher, in the same order and without a gap. So everything
through an epoch of a root corresponds, for another root, to a sequence number of every publisher.
The first storage sends everything through an epoch at which its root has whatever the other root
had when the subscription had begun there. The successor storage sends everything after that, except
for publications that its root had not had by then and the first root had.

Paper: [GES] §4 (a finer storage takes over the clients of its unit; roaming clients). Deviates: the
paper defines no move between trees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.ges_reliable.fetches import EpochFetches, StoredSubscription
from brokerd.protocols.ges_reliable.messages import Begun, Key, Wish
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.requests import SubscriptionRequests
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine


class Handovers:
    """The handovers of an access broker's subscriptions to successor storages.

    A subscription begins at its successor first, and ends at the old storage when its client has
    acknowledged everything before; so wherever the client reconnects, one of the two storages has
    the rest. A subscription has a single successor at a time, which has none itself before the
    first storage has confirmed the end.

    Args:
        servicing: the storage of this broker's unit.
        roots: by storage, the root of its epochs.
    """

    def __init__(
        self,
        changes: SubscriptionRequests,
        servicing: BrokerNumber,
        roots: Mapping[BrokerNumber, BrokerNumber],
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
    ) -> None:
        self._changes = changes
        self._servicing, self._roots = servicing, roots
        self._changes_root = parameters.changes_root
        self._unknown: list[tuple[StoredSubscription, int | None]] = []
        self._pending_ends: dict[Key, StoredSubscription] = {}
        self.crossings = TreeHandovers(changes, machine, deadlines, parameters.timeout_ns)

    def use(self, following: EpochFetches) -> None:
        """Take the part that fetches for clients."""
        self._following = following
        self.crossings.use(following)

    def change(self, servicing: BrokerNumber, roots: Mapping[BrokerNumber, BrokerNumber]) -> None:
        """Take another servicing storage and other roots; see the class."""
        self._servicing, self._roots = servicing, roots
        waiting, self._unknown = self._unknown, []
        for local, until in waiting:
            if not local.is_over:
                self.hand_over(local, local.heir, until)

    def had_at(self, storage: BrokerNumber, brought: Mapping[BrokerNumber, int]) -> int | None:
        """Return a client's position in the epochs of a storage; None without a report.

        A position of a successor in the same tree is after everything before.
        """
        root = self._roots.get(storage)
        return max(
            (had for each, had in brought.items() if self._roots.get(each, each) == root),
            default=None,
        )

    def hand_over(
        self, local: StoredSubscription, heir: BrokerNumber | None = None, until: int | None = None
    ) -> None:
        """Hand a subscription over to the storage of this broker's unit.

        Args:
            heir: an earlier successor, which takes over first.
            until: with a successor in another tree, the settled last epoch, if any.
        """
        first = local.storage
        assert first is not None, f"{local} is stored nowhere"
        if heir is not None:
            local.heir, local.until = heir, until
            if heir not in self._roots:
                self._unknown.append((local, until))  # this broker receives it shortly
            elif self._are_one_tree(first, heir):
                self._begin_at_heir(local)
            elif until is not None:
                self._take_up(local)
            else:
                self._cross(local)
        elif first != self._servicing and not local.settles and self._may_leave(first):
            local.heir = self._servicing
            wish = Wish(local.key, local.generation, local.predicate, heir=local.heir)
            self._changes.tell(first, wish, lambda begun: self._on_heir(local, begun))

    def _may_leave(self, storage: BrokerNumber) -> bool:
        return self._changes_root or self._are_one_tree(storage, self._servicing)

    def _are_one_tree(self, one: BrokerNumber, other: BrokerNumber) -> bool:
        return self._roots.get(one, one) == self._roots.get(other, other)

    def _on_heir(self, local: StoredSubscription, begun: Begun) -> None:
        """Continue a handover after the present storage has recorded the successor."""
        if local.is_over or begun.after is None:
            return
        assert local.storage is not None, f"{local} is stored nowhere"
        assert local.heir is not None, f"{local} stays"
        if self._are_one_tree(local.storage, local.heir):
            self._begin_at_heir(local)
        else:
            self._cross(local)

    def _begin_at_heir(self, local: StoredSubscription) -> None:
        assert local.heir is not None, f"{local} stays"

        def begun(answer: Begun) -> None:
            if local.is_over or answer.after is None:
                return
            local.until = max(answer.after, local.handed)
            self._following.leave(local, lambda: self._go_on(local))

        about = local.key, local.generation, local.predicate
        wish = Wish(*about, before=local.storage, had_of=local.had_of or None)
        self._changes.tell(local.heir, wish, begun)

    def _cross(self, local: StoredSubscription) -> None:
        assert local.storage is not None, f"{local} is stored nowhere"
        assert local.heir is not None, f"{local} stays"
        roots = self._roots[local.storage], self._roots[local.heir]
        self.crossings.cross(local, *roots, lambda: self._go_on(local))

    def _take_up(self, local: StoredSubscription) -> None:
        """Resume a handover to another tree after its last epoch was settled."""
        assert local.heir is not None, f"{local} stays"

        def begun(answer: Begun) -> None:
            if not local.is_over and answer.after is not None:
                local.onward = answer.after, answer.had_of
                self._following.leave(local, lambda: self._go_on(local))

        had = self.had_at(local.heir, local.brought)
        wish = Wish(local.key, local.generation, local.predicate, had, claims=True)
        self._changes.tell(local.heir, wish, begun)

    def _go_on(self, local: StoredSubscription) -> None:
        """Switch to the successor storage after the client has acknowledged everything before."""
        before, heir, after = local.storage, local.heir, local.until
        assert before is not None, f"{local} is stored nowhere"
        assert heir is not None, f"{local} stays"
        assert after is not None, f"{local} has not begun at {heir}"
        self._following.stop(local)
        told = 0
        if local.onward is not None:
            (after, local.had_of), local.onward = local.onward, None
            told = after
        local.storage, local.heir, local.until = heir, None, None
        local.earlier.append(before)
        self._following.begin(local, after, told=told)
        local.settles = True

        def settled(_: Begun) -> None:
            local.settles = False
            if not local.is_over:
                self.settle(local)
                self.hand_over(local)

        wish = Wish(local.key, local.generation, None, heir=heir)
        self._changes.tell(before, wish, settled)

    def settle(self, local: StoredSubscription) -> None:
        """Notify a subscription's storage that the previous storage has confirmed the end."""
        assert local.storage is not None, f"{local} is stored nowhere"
        about = local.key, local.generation, local.predicate
        wish = Wish(*about, claims=True, before=local.storage)
        self._changes.tell(local.storage, wish, lambda begun: None)

    def add_pending_end(self, local: StoredSubscription) -> None:
        """Record the end of a subscription without an answer yet; `on_begun_over` follows."""
        self._pending_ends[local.key] = local

    def is_pending_end(self, local: StoredSubscription) -> bool:
        """Return True for an unsubscribed subscription that storages may still have."""
        return self._pending_ends.get(local.key) is local

    def drop_pending_end(self, key: Key) -> None:
        """Drop the end of a subscription.

        A new subscription with the same key takes over its state at the storages. The storages
        cannot distinguish the two, and a later end would remove the new subscription.
        """
        self._pending_ends.pop(key, None)

    def on_begun_over(self, local: StoredSubscription, begun: Begun) -> None:
        """Take an answer about a closed subscription, and end it unless its end was dropped.

        Follows successors until one has the subscription.
        """
        if not self.is_pending_end(local):
            ended, local.ended = local.ended, None
            if ended is not None:
                ended()
            return
        heir = begun.heir if begun.after is None else None
        if heir is None or local.storage is None:
            self.drop_pending_end(local.key)
            self.end(local, begun)
            return
        local.earlier.append(local.storage)
        local.storage = heir
        asked = Wish(local.key, local.generation, local.predicate, claims=True)
        self._changes.tell(heir, asked, partial(self.on_begun_over, local))

    def end(self, local: StoredSubscription, begun: Begun) -> None:
        """End a subscription at its storage and its successor.

        A storage that has not confirmed the handover is awaited, too: with the client's next
        attachment in between, no broker would end the subscription there otherwise.

        Args:
            begun: the last answer about the subscription.
        """
        ended, local.ended = local.ended, None
        if ended is None or local.storage is None:
            return
        wish = Wish(local.key, local.generation, None)
        more = [begun.before] if begun.before not in (None, local.storage) else []
        more += local.earlier[-1:] if local.settles else []
        there = [local.storage, *([] if begun.heir is None else [begun.heir]), *more]
        over_there = after_all(len(there), ended)
        for storage in there:
            self._changes.tell(storage, wish, over_there)
        for storage in dict.fromkeys(local.earlier):
            if storage not in there:
                self._changes.tell(storage, wish, lambda begun: None)


def after_all(count: int, then: Callable[[], None]) -> Callable[..., None]:
    """Return a callback that calls `then` when called this often, with any arguments."""
    left = [count]

    def one(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            then()

    return one


CROSSING: Final = "crossing"
"""Purpose of the deadline at which a root is asked again for its epoch."""


@dataclass(slots=True, eq=False)
class TreeHandover:
    """The tree handover of a subscription.

    Attributes:
        first_root, next_root: of the present storage, and of the successor storage.
        after: the epoch after which the subscription continues at the successor.
        there: per source, the last number through that epoch.
        then: called once the client has acknowledged everything before.
    """

    local: StoredSubscription
    first_root: BrokerNumber
    next_root: BrokerNumber
    then: Callable[[], None]
    after: int = 0
    there: Mapping[SourceId, int] = field(default_factory=dict)


class TreeHandovers:
    """The tree handovers at an access broker.

    Args:
        wait_ns: the wait before a root that is behind is asked again.

    Attributes:
        waited: the number of these waits.
    """

    def __init__(
        self,
        changes: SubscriptionRequests,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        wait_ns: int,
    ) -> None:
        self._changes = changes
        self._machine = machine
        self._deadlines = deadlines
        self._wait_ns = wait_ns
        self._waiting: dict[BrokerNumber, list[TreeHandover]] = {}
        self.waited = 0

    def use(self, following: EpochFetches) -> None:
        """Take the part that fetches for clients."""
        self._following = following

    def cross(
        self,
        local: StoredSubscription,
        first_root: BrokerNumber,
        next_root: BrokerNumber,
        then: Callable[[], None],
    ) -> None:
        """Begin a subscription at its successor; its storage has been notified of the successor.

        A repeated handover, here or elsewhere, uses the later of two epochs. Nothing from the
        successor is delivered before the last requests are durable at both storages.
        """
        crossing = TreeHandover(local, first_root, next_root, then)
        self._tell_heir(crossing, lambda begun: self._look(next_root, crossing, self._on_next))

    def due(self, root: BrokerNumber) -> None:
        """Ask a root again that was behind a while ago."""
        for crossing in self._waiting.pop(root, []):
            if not crossing.local.is_over:
                self._look(root, crossing, self._on_first)

    def _tell_heir(
        self, crossing: TreeHandover, then: Callable[[Begun], None], **more: Any
    ) -> None:
        local = crossing.local
        assert local.heir is not None, f"{local} stays"
        about = local.key, local.generation, local.predicate
        wish = Wish(*about, before=local.storage, **more)
        self._changes.tell(local.heir, wish, _unless_over(local, then))

    def _look(
        self,
        root: BrokerNumber,
        crossing: TreeHandover,
        then: Callable[[TreeHandover, Begun], None],
    ) -> None:
        local = crossing.local
        wish = Wish(local.key, local.generation, None, looks=True)
        self._changes.tell(root, wish, _unless_over(local, lambda begun: then(crossing, begun)))

    def _on_next(self, crossing: TreeHandover, looked: Begun) -> None:
        """Record the epoch of the successor's root; the successor sends everything after it."""
        assert looked.after is not None, f"a root is nowhere: {looked}"
        crossing.after, crossing.there = looked.after, dict(looked.had_of)
        self._look(crossing.first_root, crossing, self._on_first)

    def _on_first(self, crossing: TreeHandover, looked: Begun) -> None:
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

    def _cut(self, crossing: TreeHandover, until: int, here: Mapping[SourceId, int]) -> None:
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


def _unless_over(
    local: StoredSubscription, then: Callable[[Begun], None]
) -> Callable[[Begun], None]:
    """Return a callback that calls `then` while a subscription is neither closed nor elsewhere."""

    def answered(begun: Begun) -> None:
        if not local.is_over and begun.after is not None:
            then(begun)

    return answered
