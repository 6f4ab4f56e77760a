"""The simulated network: sessions between brokers, and between clients and their broker.

The network keeps the promises of the runtime and no others. A session instance delivers in order or
not at all. After the loss of one message the session is dead for both ends. Each end is notified of
the end of a session exactly once, at its own time. Links fail per pair of endpoints and per
direction.

Paper: [DFT11] §II (system model).
"""

from random import Random
from typing import Any

from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clock import Action, Lane, Schedule
from brokerd.simulator.world.sessions import (
    Attempt,
    Endpoint,
    LinkStates,
    NetworkParameters,
    OldMessage,
    SessionEnd,
)
from brokerd.wire.codec import decode, frames

_PREFIX_BYTES = 8


def transmit(message: Any, limit_bytes: int) -> list[tuple[Any, int]]:
    """Return the received form of a message: one or several messages, each with its frame's size.

    Several messages are returned if one frame would exceed `limit_bytes`, as in the session layer.
    """
    parts = []
    for pieces, size in frames(message, limit_bytes):
        frame = b"".join(pieces)
        header_end = _PREFIX_BYTES + int.from_bytes(frame[4:_PREFIX_BYTES])
        assert int.from_bytes(frame[:4]) == len(frame) - 4 == size - 4, (
            f"a frame of {len(frame)} bytes has another length in its header: {message}"
        )
        payload = memoryview(frame)[header_end:]
        parts.append((decode(frame[_PREFIX_BYTES:header_end], payload), len(frame)))
    return parts


class Network:
    """The carrier of messages between endpoints, with injected faults.

    Attributes:
        counters: numbers of carried, lost and broken items.
        bytes_between_brokers: bytes of frames from the codec, if `encode` is set.
        links: the states of links with faults.
        old_messages: see NetworkParameters.keep_old_messages.
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
        self.bytes_between_brokers = 0
        self.old_messages: list[OldMessage] = []
        self._random = random
        self.links = LinkStates()
        self._silences = 0

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
        self.schedule.post(attempt.lane, 2 * self._draw_latency(), self._hello_arrives, attempt)
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
            self._notify_far_end(end)
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
            self._put(end, message)

    # ------------------------------------------------------------ suspicions and timeouts

    def suspect(self, end: SessionEnd) -> None:
        """Suspect the peer at this end and close the session, rightly or not."""
        if end.up:
            self.counters["sessions_lost_silent"] += 1
            self._end_here(end, "silent")
            self._notify_far_end(end)

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

    # ------------------------------------------------------------ faults of endpoints

    def endpoint_died(self, endpoint: Endpoint) -> None:
        """Drop an endpoint's sessions and attempts; far ends are notified as links allow."""
        for attempt in list(endpoint.attempts.values()):
            attempt.is_over = True
        endpoint.attempts.clear()
        for end in list(endpoint.connected):
            end.withheld_messages.clear()
            self._forget(end)
            self._notify_far_end(end)
        endpoint.ends.clear()
        endpoint.deferred.clear()

    def freeze(self, endpoint: Endpoint) -> None:
        """Stop the time of an endpoint; peers receive nothing from this endpoint."""
        endpoint.frozen = True
        for end in endpoint.connected:
            end.lane.hold()
            self.update_silence(end.other)

    def thaw(self, endpoint: Endpoint) -> None:
        """Resume the time of an endpoint, first with the deferred actions."""
        endpoint.frozen = False
        for end in list(endpoint.connected):
            end.lane.release()
            self.update_silence(end.other)
            self.update_silence(end)
        deferred, endpoint.deferred = endpoint.deferred, []
        for action, arguments in deferred:
            action(*arguments)

    def send_withheld(self, endpoint: Endpoint) -> None:
        """Send the withheld messages of an absorbing endpoint, in order."""
        for end in list(endpoint.ends.values()):
            held, end.withheld_messages = end.withheld_messages, []
            for message in held:
                self._put(end, message)

    def is_void(self, action: Action, arguments: tuple[Any, ...]) -> bool:
        """Return True if an entry of a lane has no effect any more."""
        if action == self._arrives:
            return not arguments[0].up
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
            self._notify_far_end(old)
            late = there.attempts.pop(here.key, None)
            if late is not None:  # made on the loss of the old session
                late.is_over = True
        self._connect(attempt, here, there)

    def _connect(self, attempt: Attempt, here: Endpoint, there: Endpoint) -> None:
        latency_ns = self._draw_latency()
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
            self._forget(end)
            self._notify_far_end(end)
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
                self._forget(end)
                self._notify_far_end(end)
        self.counters["opens_failed"] += 1
        attempt.endpoint.open_failed(attempt.peer, reason)

    # ------------------------------------------------------------ carrying and ending

    def _put(self, end: SessionEnd, message: Any) -> None:
        target = end.other
        if target.deaf:
            self.counters["messages_lost"] += 1
            return
        if not self.parameters.encode:
            self._post(target, message)
            return
        parts = transmit(message, self.parameters.session.frame_limit_bytes)
        self.counters["frames_split"] += len(parts) > 1
        for part, frame_bytes in parts:
            if isinstance(end.peer, int) and isinstance(end.endpoint.key, int):
                self.bytes_between_brokers += frame_bytes
            self._post(target, part)

    def _post(self, target: SessionEnd, message: Any) -> None:
        end = target.other
        self.counters["messages_sent"] += 1
        delay_ns = end.latency_ns
        if self.parameters.jitter_ns:
            delay_ns += int(self._random.random() * self.parameters.jitter_ns)
        if self.links.delays:
            delay_ns += self.links.delays.get((end.endpoint.key, end.peer), 0)
        self.schedule.post(target.lane, delay_ns, self._arrives, target, message)

    def _arrives(self, end: SessionEnd, message: Any) -> None:
        if end.up:
            end.endpoint.message_arrived(end, message)
        else:
            self.counters["messages_lost"] += 1
            self._keep_old(end, message)

    def _end_here(self, end: SessionEnd, reason: LossReason) -> None:
        """End an established session at this end, without a notification of the far end."""
        del end.endpoint.ends[end.peer]
        self._forget(end)
        end.endpoint.on_lost(end, reason)

    def _forget(self, end: SessionEnd) -> None:
        was_up, end.up, end.is_over = end.up, False, True
        end.endpoint.connected.pop(end, None)
        for action, arguments in end.lane.truncate(0):
            if action == self._arrives:
                self.counters["messages_lost"] += 1
                if was_up:
                    self._keep_old(end, arguments[1])

    def _notify_far_end(self, end: SessionEnd) -> None:
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
        self._forget(end)
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

    def _keep_old(self, end: SessionEnd, message: Any) -> None:
        if self.parameters.keep_old_messages and end.number and end.endpoint.alive:
            self.old_messages.append(
                OldMessage(end.endpoint, end.incarnation, end.peer, end.number, message)
            )

    # ------------------------------------------------------------ failure detector

    def update_silence(self, end: SessionEnd) -> None:
        """Update the silence that the failure detector of an end measures."""
        if not end.up:
            return
        silent = (
            end.deaf
            or end.other.endpoint.frozen
            or (end.peer, end.endpoint.key) in self.links.blackholed
        )
        if silent and not end.silence:
            self._silences += 1
            end.silence = self._silences
            session = self.parameters.session
            delay_ns = session.suspicion_ns
            if self.parameters.jitter_ns:  # the last sign of life was up to a heartbeat ago
                delay_ns -= int(self._random.random() * session.heartbeat_ns)
            self.schedule.post(end.watch, delay_ns, self._silence_noticed, end, end.silence)
        elif not silent:
            end.silence = 0

    def _silence_noticed(self, end: SessionEnd, silence: int) -> None:
        if not end.up or end.silence != silence:
            return
        if end.endpoint.frozen:
            end.silence = 0  # measured again after the thaw
        else:
            self.suspect(end)

    # ------------------------------------------------------------ helpers

    def _draw_latency(self) -> int:
        low, high = self.parameters.latency_lowest_ns, self.parameters.latency_highest_ns
        return low if low == high else self._random.randrange(low, high)
