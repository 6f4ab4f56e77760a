"""What a client tells its application while it works, and why it cannot go on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brokerd.client.events import GapAnnounced
from brokerd.errors import BrokerError
from brokerd.model.client_messages import Deliveries, Notice


class ClientError(BrokerError):
    """The client cannot go on: refused, superseded by another of its name, or at odds."""


class BrokerUnreachable(ClientError):
    """The broker has not been reachable for `unreachable_after_s`.

    The client loses nothing and keeps on trying. A call that is repeated waits again.
    """


def nothing(*_: Any) -> None:
    """What is told to nobody."""


@dataclass(slots=True)
class Callbacks:
    """Called at once and in order while the client works; they must return quickly.

    Attributes:
        on_acknowledged: (first, last): all publications in this range are done, once each.
        on_withheld: publications the duplicate check kept from the application.
        on_notice: matching publications that a partition keeps from a subscription, in order
            with what `receive` returns; the source is heard later, from some publication on.
        on_gap: matching publications that a subscription does not get, now or ever, and why; in
            order with what `receive` returns.
        on_session: (what, details): "attached" with source and broker_incarnation, "lost" with
            a reason, "failed" with why an attempt came to nothing and at which address, "moved"
            with the address of the new broker and the new source, in place of "attached".
        on_subscription: (number, state).
        on_refused: (request, number, reason): the broker will not do this.
    """

    on_acknowledged: Callable[[int, int], None] = nothing
    on_withheld: Callable[[Deliveries], None] = nothing
    on_notice: Callable[[Notice], None] = nothing
    on_gap: Callable[[GapAnnounced], None] = nothing
    on_session: Callable[[str, Mapping[str, Any]], None] = nothing
    on_subscription: Callable[[int, str], None] = nothing
    on_refused: Callable[[str, int, str], None] = nothing
