"""Handovers of subscriptions to a successor storage: the storage of the client's present unit.

Paper: [GES] §4 (a finer storage takes over the clients of its unit; roaming clients).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.ges_reliable.changes import Changes
from brokerd.protocols.ges_reliable.crossing import Crossings
from brokerd.protocols.ges_reliable.following import Followed, Following
from brokerd.protocols.ges_reliable.messages import Begun, Key, Wish
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine


class Heirs:
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
        changes: Changes,
        servicing: BrokerNumber,
        roots: Mapping[BrokerNumber, BrokerNumber],
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
    ) -> None:
        self._changes = changes
        self._servicing, self._roots = servicing, roots
        self._changes_root = parameters.changes_root
        self._unknown: list[tuple[Followed, int | None]] = []
        self._pending_ends: dict[Key, Followed] = {}
        self.crossings = Crossings(changes, machine, deadlines, parameters.timeout_ns)

    def use(self, following: Following) -> None:
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
        self, local: Followed, heir: BrokerNumber | None = None, until: int | None = None
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

    def _on_heir(self, local: Followed, begun: Begun) -> None:
        """Continue a handover after the present storage has recorded the successor."""
        if local.is_over or begun.after is None:
            return
        assert local.storage is not None, f"{local} is stored nowhere"
        assert local.heir is not None, f"{local} stays"
        if self._are_one_tree(local.storage, local.heir):
            self._begin_at_heir(local)
        else:
            self._cross(local)

    def _begin_at_heir(self, local: Followed) -> None:
        assert local.heir is not None, f"{local} stays"

        def begun(answer: Begun) -> None:
            if local.is_over or answer.after is None:
                return
            local.until = max(answer.after, local.handed)
            self._following.leave(local, lambda: self._go_on(local))

        about = local.key, local.generation, local.predicate
        wish = Wish(*about, before=local.storage, had_of=local.had_of or None)
        self._changes.tell(local.heir, wish, begun)

    def _cross(self, local: Followed) -> None:
        assert local.storage is not None, f"{local} is stored nowhere"
        assert local.heir is not None, f"{local} stays"
        roots = self._roots[local.storage], self._roots[local.heir]
        self.crossings.cross(local, *roots, lambda: self._go_on(local))

    def _take_up(self, local: Followed) -> None:
        """Resume a handover to another tree after its last epoch was settled."""
        assert local.heir is not None, f"{local} stays"

        def begun(answer: Begun) -> None:
            if not local.is_over and answer.after is not None:
                local.onward = answer.after, answer.had_of
                self._following.leave(local, lambda: self._go_on(local))

        had = self.had_at(local.heir, local.brought)
        wish = Wish(local.key, local.generation, local.predicate, had, claims=True)
        self._changes.tell(local.heir, wish, begun)

    def _go_on(self, local: Followed) -> None:
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

    def settle(self, local: Followed) -> None:
        """Notify a subscription's storage that the previous storage has confirmed the end."""
        assert local.storage is not None, f"{local} is stored nowhere"
        about = local.key, local.generation, local.predicate
        wish = Wish(*about, claims=True, before=local.storage)
        self._changes.tell(local.storage, wish, lambda begun: None)

    def add_pending_end(self, local: Followed) -> None:
        """Record the end of a subscription without an answer yet; `on_begun_over` follows."""
        self._pending_ends[local.key] = local

    def is_pending_end(self, local: Followed) -> bool:
        """Return True for an unsubscribed subscription that storages may still have."""
        return self._pending_ends.get(local.key) is local

    def drop_pending_end(self, key: Key) -> None:
        """Drop the end of a subscription.

        A new subscription with the same key takes over its state at the storages. The storages
        cannot distinguish the two, and a later end would remove the new subscription.
        """
        self._pending_ends.pop(key, None)

    def on_begun_over(self, local: Followed, begun: Begun) -> None:
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

    def end(self, local: Followed, begun: Begun) -> None:
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
