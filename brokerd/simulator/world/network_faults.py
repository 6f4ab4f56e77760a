"""Faults of the simulated network: of links, per direction, and of the processes at their ends."""

from collections.abc import Iterator
from typing import Literal

from brokerd.model.identity import Peer
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import Direction, Endpoint, SessionEnd

WhichWay = Literal["both", "out", "in"]


class LinkFaults:
    """Injected faults of the links of a network."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._links = network.links

    def cut(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """Lose messages in flight, and block all further messages until `heal`."""
        for way in _ways(a, b, which):
            self._links.cuts[way] = None
            for end in self._ends_reached_by(way):
                self._network.deafen(end)

    def blackhole(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """Block all messages until `heal`, without a loss and without a notification."""
        for way in _ways(a, b, which):
            if way not in self._links.blackholed:
                self._links.blackholed[way] = None
                for end in self._ends_reached_by(way):
                    end.lane.hold()
                    if end.attempt is not None and not end.attempt.is_over:
                        self._network.wait_for_timeout(end.attempt)
                    self._network.update_silence(end)
                    if end.attempt is not None and not end.attempt.is_over:
                        self._network.wait_for_timeout(end.attempt)

    def absorb(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """Pass only signs of life until `heal`; a cut destroys absorbed messages."""
        for way in _ways(a, b, which):
            if way not in self._links.absorbed:
                self._links.absorbed[way] = None
                for end in self._ends_reached_by(way):
                    if end.up:
                        end.lane.hold()

    def pass_one(self, a: Peer, b: Peer) -> bool:
        """Deliver the first absorbed message from a to b; return False if there is none."""
        for end in self._ends_reached_by((a, b)):
            if end.up and (a, b) in self._links.absorbed:
                return end.lane.release_one()
        return False

    def delay(self, a: Peer, b: Peer, delay_ns: int) -> None:
        """Delay every message between two endpoints by this time; 0 ends the delay."""
        for way in _ways(a, b, "both"):
            if delay_ns:
                self._links.delays[way] = delay_ns
            else:
                self._links.delays.pop(way, None)

    def heal(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """Undo every fault of this link. A session with a loss stays dead."""
        for way in _ways(a, b, which):
            self._links.cuts.pop(way, None)
            self._links.delays.pop(way, None)
            if way in self._links.blackholed:
                del self._links.blackholed[way]
                for end in self._ends_reached_by(way):
                    end.lane.release()
                    self._network.update_silence(end)
            if way in self._links.absorbed:
                del self._links.absorbed[way]
                for end in self._ends_reached_by(way):
                    if end.up:
                        end.lane.release()

    def cut_ways(self) -> list[Direction]:
        """Return the directions that are cut, oldest first."""
        return [*self._links.cuts]

    def _ends_reached_by(self, way: Direction) -> Iterator[SessionEnd]:
        sender, receiver = way
        for end in list(self._network.endpoints[receiver].connected):
            if end.peer == sender:
                yield end


def _ways(a: Peer, b: Peer, which: WhichWay) -> tuple[Direction, ...]:
    return {"both": ((a, b), (b, a)), "out": ((a, b),), "in": ((b, a),)}[which]


def kill_endpoint(network: Network, endpoint: Endpoint) -> None:
    """Drop an endpoint's sessions and attempts; far ends are notified as links allow."""
    for attempt in list(endpoint.attempts.values()):
        attempt.is_over = True
    endpoint.attempts.clear()
    for end in list(endpoint.connected):
        end.withheld_messages.clear()
        network.forget(end)
        network.notify_far_end(end)
    endpoint.ends.clear()
    endpoint.deferred.clear()


def freeze_endpoint(network: Network, endpoint: Endpoint) -> None:
    """Stop the time of an endpoint; peers receive nothing from this endpoint."""
    endpoint.frozen = True
    for end in endpoint.connected:
        end.lane.hold()
        network.update_silence(end.other)


def thaw_endpoint(network: Network, endpoint: Endpoint) -> None:
    """Resume the time of an endpoint, first with the deferred actions."""
    endpoint.frozen = False
    for end in list(endpoint.connected):
        end.lane.release()
        network.update_silence(end.other)
        network.update_silence(end)
    deferred, endpoint.deferred = endpoint.deferred, []
    for action, arguments in deferred:
        action(*arguments)


def send_withheld(network: Network, endpoint: Endpoint) -> None:
    """Send the withheld messages of an absorbing endpoint, in order."""
    for end in list(endpoint.ends.values()):
        held, end.withheld_messages = end.withheld_messages, []
        for message in held:
            network.transmission.put(end, message)
