"""Moves of simulated clients to another broker, step by step as in the client library.

Earlier publications complete first. Then the client attaches to the new broker and repeats its
subscriptions there. After all have started, the old broker delivers its remaining publications, up
to a last subscription that marks the moment, and the client detaches from the old broker. Only then
the deliveries of the new broker reach the application. If the old broker is unreachable at this
time, the client continues without the remaining publications, and the old broker releases them at
the next contact, as after its linger.
"""

from collections.abc import Callable

from brokerd.simulator.world.clients import SimulatedClient


class ClientMove:
    """The move of one client.

    Args:
        make_successor: creates the same client at the new broker, which dials.
        on_drain: called before the request for the remaining publications of the old broker.
        on_over: called once, after the detachment from the old broker and before any delivery of
            the new broker reaches the application, with the old client, the new client, and True if
            the old broker has delivered everything.
        on_arrived: called once, after the move.

    Attributes:
        old: the client at its old broker.
        new: the client at its new broker, once created.
        is_over: the move is complete.
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
        """Perform every step that is possible now."""
        old = self.old
        if self.is_over or len(old.core.outgoing):
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
            self._continue_without(old, new)
            return
        if self._marked_by and self._marked_by not in old.core.subscriptions:
            self._marked_by = 0  # the marker was refused
        if old.core.subscriptions and not self._marked_by:
            self._marked_by = old.mark()
        if not self._drains and (not self._marked_by or self._marked_by in old.started_numbers):
            self._drains = True
            self._on_drain()
            old.detach(drain=True, through=new.core.start_positions())

    def _continue_without(self, old: SimulatedClient, new: SimulatedClient) -> None:
        self.is_over = True
        self._on_over(old, new, old.detached)
        new.take_over(old)
        if not old.detached:
            old.detach()
        self._on_arrived()
