"""A subscription goes on at another storage: that of the unit its client has come to.

Paper: [GES] §4 (a finer storage takes over the clients of its unit; roaming clients).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.ges_reliable.changes import Changes
from brokerd.protocols.ges_reliable.crossing import Crossings
from brokerd.protocols.ges_reliable.following import Followed, Following
from brokerd.protocols.ges_reliable.messages import Begun, Wish
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine


class Heirs:
    """Hands subscriptions of one home over, from where they are stored for to their heirs.

    One begins at its heir first, and ends where it was when its client is done with what is before;
    so wherever its client comes next, one of the two has the rest. It has one heir at a time: none
    that goes on elsewhere itself before the first one knows that this is over.

    Args:
        servicing: the storage of this broker's unit.
        roots: by storage, the root whose epochs it has.
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
        self.crossings = Crossings(changes, machine, deadlines, parameters.timeout_ns)

    def use(self, following: Following) -> None:
        """Have this fetch for clients."""
        self._following = following
        self.crossings.use(following)

    def change(self, servicing: BrokerNumber, roots: Mapping[BrokerNumber, BrokerNumber]) -> None:
        """Another storage may be that of this broker's unit from now on; see the class."""
        self._servicing, self._roots = servicing, roots
        waiting, self._unknown = self._unknown, []
        for local, until in waiting:
            if not local.is_over:
                self.hand_over(local, local.heir, until)

    def had_at(self, storage: BrokerNumber, brought: Mapping[BrokerNumber, int]) -> int | None:
        """How far a client has come by the epochs of a storage; None if it does not say.

        What came of its heirs in the same tree came behind all that is before.
        """
        root = self._roots.get(storage)
        return max(
            (had for each, had in brought.items() if self._roots.get(each, each) == root),
            default=None,
        )

    def hand_over(
        self, local: Followed, heir: BrokerNumber | None = None, until: int | None = None
    ) -> None:
        """Have a subscription go on at the storage of this broker's unit.

        Args:
            heir: where it was to go before it came here; it goes there first.
            until: if that is in another tree, behind which epoch, as far as that was settled.
        """
        first = local.storage
        assert first is not None, f"{local} is stored nowhere"
        if heir is not None:
            local.heir, local.until = heir, until
            if heir not in self._roots:
                self._unknown.append((local, until))  # this home is about to be told
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
        """Where it is stored for they know of its heir."""
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
        """Its heir has begun in another tree, and where it ends here is settled."""
        assert local.heir is not None, f"{local} stays"

        def begun(answer: Begun) -> None:
            if not local.is_over and answer.after is not None:
                local.onward = answer.after, answer.had_of
                self._following.leave(local, lambda: self._go_on(local))

        had = self.had_at(local.heir, local.brought)
        wish = Wish(local.key, local.generation, local.predicate, had, claims=True)
        self._changes.tell(local.heir, wish, begun)

    def _go_on(self, local: Followed) -> None:
        """Its client is done with what is before: all that follows comes of the heir."""
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
        """Tell where a subscription is that whoever had it before knows that it is over there."""
        assert local.storage is not None, f"{local} is stored nowhere"
        about = local.key, local.generation, local.predicate
        wish = Wish(*about, claims=True, before=local.storage)
        self._changes.tell(local.storage, wish, lambda begun: None)

    def end(self, local: Followed, begun: Begun) -> None:
        """Of one that is over, tell its storage, and its heir; who has handed it over says whom.

        Whoever has not confirmed that it went on is waited for, too: who came with the next stay
        of its client before that would have nobody say that it is over there.

        Args:
            begun: what is known of where it is.
        """
        ended, local.ended = local.ended, None
        if ended is None or local.storage is None:
            return
        wish = Wish(local.key, local.generation, None)
        if begun.after is None and begun.heir is not None:
            local.earlier.append(local.storage)
            local.storage, local.ended = begun.heir, ended
            asked = Wish(local.key, local.generation, local.predicate, claims=True)
            self._changes.tell(begun.heir, asked, partial(self.end, local))
            return
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
    """What does `then` when it was called so often, with whatever."""
    left = [count]

    def one(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            then()

    return one
