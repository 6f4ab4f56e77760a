"""Callbacks from a client to its application, and the errors that end a client."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brokerd.client.events import GapAnnounced
from brokerd.errors import BrokerError
from brokerd.model.client_messages import Deliveries, Notice


class ClientError(BrokerError):
    """The end of a client: refused, superseded by another client of its name, or at odds."""


class BrokerUnreachable(ClientError):
    """A broker that has not been reachable for `unreachable_after_s`.

    The client loses nothing and continues to try. A repeated call waits again.

    Attributes:
        cause: the client, the time, and the reason of the last failed attempt.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause}; it keeps on trying, and the call may be repeated")
        self.cause = cause


def ignore(*_: Any) -> None:
    """Ignore a call."""


@dataclass(slots=True)
class Callbacks:
    """Callbacks, called at once and in order while the client works; they must return quickly.

    Attributes:
        on_acknowledged: (first, last): all publications in this range are acknowledged, each once.
        on_withheld: publications that the duplicate check kept from the application.
        on_notice: matching publications that a partition withholds from a subscription, in order
            with the results of `receive`; the source is received later, from some publication on.
        on_gap: matching publications that a subscription will never receive, with the reason; in
            order with the results of `receive`.
        on_session: (event, details): "attached" with source and broker_incarnation, "lost" with a
            reason, "failed" with the reason of a failed attempt and its address, "moved" with the
            address of the new broker and the new source, in place of "attached".
        on_subscription: (number, state).
        on_refused: (request, number, reason): the broker refuses the request for good.
    """

    on_acknowledged: Callable[[int, int], None] = ignore
    on_withheld: Callable[[Deliveries], None] = ignore
    on_notice: Callable[[Notice], None] = ignore
    on_gap: Callable[[GapAnnounced], None] = ignore
    on_session: Callable[[str, Mapping[str, Any]], None] = ignore
    on_subscription: Callable[[int, str], None] = ignore
    on_refused: Callable[[str, int, str], None] = ignore
