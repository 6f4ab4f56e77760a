"""The verbs of a simulated cluster's brokers, links and subscriptions, for authors of stories."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.protocols.interface import CoreStatus
from brokerd.sessions.messages import StateMark
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.clients import SimulatedClient
from brokerd.simulator.world.network import LinkFaults, WhichWay
from brokerd.simulator.world.restoration import DiskRestoration
from brokerd.simulator.world.state import ClusterState


@dataclass(frozen=True, slots=True)
class PublicationHandle:
    """One publication, identified by its publisher."""

    client: ClientId
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.sequence}"


class BrokerHandle:
    """The verbs of a broker; each verb returns the handle."""

    def __init__(
        self, state: ClusterState, restoration: DiskRestoration, broker: SimulatedBroker
    ) -> None:
        self._state = state
        self._restoration = restoration
        self.broker = broker

    def kill(self) -> Self:
        """Kill the process, with the loss of all volatile state."""
        return self._perform("kill", self.broker.kill)

    def start(self) -> Self:
        """Start a new incarnation on the same disk."""
        return self._perform("start", self.broker.start)

    def copy(self, *, is_empty: bool) -> tuple[Any, ...] | None:
        """Return a copy of the disk, for `restore`; None for an empty disk."""
        return self._restoration.copy(self.broker, is_empty=is_empty)

    def put_back(self, copy: tuple[Any, ...] | None) -> Self:
        """Replace the disk by an older copy, or by an empty disk, and accept the loss."""
        self._restoration.put_back(self.broker, copy)
        return self

    def restore(
        self,
        copy: tuple[Any, ...] | None,
        witnessed: tuple[BrokerNumber, StateMark] | None,
    ) -> Self:
        """Start on an older copy of the disk, or on an empty disk, as an operator does."""
        self._restoration.restore(self.broker, copy, witnessed)
        return self

    def restart(self) -> Self:
        """Kill and start, without a pause."""
        return self.kill().start()

    def absorb(self) -> Self:
        """Receive everything and send only signs of life."""
        return self._perform("absorb", self.broker.absorb)

    def omit_sends(self) -> Self:
        """Handle everything and send only signs of life."""
        return self._perform("send-omission", self.broker.omit_sends)

    def release(self) -> Self:
        """Handle and send the absorbed messages, in order."""
        return self._perform("release", self.broker.release)

    def freeze(self) -> Self:
        """Stop the time of the broker."""
        return self._perform("freeze", self.broker.freeze)

    def thaw(self) -> Self:
        """Resume the time of the broker."""
        return self._perform("thaw", self.broker.thaw)

    def status(self) -> CoreStatus[BrokerNumber]:
        """Return the status of the core, with its detail."""
        core = self.broker.core
        return replace(core.status(), detail=core.detail())

    def reasons(self) -> list[str]:
        """Return the reasons of the core for withheld, refused or ignored items, in order."""
        records = self.broker.recorded
        return [str(details["reason"]) for _, details in records if "reason" in details]

    def _perform(self, verb: str, action: Any) -> Self:
        self._state.note(f"{verb} {self.broker.name}")
        action()
        return self


class LinkHandle:
    """The verbs of the sessions between two endpoints; each verb returns the handle."""

    def __init__(self, state: ClusterState, faults: LinkFaults, a: Peer, b: Peer) -> None:
        self._state = state
        self._faults = faults
        self._a = a
        self._b = b

    def cut(self, which: WhichWay = "both") -> Self:
        """Cut the link and lose messages in flight; `out` is from first to second."""
        self._note(f"cut {which}")
        self._faults.cut(self._a, self._b, which)
        return self

    def blackhole(self, which: WhichWay = "both") -> Self:
        """Block all messages without a loss."""
        self._note(f"blackhole {which}")
        self._faults.blackhole(self._a, self._b, which)
        return self

    def absorb(self, which: WhichWay = "both") -> Self:
        """Pass only signs of life; `out` is from the first to the second."""
        self._note("absorb" if which == "both" else f"absorb {which}")
        self._faults.absorb(self._a, self._b, which)
        return self

    def release_one(self) -> bool:
        """Deliver the first absorbed message from the first to the second end."""
        self._note("let one pass")
        return self._faults.pass_one(self._a, self._b)

    def delay(self, delay_ns: int) -> Self:
        """Delay every message."""
        self._note(f"delay {delay_ns}")
        self._faults.delay(self._a, self._b, delay_ns)
        return self

    def heal(self) -> Self:
        """End all faults of the link."""
        self._note("heal")
        self._faults.heal(self._a, self._b)
        return self

    def suspect(self) -> Self:
        """Suspect the second end at the first end."""
        self._note("suspect")
        network = self._state.network
        end = network.endpoints[self._a].ends.get(self._b)
        if end is not None:
            network.suspect(end)
        return self

    def _note(self, verb: str) -> None:
        self._state.note(f"{verb} {self._a}-{self._b}")


class Subscription:
    """A subscription with the view of its application."""

    def __init__(self, state: ClusterState, client: SimulatedClient, number: int) -> None:
        self._state = state
        self.client = client
        self.number = number

    @property
    def received(self) -> list[PublicationHandle]:
        """Deliveries to the application, in order."""
        return list(self._on_received())

    @property
    def started(self) -> bool:
        """True if the client was notified of the start."""
        return self.number in self.client.started_numbers

    def _on_received(self) -> Iterator[PublicationHandle]:
        for source, sequence in self.client.received[self.number]:
            yield PublicationHandle(self._state.name_of(source), sequence)
