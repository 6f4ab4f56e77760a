"""The simulated network: sessions, and faults of links, per direction, and of processes.

The network keeps the promises of the runtime and no others. A session instance delivers in order or
not at all. After the loss of one message the session is dead for both ends. Each end is notified of
the end of a session exactly once, at its own time. Links fail per pair of endpoints and per
direction.

Paper: [DFT11] §II (system model).
"""

from collections.abc import Iterator
from random import Random
from typing import Any, Literal

from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clock import Action, Lane, Schedule
from brokerd.simulator.world.sessions import (
    Attempt,
    Direction,
    Endpoint,
    LinkStates,
    NetworkParameters,
    SessionEnd,
    SilenceDetector,
    Transmission,
)


class Network:
    """The carrier of messages between endpoints, with injected faults.

    Attributes:
        counters: numbers of carried, lost and broken items.
        links: the states of links with faults.
        transmission: carries the messages of established sessions.
    """

    def __init__(self, schedule: Schedule, random: Random, parameters: NetworkParameters) -> None:
        self.schedule = schedule
        self.parameters = parameters
        self.endpoints: dict[Peer, Endpoint] = {}
        self.counters: dict[str, int] = {
            "messages_sent": 0,
            "messages_lost": 0,
            "sessions_established": 0,
            "sessions_lost_silent": 0,
            "opens_failed": 0,
            "frames_split": 0,
        }
        self._random = random
        self.links = LinkStates()
        self.transmission = Transmission(schedule, random, parameters, self.links, self.counters)
        self._silences = SilenceDetector(random, parameters, self.links)

    # ------------------------------------------------------------ requests of endpoints

    def open(self, endpoint: Endpoint, peer: Peer, *, again: bool = False) -> None:
        """Try once to open a session; no effect with a session or an attempt present.

        Args:
            again: see Attempt.
        """
        if peer in endpoint.ends or peer in endpoint.attempts:
            return
        attempt = Attempt(endpoint, peer, self.schedule, again)
        endpoint.attempts[peer] = attempt
        self.schedule.post(
            attempt.lane,
            2 * self.parameters.draw_latency(self._random),
            self._hello_arrives,
            attempt,
        )
        # Without durations a timeout could happen at any moment; early timeouts are rare, or hardly
        # an attempt would ever succeed.
        early = self.parameters.early_timeouts
        if not self.schedule.adversarial or (early and self._random.random() < 0.1):
            self._arm_timeout(attempt)

    def close(self, endpoint: Endpoint, peer: Peer, reason: LossReason) -> None:
        """End the session or the attempt with a peer; no effect without either."""
        end = endpoint.ends.get(peer)
        if end is not None:
            self._end_here(end, reason)
            self.notify_far_end(end)
        elif peer in endpoint.attempts:
            self._cancel(endpoint.attempts[peer], "closed by us")

    def send(self, endpoint: Endpoint, peer: Peer, message: Any) -> None:
        """Send a message on the session with a peer; the message is dropped without a session."""
        end = endpoint.ends.get(peer)
        if end is None:
            self.counters["messages_lost"] += 1
        elif endpoint.absorbing:
            end.withheld_messages.append(message)
        else:
            self.transmission.put(end, message)

    # ------------------------------------------------------------ suspicions and timeouts

    def suspect(self, end: SessionEnd) -> None:
        """Suspect the peer at this end and close the session, rightly or not."""
        if end.up:
            self.counters["sessions_lost_silent"] += 1
            self._end_here(end, "silent")
            self.notify_far_end(end)

    def time_out(self, endpoint: Endpoint, peer: Peer) -> bool:
        """Time out an attempt, answered or not; return False without an attempt."""
        attempt = endpoint.attempts.get(peer)
        if attempt is None:
            return False
        self._cancel(attempt, "timed out")
        return True

    def is_open(self, a: Peer, b: Peer) -> bool:
        """Return True if a session between two endpoints could be opened now."""
        first, second = self.endpoints[a], self.endpoints[b]
        if not (first.alive and second.alive) or first.frozen or second.frozen:
            return False
        return not self.links.is_blocked((a, b)) and not self.links.is_blocked((b, a))

    def is_void(self, action: Action, arguments: tuple[Any, ...]) -> bool:
        """Return True if an entry of a lane has no effect any more."""
        if action == self._silence_noticed:
            return not arguments[0].up or arguments[0].silence != arguments[1]
        by_end = (self._answer_arrives, self._close_arrives)
        by_attempt = (self._hello_arrives, self._cancel)
        return action in (*by_end, *by_attempt) and bool(arguments[0].is_over)

    # ------------------------------------------------------------ opening

    def _hello_arrives(self, attempt: Attempt) -> None:
        if attempt.is_over:
            return
        here, there = attempt.endpoint, self.endpoints[attempt.peer]
        blocked = self.links.is_blocked((here.key, there.key)) or self.links.is_blocked(
            (there.key, here.key)
        )
        if blocked:
            self.wait_for_timeout(attempt)
            return
        if there.frozen:  # its kernel has the connection: Hello is read after the thaw
            there.deferred.append((self._hello_arrives, (attempt,)))
            self.wait_for_timeout(attempt)
            return
        if not there.alive:
            self._cancel(attempt, "refused")
            return
        crossing = there.attempts.get(here.key)
        if crossing is not None:
            assert isinstance(here.key, int), (
                f"{here.key} is a client, and clients are never dialled"
            )
            assert isinstance(there.key, int), f"{there.key} is a client, and dials no broker back"
            if here.key > there.key:  # the attempt of the smaller number is kept
                self.wait_for_timeout(attempt)
                return
            crossing.is_over = True
            del there.attempts[here.key]
        old = there.ends.get(here.key)
        if old is not None:
            self._end_here(old, "closed_by_peer")
            self.notify_far_end(old)
            late = there.attempts.pop(here.key, None)
            if late is not None:  # made on the loss of the old session
                late.is_over = True
        self._connect(attempt, here, there)

    def _connect(self, attempt: Attempt, here: Endpoint, there: Endpoint) -> None:
        latency_ns = self.parameters.draw_latency(self._random)
        near = SessionEnd(here, there.key, self.schedule, latency_ns)
        far = SessionEnd(there, here.key, self.schedule, latency_ns)
        near.other, far.other = far, near
        for end in (near, far):
            end.endpoint.connected[end] = None
            if end.endpoint.frozen:
                end.lane.hold()
        incarnation = there.incarnation
        near.attempt = attempt
        self.schedule.post(near.lane, latency_ns, self._answer_arrives, near, attempt, incarnation)
        self._up(far, here.incarnation)

    def _answer_arrives(self, end: SessionEnd, attempt: Attempt, incarnation: int) -> None:
        if end.is_over:
            return
        if attempt.is_over or not attempt.endpoint.alive:
            self.forget(end)
            self.notify_far_end(end)
            return
        attempt.is_over = True
        del attempt.endpoint.attempts[attempt.peer]
        self._up(end, incarnation)

    def _up(self, end: SessionEnd, incarnation: int) -> None:
        self.counters["sessions_established"] += 1
        end.up = True
        end.number = end.endpoint.next_session()
        if (end.peer, end.endpoint.key) in self.links.absorbed:
            end.lane.hold()
        end.endpoint.ends[end.peer] = end
        end.endpoint.on_established(end, incarnation)
        self.update_silence(end)

    def wait_for_timeout(self, attempt: Attempt) -> None:
        """Set a timeout for an attempt without an answer, if timeouts are not always set."""
        if self.schedule.adversarial:
            self._arm_timeout(attempt)

    def _arm_timeout(self, attempt: Attempt) -> None:
        timeout_ns = self.parameters.session.connect_timeout_ns
        if not self.schedule.adversarial:
            when_ns = self.schedule.now_ns + timeout_ns
            self.schedule.at(when_ns, self._cancel, attempt, "timed out")
        elif not attempt.timeout.queue:
            self.schedule.post(attempt.timeout, timeout_ns, self._cancel, attempt, "timed out")

    def _cancel(self, attempt: Attempt, reason: str) -> None:
        if attempt.is_over:
            return
        if attempt.endpoint.frozen:
            attempt.endpoint.deferred.append((self._cancel, (attempt, reason)))
            return
        attempt.is_over = True
        del attempt.endpoint.attempts[attempt.peer]
        for end in list(attempt.endpoint.connected):
            if end.attempt is attempt:  # answered, but the answer has not arrived
                self.forget(end)
                self.notify_far_end(end)
        self.counters["opens_failed"] += 1
        attempt.endpoint.open_failed(attempt.peer, reason)

    # ------------------------------------------------------------ carrying and ending

    def _end_here(self, end: SessionEnd, reason: LossReason) -> None:
        """End an established session at this end, without a notification of the far end."""
        del end.endpoint.ends[end.peer]
        self.forget(end)
        end.endpoint.on_lost(end, reason)

    def forget(self, end: SessionEnd) -> None:
        """Remove an end from its endpoint, and lose the messages in flight to this end."""
        was_up, end.up, end.is_over = end.up, False, True
        end.endpoint.connected.pop(end, None)
        for action, arguments in end.lane.truncate(0):
            if action == self.transmission.arrives:
                self.counters["messages_lost"] += 1
                if was_up:
                    self.transmission.keep_old(end, arguments[1])

    def notify_far_end(self, end: SessionEnd) -> None:
        """Send the close of this end to the other end, unless the link loses the close."""
        other = end.other
        if other.is_over or other.deaf:
            return
        way = (end.endpoint.key, end.peer)
        if way in self.links.cuts:
            self.deafen(other)
            return
        if way in self.links.absorbed or (
            self.parameters.lost_on_close and self._random.random() < 0.5
        ):
            keep = (
                0
                if way in self.links.absorbed
                else self._random.randrange(len(other.lane.queue) + 1)
            )
            self.counters["messages_lost"] += len(other.lane.truncate(keep))
        # A close passes wherever signs of life pass.
        lane = other.lane
        if way in self.links.absorbed:
            lane = Lane(self.schedule, f"{end.endpoint.key}:closes:{end.peer}")
        self.schedule.post(lane, end.latency_ns, self._close_arrives, other)

    def _close_arrives(self, end: SessionEnd) -> None:
        if end.is_over:
            return
        if end.up:
            self._end_here(end, "closed_by_peer")
            return
        # The close destroyed the preceding answer to our attempt.
        self.forget(end)
        if end.attempt is not None:
            self._cancel(end.attempt, "closed by peer")

    def deafen(self, end: SessionEnd) -> None:
        """Lose the messages in flight to an end, and all later ones."""
        if end.is_over:
            return
        end.deaf = True
        self.counters["messages_lost"] += len(end.lane.truncate(0))
        if end.attempt is not None and not end.attempt.is_over:
            self.wait_for_timeout(end.attempt)
        self.update_silence(end)

    # ------------------------------------------------------------ failure detector

    def update_silence(self, end: SessionEnd) -> None:
        """Update the silence that the failure detector of an end measures."""
        delay_ns = self._silences.update(end)
        if delay_ns is not None:
            self.schedule.post(end.watch, delay_ns, self._silence_noticed, end, end.silence)

    def _silence_noticed(self, end: SessionEnd, period: int) -> None:
        if self._silences.is_suspicion(end, period):
            self.suspect(end)


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

    def cut_directions(self) -> list[Direction]:
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
