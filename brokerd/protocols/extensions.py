"""Extensions of the interface: cores that list state for people, accept decommissions, or wrap.

A driver serves every `DeliveryProtocol`. With a core that has an extension, it offers the commands
of operators that belong to the extension.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.model.record import record
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.interface import DeliveryProtocol, Effect, Event, Instant, Record


@dataclass(frozen=True, slots=True)
class Farewell:
    """A broker's report about the decommission of another broker.

    Attributes:
        is_known: True if the decommission is in effect and on this broker's disk.
        refusals: reasons against the decommission, for people; empty if it is possible.
        losses: losses through the decommission that this broker can name, for people.
    """

    is_known: bool
    refusals: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()


class DecommissioningProtocol(DeliveryProtocol, Protocol):
    """A DeliveryProtocol that can continue without a decommissioned broker."""

    def farewell(self, broker: BrokerNumber) -> Farewell:
        """Return this broker's report about a decommission, before or after the act."""
        ...


@record
class SubscriptionState:
    """A subscription at its broker, for people.

    Attributes:
        number: of the subscription at its client.
        predicate: as text.
        mode: "live", "catching up" or "away"; "ending" until the end is durable.
        away_ns: the time since the client's last session or the broker's start; None with a
            session.
        behind_us: per stream, the time from the acknowledged position to the stream's, unless 0.
        behind_events: per such stream, the events that it lacks; None if earlier ones were matched
            elsewhere.
        acknowledged: per such stream, the tick of the acknowledged position.
        holds: the streams in which no subscription here has acknowledged less.
    """

    client: ClientId
    number: int
    predicate: str
    mode: str
    away_ns: Instant | None
    behind_us: Mapping[StreamId, int]
    holds: tuple[StreamId, ...]
    behind_events: Mapping[StreamId, int | None] = field(default_factory=dict)
    acknowledged: Mapping[StreamId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetainedStream:
    """The events that a pubend of a broker retains for subscriptions, for people.

    Attributes:
        events, payload_bytes: of all retained events.
        after: per requested tick, the number and the payload bytes of the retained events behind.
        brokers: the brokers with the lowest released tick, or without a report.
        moved: the subscriptions with that tick that are moving, by client and number.
    """

    stream: StreamId
    events: int
    payload_bytes: int
    after: Mapping[int, tuple[int, int]]
    brokers: tuple[BrokerNumber, ...]
    moved: tuple[tuple[ClientId, int], ...]


@dataclass(frozen=True, slots=True)
class StreamRetention:
    """The policy of early release of a pubend of a broker, for people.

    Attributes:
        policy: in force.
        default: as the topology states it.
        events: the retained events.
        early: of these, the events beyond a policy, which may be lost at once.
        oldest_age_ns: of the retained events; 0 without one.
        retained_bytes: payload and overhead of all retained events.
        record: the record that states the policy in force.
    """

    stream: StreamId
    policy: RetentionPolicy
    default: RetentionPolicy
    events: int
    early: int
    oldest_age_ns: int
    retained_bytes: int
    record: Record


@runtime_checkable
class ListingProtocol(DeliveryProtocol, Protocol):
    """A DeliveryProtocol that lists the subscriptions of its broker."""

    def list_subscriptions(self, now_ns: Instant) -> Sequence[SubscriptionState]:
        """Return the subscriptions of present and absent clients."""
        ...

    def list_retained(self, after: Mapping[StreamId, Sequence[int]]) -> Sequence[RetainedStream]:
        """Return the events that pubends of this broker retain.

        Args:
            after: ticks per stream; of other brokers' streams nothing is known here.
        """
        ...

    def list_retention(
        self, now_ns: Instant, proposed: RetentionPolicy | None = None
    ) -> Sequence[StreamRetention]:
        """Return the policies of the pubends of this broker.

        Args:
            proposed: the policy for `StreamRetention.early`; None: the one in force.
        """
        ...


class CoreWrapper(ABC):
    """A core around another core, with sessions of the wrapper's own making.

    Attributes:
        core: the protocol itself.
        watch: receives each step of the core, if set.
    """

    core: DeliveryProtocol
    watch: Callable[[Event, list[Effect]], None] | None = None

    @abstractmethod
    def session_with(self, peer: BrokerNumber) -> int:
        """Return the number of the core's session with a broker; 0 without a session."""

    def farewell(self, broker: BrokerNumber) -> Farewell:
        """See DecommissioningProtocol; of a core that is one."""
        core: Any = self.core
        protocol: DecommissioningProtocol = core
        return protocol.farewell(broker)


def protocol_of(core: DeliveryProtocol) -> DeliveryProtocol:
    """Return the core inside a wrapper, or the core itself."""
    return core.core if isinstance(core, CoreWrapper) else core
