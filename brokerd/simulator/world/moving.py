"""Clients that move to another broker in a simulation, step by step as the client library does.

What was published is done first. Then the client attaches to the new broker and subscribes to
the same there; when all has started, the old broker delivers what it has, behind a last
subscription that marks the moment, and is left. Only then is given on what the new broker has
sent. Where the old broker cannot be reached at that time, the client goes on without it; what
the old broker still keeps it gives up when it is reached again, as if its linger were over.
"""

from collections.abc import Callable

from brokerd.simulator.world.clients import SimulatedClient


class ClientMove:
    """One client on its way.

    Args:
        make_successor: the same client at the new broker, which dials.
        on_drain: called when the old broker is about to be asked for the rest.
        on_over: called once, when the old broker has been left and before anything that the
            new one has sent is given on: the old client, the new one, and whether the old
            broker has delivered all it had.
        on_arrived: called once, behind all that.

    Attributes:
        old: the client at its old broker.
        new: the client at its new one, as soon as it is there.
        is_over: nothing is left to be done.
    """

    def __init__(
        self,
        old: SimulatedClient,
        make_successor: Callable[[SimulatedClient], SimulatedClient],
        on_drain: Callable[[], None],
        on_over: Callable[[SimulatedClient, SimulatedClient, bool], None],
        on_arrived: Callable[[], None],
    ) -> None:
        self.old = old
        self.new: SimulatedClient | None = None
        self.is_over = False
        self._make_successor = make_successor
        self._on_drain = on_drain
        self._on_over = on_over
        self._on_arrived = on_arrived
        self._attached = False
        self._marked_by = 0
        self._drains = False
        old.on_change = self.advance

    def advance(self) -> None:
        """Take every step that can be taken now."""
        old = self.old
        if self.is_over or old.core.outstanding:
            return
        if self.new is None:
            self.new = self._make_successor(old)
            self.new.on_change = self.advance
        new = self.new
        self._attached = self._attached or new.core.attached
        subscriptions = new.core.subscriptions
        if not self._attached or any(n not in new.started_numbers for n in subscriptions):
            return
        if old.detached or not old.core.attached:
            self._go_on_without(old, new)
            return
        if self._marked_by and self._marked_by not in old.core.subscriptions:
            self._marked_by = 0  # it was refused
        if old.core.subscriptions and not self._marked_by:
            self._marked_by = old.mark()
        if not self._drains and (not self._marked_by or self._marked_by in old.started_numbers):
            self._drains = True
            self._on_drain()
            old.detach(drain=True)

    def _go_on_without(self, old: SimulatedClient, new: SimulatedClient) -> None:
        self.is_over = True
        self._on_over(old, new, old.detached)
        new.take_over(old)
        if not old.detached:
            old.detach()
        self._on_arrived()
