"""A subscription goes on at another storage of its tree: that of the unit its client has come to.

Paper: [GES] §4 (a finer storage takes over the clients of its unit).
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.ges_reliable.changes import Changes
from brokerd.protocols.ges_reliable.following import Followed, Following
from brokerd.protocols.ges_reliable.messages import Begun, Wish


class Heirs:
    """Hands subscriptions of one home over, from where they are stored for to their heirs.

    Both have the same epochs. One begins at its heir first, and ends where it was when its client
    is done with what is before; so wherever its client comes next, one of the two has the rest.

    Args:
        servicing: the storage of this broker's unit.
        tree: those that have the same epochs as that one.
    """

    def __init__(
        self, changes: Changes, servicing: BrokerNumber, tree: Collection[BrokerNumber]
    ) -> None:
        self._changes = changes
        self._servicing, self._tree = servicing, tree

    def use(self, following: Following) -> None:
        """Have this fetch for clients."""
        self._following = following

    def change(self, servicing: BrokerNumber, tree: Collection[BrokerNumber]) -> None:
        """Another storage may be that of this broker's unit from now on; see the class."""
        self._servicing, self._tree = servicing, tree

    def hand_over(self, local: Followed, heir: BrokerNumber | None = None) -> None:
        """Have a subscription go on at the storage of this broker's unit.

        Args:
            heir: where it was to go before it came here; it goes there first.
        """
        first = local.storage
        assert first is not None, f"{local} is stored nowhere"
        if heir is not None:
            local.heir = heir
            self._begin_at_heir(local)
        elif first != self._servicing and first in self._tree:
            local.heir = self._servicing
            wish = Wish(local.key, local.generation, local.predicate, heir=local.heir)
            self._changes.tell(first, wish, lambda begun: self._on_heir(local, begun))

    def _on_heir(self, local: Followed, begun: Begun) -> None:
        """Where it is stored for they know of its heir."""
        if not local.is_over and begun.after is not None:
            self._begin_at_heir(local)

    def _begin_at_heir(self, local: Followed) -> None:
        assert local.heir is not None, f"{local} stays"

        def begun(answer: Begun) -> None:
            if local.is_over or answer.after is None:
                return
            local.until = max(answer.after, local.handed)
            self._following.leave(local, lambda: self._go_on(local))

        wish = Wish(local.key, local.generation, local.predicate)
        self._changes.tell(local.heir, wish, begun)

    def _go_on(self, local: Followed) -> None:
        """Its client is done with what is before: all that follows comes of the heir."""
        before, heir, after = local.storage, local.heir, local.until
        assert before is not None, f"{local} is stored nowhere"
        assert heir is not None, f"{local} stays"
        assert after is not None, f"{local} has not begun at {heir}"
        self._following.stop(local)
        local.storage, local.heir, local.until = heir, None, None
        local.earlier.append(before)
        self._following.begin(local, after, told=0)
        wish = Wish(local.key, local.generation, None, heir=heir)
        self._changes.tell(before, wish, lambda begun: None)
        self.hand_over(local)

    def end(self, local: Followed, begun: Begun) -> None:
        """Of one that is over, tell its storage, and its heir; who has handed it over says whom.

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
        there = [local.storage, *([] if begun.heir is None else [begun.heir])]
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
