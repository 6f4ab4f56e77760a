"""The words of scenarios for actions of brokers: one line for each message, with names.

A source is named after its broker, a subscription after its access broker and its number there. The
words for a protocol's own messages are in the protocol; without them, a message is its name and its
fields.
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Protocol

from brokerd.model.client_messages import (
    Connected,
    ConsumedCommitted,
    Consuming,
    Deliveries,
    Gap,
    Notice,
    PublishAcknowledged,
    Refused,
    Silence,
    Subscribed,
    Unsubscribed,
)
from brokerd.model.identity import ClientId, Peer, SourceId, SubscriptionId
from brokerd.model.publication import PublicationRun
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import (
    Deliver,
    Effect,
    Event,
    OpenFailed,
    Record,
    RedirectClient,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)


class NamedWorld(Protocol):
    """The named brokers and clients of a cluster."""

    @property
    def topology(self) -> Topology: ...

    @property
    def clients(self) -> Mapping[ClientId, Any]: ...


class Wording:
    """The words for the messages between the brokers and clients of one cluster."""

    def __init__(self, cluster: NamedWorld) -> None:
        self._cluster = cluster

    def event(self, event: Event) -> str:
        """Return an event of a broker in words, behind its name; empty for an omitted event."""
        match event:
            case Started(recovering=recovering):
                return f"starts{' recovering' if recovering else ''}"
            case SessionEstablished(peer=peer):
                return f"has a session with {self.name(peer)}"
            case SessionLost(peer=peer, reason=reason):
                return f"loses {self.name(peer)}: {reason}"
            case OpenFailed(peer=peer, reason=reason):
                return f"cannot reach {self.name(peer)}: {reason}"
        return ""

    def effect(self, effect: Effect) -> str:
        """Return an effect of a broker in words, behind its name; empty for an omitted effect."""
        match effect:
            case Deliver(client=client, item=item):
                if isinstance(item, Deliveries):
                    return f"delivers {self.run(item.run)} to {client}"
                return f"-> {self.name(client)}  {self.message(item)}"
            case Send(peer=peer, message=message):
                return f"-> {self.name(peer)}  {self.message(message)}"
            case RedirectClient(client=client, brokers=brokers):
                return f"-> {client}  go to {' or '.join(map(self.name, brokers))}"
            case Record(event=what, details=details):
                listed = " ".join(f"{key}={value}" for key, value in details.items())
                return f"notes {what} {listed}".rstrip()
        return ""

    def message(self, message: Any) -> str:
        """Return a message in words; a protocol adds words for its own messages."""
        match message:
            case Notice(subscription=number, source=source, ranges=ranges, partition=partition):
                nodes = "-".join(map(self.name, partition.nodes))
                listed = self.ranges(tuple((source, *stretch) for stretch in ranges))
                return (
                    f"withholds {listed} from {number}: {self.name(partition.detector)} | {nodes}"
                )
            case Silence(subscriptions=numbers, stream=stream, first=first, last=last):
                return f"nothing in {self.ranges(((stream, first, last),))} for {numbers}"
            case Gap(subscriptions=numbers, stream=stream, first=first, last=last, reason=reason):
                return f"gap {self.ranges(((stream, first, last),))} for {numbers}: {reason}"
            case PublishAcknowledged(first=first, last=last):
                return f"done: {first}" if first == last else f"done: {first}-{last}"
            case Subscribed(number=number, state=state):
                return f"subscription {number} {state}"
            case Unsubscribed(number=number):
                return f"subscription {number} over" if number else "detached"
            case Connected():
                return "connected"
            case Consuming(number=number, uncommitted=most):
                return f"consumer {number} leaves {most} uncommitted at most"
            case ConsumedCommitted(number=number, request=request):
                return f"consumer {number} has committed, as of {request}"
            case Refused(request=request, reason=reason):
                return f"refuses {request}: {reason}"
        return self._plainly(message)

    def _plainly(self, message: Any) -> str:
        """Return the name of a message and its fields, for a message without words of its own."""
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(message).__name__).lower()
        listed = [
            f"{each.name} {self._value(getattr(message, each.name))}" for each in fields(message)
        ]
        return f"{name}: {', '.join(listed)}" if listed else name

    def _value(self, value: Any) -> str:
        match value:
            case SourceId():
                return self.source(value)
            case SubscriptionId():
                return self.subscription(value)
            case PublicationRun():
                return self.run(value)
            case tuple() if not hasattr(value, "_fields"):
                return " ".join(map(self._value, value)) or "none"
        return str(value)

    def is_detail(self, effect: Effect) -> bool:
        """Return True if an effect is omitted unless a scenario requests all details."""
        return False

    def run(self, run: PublicationRun) -> str:
        parts: list[list[int]] = []
        for sequence in run.sequences:
            if parts and sequence == parts[-1][-1] + 1:
                parts[-1][1:] = [sequence]
            else:
                parts.append([sequence])
        listed = ",".join("-".join(map(str, part)) for part in parts)
        return f"{self.source(run.source)}/{listed}"

    def ranges(self, ranges: tuple[tuple[SourceId, int, int], ...]) -> str:
        return " ".join(
            f"{self.source(source)}/{first}" + (f"-{last}" if last > first else "")
            for source, first, last in ranges
        )

    def publication(self, source: SourceId, sequence: int) -> str:
        return f"{self.source(source)}/{sequence}"

    def source(self, source: SourceId) -> str:
        """Return the broker's name, with the client's name for an unusual client."""
        broker = self._cluster.topology.brokers[source.broker]
        for name, client in self._cluster.clients.items():
            if client.core.source == source and name != f"p-{broker}":
                return f"{broker}.{name}"
        return broker

    def subscription(self, subscription: SubscriptionId) -> str:
        later = f"@{subscription.incarnation}" if subscription.incarnation > 1 else ""
        return f"{self._cluster.topology.brokers[subscription.home]}#{subscription.number}{later}"

    def name(self, peer: Peer) -> str:
        """Return the name of a broker or client."""
        return peer if isinstance(peer, str) else self._cluster.topology.brokers[peer]
