"""The simulated network: sessions between brokers, and between clients and their broker.

It keeps the promises the runtime keeps and no others. A session instance delivers in order or
not at all; when it has lost one message it is dead for both ends; each end learns of the end of
a session exactly once, at its own time. Links fail per pair of endpoints and per direction.

Paper: [DFT11] §II (system model).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from brokerd.config import SessionParameters
from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clock import Lane, Schedule
from brokerd.simulator.world.through_wire import through_wire

Direction = tuple[Peer, Peer]
"""From whom, to whom."""

WhichWay = Literal["both", "out", "in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkParameters:
    """How long things take.

    Attributes:
        latency_lowest_ns, latency_highest_ns: bounds of a session's own one-way latency.
        jitter_ns: what a single message may take on top; 0 makes suspicion punctual too.
        lost_on_close: whether a close may overtake (and so destroy) what is still in flight.
        early_timeouts: without durations, some attempts may time out although they are answered.
        keep_old_messages: what arrives for a session that is over is kept, so that a test can
            hand it to the broker as a message of that old session.
        encode: every message goes through the wire's codec, as between processes, in several
            frames where one would be over the session's limit.
        session: heartbeat and suspicion times, connect timeout.
    """

    latency_lowest_ns: int = 100_000
    latency_highest_ns: int = 2_000_000
    jitter_ns: int = 300_000
    lost_on_close: bool = True
    early_timeouts: bool = True
    keep_old_messages: bool = False
    encode: bool = False
    session: SessionParameters = field(default_factory=SessionParameters)


class Endpoint:
    """What has sessions: a broker or a client. Subclasses react to the methods below.

    Attributes:
        key: number of a broker, name of a client.
        incarnation: told to the other end of each session.
        alive: whether a process is there at all.
        frozen: whether its time stands still.
        absorbing: whether it lets nothing but signs of life out.
        ends: its established sessions, by peer.
        attempts: its attempts to open one, by peer.
        connected: its ends, whether already established here or not, in order of creation.
        deferred: what fell due while it was frozen.
    """

    def __init__(self, key: Peer) -> None:
        self.key = key
        self.incarnation = 0
        self.alive = False
        self.frozen = False
        self.absorbing = False
        self.ends: dict[Peer, SessionEnd] = {}
        self.attempts: dict[Peer, Attempt] = {}
        self.connected: dict[SessionEnd, None] = {}
        self.deferred: list[tuple[Any, tuple[Any, ...]]] = []
        self._sessions = 0

    def next_session(self) -> int:
        """A session number this incarnation has not used."""
        self._sessions += 1
        return self._sessions

    def established(self, end: "SessionEnd", incarnation: int) -> None:
        """A session is up at this end."""
        raise NotImplementedError

    def lost(self, end: "SessionEnd", reason: LossReason) -> None:
        """The session is over at this end."""
        raise NotImplementedError

    def open_failed(self, peer: Peer, reason: str) -> None:
        """An attempt came to nothing."""
        raise NotImplementedError

    def message_arrived(self, end: "SessionEnd", message: Any) -> None:
        """A message came in on a session that is up."""
        raise NotImplementedError


class SessionEnd:
    """One end of one session instance.

    Attributes:
        lane: what is on its way to this end.
        other: the far end.
        attempt: what it will answer, at the end that opened the session.
        up: established here and not lost.
        over: lost here, or never to be established.
        deaf: something on its way here was lost, so nothing may arrive any more.
        silence: which stretch of silence it is in; 0 while it hears its peer.
        held_out: messages that an absorbing owner has not let out.
    """

    __slots__ = (
        "attempt", "deaf", "endpoint", "held_out", "incarnation", "lane", "latency_ns",
        "number", "other", "over", "peer", "silence", "up", "watch",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, peer: Peer, schedule: Schedule, latency_ns: int) -> None:
        self.endpoint = endpoint
        self.peer = peer
        self.lane = Lane(schedule, f"{peer}>{endpoint.key}")
        self.watch = Lane(schedule, f"{endpoint.key}:suspects:{peer}")
        self.latency_ns = latency_ns
        self.number = 0
        self.incarnation = endpoint.incarnation
        self.other: SessionEnd = self
        self.attempt: Attempt | None = None
        self.up = False
        self.over = False
        self.deaf = False
        self.silence = 0
        self.held_out: list[Any] = []


class Attempt:
    """One attempt to open a session, until it is answered, refused, given up or timed out.

    Attributes:
        again: made because a wait was over, and not because of anything that has happened.
    """

    __slots__ = ("again", "endpoint", "lane", "over", "peer", "timeout")

    def __init__(self, endpoint: Endpoint, peer: Peer, schedule: Schedule, again: bool) -> None:
        self.again = again
        self.endpoint = endpoint
        self.peer = peer
        self.lane = Lane(schedule, f"{endpoint.key}:dials:{peer}")
        self.timeout = Lane(schedule, f"{endpoint.key}:gives-up:{peer}")
        self.over = False


@dataclass(frozen=True, slots=True)
class OldMessage:
    """A message that came for a session instance which is over at its receiver."""

    endpoint: Endpoint
    incarnation: int
    peer: Peer
    session: int
    message: Any


class Network:
    """Carries messages between endpoints and breaks as it is told to.

    Attributes:
        counters: what was carried, lost and broken.
        bytes_between_brokers: frames as the codec makes them, where `encode` is set.
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
        self._cut: dict[Direction, int] = {}
        self._blackholed: dict[Direction, int] = {}
        self._absorbed: dict[Direction, int] = {}
        self._delays: dict[Direction, int] = {}
        self._silences = 0

    # ------------------------------------------------------------ what endpoints ask for

    def open(self, endpoint: Endpoint, peer: Peer, *, again: bool = False) -> None:
        """Try once to open a session; ignored while one is up or being opened.

        Args:
            again: see Attempt.
        """
        if peer in endpoint.ends or peer in endpoint.attempts:
            return
        attempt = Attempt(endpoint, peer, self.schedule, again)
        endpoint.attempts[peer] = attempt
        self.schedule.post(attempt.lane, 2 * self._draw_latency(), self._hello_arrives, attempt)
        # Without durations a timeout could come at any moment; it mostly should not, or hardly
        # an attempt would ever succeed.
        early = self.parameters.early_timeouts
        if not self.schedule.adversarial or (early and self._random.random() < 0.1):
            self._arm_timeout(attempt)

    def close(self, endpoint: Endpoint, peer: Peer, reason: LossReason) -> None:
        """End the session or the attempt with a peer; nothing happens when there is none."""
        end = endpoint.ends.get(peer)
        if end is not None:
            self._end_here(end, reason)
            self._tell_other(end)
        elif peer in endpoint.attempts:
            self._give_up(endpoint.attempts[peer], "closed by us")

    def send(self, endpoint: Endpoint, peer: Peer, message: Any) -> None:
        """Put a message on the session with a peer; dropped when there is none."""
        end = endpoint.ends.get(peer)
        if end is None:
            self.counters["messages_lost"] += 1
        elif endpoint.absorbing:
            end.held_out.append(message)
        else:
            self._put(end, message)

    # ------------------------------------------------------------ faults of links

    def cut(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """What is under way is lost, and nothing passes until `heal`."""
        for way in _ways(a, b, which):
            self._cut[way] = 1
            for end in self._ends_reached_by(way):
                self._deafen(end)

    def blackhole(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """Nothing passes until `heal`, nothing is lost, and nobody is told."""
        for way in _ways(a, b, which):
            if way not in self._blackholed:
                self._blackholed[way] = 1
                for end in self._ends_reached_by(way):
                    end.lane.hold()
                    if end.attempt is not None and not end.attempt.over:
                        self._wait_for_timeout(end.attempt)
                    self._update_silence(end)
                    if end.attempt is not None and not end.attempt.over:
                        self._wait_for_timeout(end.attempt)

    def absorb_link(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """Only signs of life pass until `heal`; a cut destroys what was taken in."""
        for way in _ways(a, b, which):
            if way not in self._absorbed:
                self._absorbed[way] = 1
                for end in self._ends_reached_by(way):
                    if end.up:
                        end.lane.hold()

    def let_one_pass(self, a: Peer, b: Peer) -> bool:
        """Let the first message through that an absorbing link has from a to b; False if none."""
        for end in self._ends_reached_by((a, b)):
            if end.up and (a, b) in self._absorbed:
                return end.lane.let_one_out()
        return False

    def delay(self, a: Peer, b: Peer, delay_ns: int) -> None:
        """Every message between the two takes this much longer; 0 ends it."""
        for way in _ways(a, b, "both"):
            if delay_ns:
                self._delays[way] = delay_ns
            else:
                self._delays.pop(way, None)

    def heal(self, a: Peer, b: Peer, which: WhichWay = "both") -> None:
        """Undo every fault of this link. A session that has lost something stays dead."""
        for way in _ways(a, b, which):
            self._cut.pop(way, None)
            self._delays.pop(way, None)
            if self._blackholed.pop(way, None):
                for end in self._ends_reached_by(way):
                    end.lane.release()
                    self._update_silence(end)
            if self._absorbed.pop(way, None):
                for end in self._ends_reached_by(way):
                    if end.up:
                        end.lane.release()

    def suspect(self, end: SessionEnd) -> None:
        """This end takes its peer for dead and closes, rightly or not."""
        if end.up:
            self.counters["sessions_lost_silent"] += 1
            self._end_here(end, "silent")
            self._tell_other(end)

    def time_out(self, endpoint: Endpoint, peer: Peer) -> bool:
        """Its attempt to reach a peer times out, whoever may answer; False when there is none."""
        attempt = endpoint.attempts.get(peer)
        if attempt is None:
            return False
        self._give_up(attempt, "timed out")
        return True

    def cut_ways(self) -> list[Direction]:
        """The directions that are cut, oldest first."""
        return [*self._cut]

    def is_open(self, a: Peer, b: Peer) -> bool:
        """Whether a session between the two could be opened now."""
        first, second = self.endpoints[a], self.endpoints[b]
        if not (first.alive and second.alive) or first.frozen or second.frozen:
            return False
        return not self._blocked((a, b)) and not self._blocked((b, a))

    # ------------------------------------------------------------ faults of endpoints

    def endpoint_died(self, endpoint: Endpoint) -> None:
        """Its sessions and attempts are gone; the far ends learn it as the links allow."""
        for attempt in list(endpoint.attempts.values()):
            attempt.over = True
        endpoint.attempts.clear()
        for end in list(endpoint.connected):
            end.held_out.clear()
            self._forget(end)
            self._tell_other(end)
        endpoint.ends.clear()
        endpoint.deferred.clear()

    def freeze(self, endpoint: Endpoint) -> None:
        """Time stops for an endpoint; peers hear nothing of it."""
        endpoint.frozen = True
        for end in endpoint.connected:
            end.lane.hold()
            self._update_silence(end.other)

    def thaw(self, endpoint: Endpoint) -> None:
        """Time goes on, first with what gathered meanwhile."""
        endpoint.frozen = False
        for end in list(endpoint.connected):
            end.lane.release()
            self._update_silence(end.other)
            self._update_silence(end)
        deferred, endpoint.deferred = endpoint.deferred, []
        for action, arguments in deferred:
            action(*arguments)

    def let_out(self, endpoint: Endpoint) -> None:
        """Send what an absorbing endpoint held back, in order."""
        for end in list(endpoint.ends.values()):
            held, end.held_out = end.held_out, []
            for message in held:
                self._put(end, message)

    # ------------------------------------------------------------ opening

    def _hello_arrives(self, attempt: Attempt) -> None:
        if attempt.over:
            return
        here, there = attempt.endpoint, self.endpoints[attempt.peer]
        blocked = self._blocked((here.key, there.key)) or self._blocked((there.key, here.key))
        if blocked:
            self._wait_for_timeout(attempt)
            return
        if there.frozen:  # its kernel has the connection: it reads Hello when its time goes on
            there.deferred.append((self._hello_arrives, (attempt,)))
            self._wait_for_timeout(attempt)
            return
        if not there.alive:
            self._give_up(attempt, "refused")
            return
        crossing = there.attempts.get(here.key)
        if crossing is not None:
            assert isinstance(here.key, int), f"{here.key} is a client, and nobody dials clients"
            assert isinstance(there.key, int), f"{there.key} is a client, and dials no broker back"
            if here.key > there.key:  # the smaller one's attempt is kept
                self._wait_for_timeout(attempt)
                return
            crossing.over = True
            del there.attempts[here.key]
        old = there.ends.get(here.key)
        if old is not None:
            self._end_here(old, "closed_by_peer")
            self._tell_other(old)
            late = there.attempts.pop(here.key, None)
            if late is not None:  # made on the loss of the old one; this one is being opened
                late.over = True
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
        if end.over:
            return
        if attempt.over or not attempt.endpoint.alive:
            self._forget(end)
            self._tell_other(end)
            return
        attempt.over = True
        del attempt.endpoint.attempts[attempt.peer]
        self._up(end, incarnation)

    def _up(self, end: SessionEnd, incarnation: int) -> None:
        self.counters["sessions_established"] += 1
        end.up = True
        end.number = end.endpoint.next_session()
        if (end.peer, end.endpoint.key) in self._absorbed:
            end.lane.hold()
        end.endpoint.ends[end.peer] = end
        end.endpoint.established(end, incarnation)
        self._update_silence(end)

    def _wait_for_timeout(self, attempt: Attempt) -> None:
        """Nothing will answer; where timeouts are not always set, set this one."""
        if self.schedule.adversarial:
            self._arm_timeout(attempt)

    def _arm_timeout(self, attempt: Attempt) -> None:
        timeout_ns = self.parameters.session.connect_timeout_ns
        if not self.schedule.adversarial:
            when_ns = self.schedule.now_ns + timeout_ns
            self.schedule.at(when_ns, self._give_up, attempt, "timed out")
        elif not attempt.timeout.queue:
            self.schedule.post(attempt.timeout, timeout_ns, self._give_up, attempt, "timed out")

    def _give_up(self, attempt: Attempt, reason: str) -> None:
        if attempt.over:
            return
        if attempt.endpoint.frozen:
            attempt.endpoint.deferred.append((self._give_up, (attempt, reason)))
            return
        attempt.over = True
        del attempt.endpoint.attempts[attempt.peer]
        for end in list(attempt.endpoint.connected):
            if end.attempt is attempt:  # answered, but the answer has not come
                self._forget(end)
                self._tell_other(end)
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
        parts = through_wire(message, self.parameters.session.frame_limit_bytes)
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
        if self._delays:
            delay_ns += self._delays.get((end.endpoint.key, end.peer), 0)
        self.schedule.post(target.lane, delay_ns, self._arrives, target, message)

    def _arrives(self, end: SessionEnd, message: Any) -> None:
        if end.up:
            end.endpoint.message_arrived(end, message)
        else:
            self.counters["messages_lost"] += 1
            self._keep_old(end, message)

    def _end_here(self, end: SessionEnd, reason: LossReason) -> None:
        """The session is over at this end, which is up; the far end is not told."""
        del end.endpoint.ends[end.peer]
        self._forget(end)
        end.endpoint.lost(end, reason)

    def _forget(self, end: SessionEnd) -> None:
        was_up, end.up, end.over = end.up, False, True
        end.endpoint.connected.pop(end, None)
        for action, arguments in end.lane.truncate(0):
            if action == self._arrives:
                self.counters["messages_lost"] += 1
                if was_up:
                    self._keep_old(end, arguments[1])

    def _tell_other(self, end: SessionEnd) -> None:
        """Let the close of this end reach the other end, unless the link swallows it."""
        other = end.other
        if other.over or other.deaf:
            return
        way = (end.endpoint.key, end.peer)
        if self._cut.get(way):
            self._deafen(other)
            return
        if way in self._absorbed or (self.parameters.lost_on_close and self._random.random() < 0.5):
            keep = 0 if way in self._absorbed else self._random.randrange(len(other.lane.queue) + 1)
            self.counters["messages_lost"] += len(other.lane.truncate(keep))
        # A close passes where signs of life pass.
        lane = other.lane
        if way in self._absorbed:
            lane = Lane(self.schedule, f"{end.endpoint.key}:closes:{end.peer}")
        self.schedule.post(lane, end.latency_ns, self._close_arrives, other)

    def _close_arrives(self, end: SessionEnd) -> None:
        if end.over:
            return
        if end.up:
            self._end_here(end, "closed_by_peer")
            return
        # The answer to our attempt was destroyed by the close behind it.
        self._forget(end)
        if end.attempt is not None:
            self._give_up(end.attempt, "closed by peer")

    def _deafen(self, end: SessionEnd) -> None:
        if end.over:
            return
        end.deaf = True
        self.counters["messages_lost"] += len(end.lane.truncate(0))
        if end.attempt is not None and not end.attempt.over:
            self._wait_for_timeout(end.attempt)
        self._update_silence(end)

    def _keep_old(self, end: SessionEnd, message: Any) -> None:
        if self.parameters.keep_old_messages and end.number and end.endpoint.alive:
            self.old_messages.append(
                OldMessage(end.endpoint, end.incarnation, end.peer, end.number, message)
            )

    # ------------------------------------------------------------ the failure detector

    def _update_silence(self, end: SessionEnd) -> None:
        if not end.up:
            return
        silent = (
            end.deaf
            or end.other.endpoint.frozen
            or (end.peer, end.endpoint.key) in self._blackholed
        )
        if silent and not end.silence:
            self._silences += 1
            end.silence = self._silences
            session = self.parameters.session
            delay_ns = session.suspicion_ns
            if self.parameters.jitter_ns:  # the last sign of life came up to a heartbeat ago
                delay_ns -= int(self._random.random() * session.heartbeat_ns)
            self.schedule.post(end.watch, delay_ns, self._silence_noticed, end, end.silence)
        elif not silent:
            end.silence = 0

    def _silence_noticed(self, end: SessionEnd, silence: int) -> None:
        if not end.up or end.silence != silence:
            return
        if end.endpoint.frozen:
            end.silence = 0  # measured anew when its time goes on
        else:
            self.suspect(end)

    # ------------------------------------------------------------ helpers

    def _blocked(self, way: Direction) -> bool:
        return way in self._cut or way in self._blackholed

    def _ends_reached_by(self, way: Direction) -> Iterator[SessionEnd]:
        sender, receiver = way
        for end in list(self.endpoints[receiver].connected):
            if end.peer == sender:
                yield end

    def _draw_latency(self) -> int:
        low, high = self.parameters.latency_lowest_ns, self.parameters.latency_highest_ns
        return low if low == high else self._random.randrange(low, high)


def _ways(a: Peer, b: Peer, which: WhichWay) -> tuple[Direction, ...]:
    return {"both": ((a, b), (b, a)), "out": ((a, b),), "in": ((b, a),)}[which]
