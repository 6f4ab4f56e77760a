"""A cluster without time: a list of what may happen next, of which somebody picks one.

The cores, the client library and the disks are the real ones or stand for them; between them
lie sessions that promise what the runtime's sessions promise and no more. Nothing has a
duration. What waits to happen waits on lanes, each first in, first out: what is under way on one
direction of one session, one attempt to connect, one disk, one application. Everything else
(suspicions, cuts, crashes, deadlines) may happen at any moment.

Every action has a name made of plain values, such as ("deliver", 3, 1): a list of them is a
history that can be played again, with some of them left out.

Paper: [DFT11] §II (system model); an instance that has lost a message carries no other one.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.through_wire import through_wire

Action = tuple[Any, ...]
"""A verb and what it is done to."""

Direction = tuple[Peer, Peer]
"""From whom, to whom."""

_MOST_OLD_MESSAGES = 8


class Lane:
    """What waits to happen, in this order and in no other.

    Attributes:
        action: what letting the first of it happen is called.
        act: does it.
        held: nothing of it happens for the time being.
    """

    __slots__ = ("_place", "_ready", "act", "action", "held", "queue")

    def __init__(self, ready: "list[Lane]", action: Action, act: Callable[[Any], None]) -> None:
        self.action = action
        self.act = act
        self.queue: deque[Any] = deque()
        self.held = False
        self._ready = ready
        self._place = -1

    def push(self, item: Any) -> None:
        """Let `item` happen, after everything that waits here already."""
        self.queue.append(item)
        if self._place < 0 and not self.held:
            self._place = len(self._ready)
            self._ready.append(self)

    def happen(self) -> None:
        """Let the first item happen; there must be one."""
        item = self.queue.popleft()
        if not self.queue:
            self._withdraw()
        self.act(item)

    def keep(self, count: int) -> None:
        """Drop all but the first `count` items."""
        while len(self.queue) > count:
            self.queue.pop()
        if not self.queue:
            self._withdraw()

    def hold(self) -> None:
        """Let nothing happen here until `release`."""
        self.held = True
        self._withdraw()

    def release(self) -> None:
        """Go on."""
        self.held = False
        if self.queue and self._place < 0:
            self._place = len(self._ready)
            self._ready.append(self)

    def _withdraw(self) -> None:
        if self._place < 0:
            return
        last = self._ready.pop()
        if last is not self:
            self._ready[self._place] = last
            last._place = self._place
        self._place = -1


class End:
    """One end of one session instance.

    Attributes:
        lane: what is on its way to this end.
        up: established here and not lost.
        over: lost here, or never to be established.
        deaf: something on its way here was lost, so nothing may arrive any more.
    """

    __slots__ = ("deaf", "incarnation", "lane", "number", "other", "over", "owner", "peer", "up")

    def __init__(self, owner: "Endpoint", peer: Peer, lane: Lane) -> None:
        self.owner = owner
        self.peer = peer
        self.lane = lane
        self.incarnation = owner.incarnation
        self.number = 0
        self.other: End = self
        self.up = False
        self.over = False
        self.deaf = False


class Attempt:
    """One attempt to open a session. `lost`: nobody will answer it any more."""

    __slots__ = ("lost", "over", "owner", "peer")

    def __init__(self, owner: "Endpoint", peer: Peer) -> None:
        self.owner = owner
        self.peer = peer
        self.lost = False
        self.over = False


class Endpoint:
    """What has sessions: a broker or a client.

    Attributes:
        ends: its established sessions.
        answered: ends of sessions it asked for, whose answer is on its way.
        attempts: what it tries to open.
    """

    def __init__(self, key: Peer) -> None:
        self.key = key
        self.alive = False
        self.incarnation = 0
        self.ends: dict[Peer, End] = {}
        self.answered: dict[Peer, End] = {}
        self.attempts: dict[Peer, Attempt] = {}
        self._sessions = 0

    def established(self, end: End, incarnation: int) -> None:
        raise NotImplementedError

    def lost(self, end: End, reason: LossReason) -> None:
        raise NotImplementedError

    def open_failed(self, peer: Peer, reason: str) -> None:
        raise NotImplementedError

    def message_arrived(self, end: End, message: Any) -> None:
        raise NotImplementedError

    def next_session(self) -> int:
        """A session number that this incarnation has not used."""
        self._sessions += 1
        return self._sessions


class _Answer:
    """On a lane: the far end has taken the session; its incarnation."""

    __slots__ = ("incarnation",)

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation


class _Close:
    """On a lane: the far end has ended the session."""


_CLOSE = _Close()


class UntimedNetwork:
    """Lanes, sessions and links between endpoints.

    Args:
        random: for what no action decides: how much of what is under way a close destroys.

    Attributes:
        ready: the lanes on which something may happen now.
        lanes: all that there have ever been, by action.
        cut: directions that swallow everything.
        frame_limit_bytes: of what messages go through the wire's codec with; 0: they do not.
        old_messages: (endpoint, incarnation, peer, session, message): a few that came too late.
    """

    def __init__(self, random: Random) -> None:
        self.ready: list[Lane] = []
        self.lanes: dict[Action, Lane] = {}
        self.endpoints: dict[Peer, Endpoint] = {}
        self.cut: dict[Direction, None] = {}
        self.old_messages: deque[tuple[Endpoint, int, Peer, int, Any]] = deque(
            maxlen=_MOST_OLD_MESSAGES
        )
        self.counters = dict.fromkeys(
            (
                "messages_sent",
                "messages_lost",
                "sessions_established",
                "opens_failed",
                "frames_split",
            ),
            0,
        )
        self.frame_limit_bytes = 0
        self._random = random

    def lane(self, action: Action, act: Callable[[Any], None]) -> Lane:
        """The lane of this action."""
        lane = self.lanes.get(action)
        if lane is None:
            lane = self.lanes[action] = Lane(self.ready, action, act)
        return lane

    def is_open(self, a: Peer, b: Peer) -> bool:
        """Whether a session between the two could be opened now."""
        alive = self.endpoints[a].alive and self.endpoints[b].alive
        return alive and (a, b) not in self.cut and (b, a) not in self.cut

    # ------------------------------------------------------------ what endpoints ask for

    def open(self, owner: Endpoint, peer: Peer) -> None:
        """Try once to open a session; ignored while one is up or being opened."""
        if peer in owner.ends or peer in owner.attempts:
            return
        attempt = owner.attempts[peer] = Attempt(owner, peer)
        self.lane(("connect", owner.key, peer), self._hello).push(attempt)

    def close(self, owner: Endpoint, peer: Peer) -> None:
        """End the session or the attempt with a peer."""
        end = owner.ends.get(peer)
        if end is not None:
            self._end(end, "closed_by_us")
            self._tell(end.other)
        elif peer in owner.attempts:
            self._fail(owner.attempts[peer], "closed by us")

    def send(self, owner: Endpoint, peer: Peer, message: Any) -> None:
        """Put a message on the session with a peer; dropped when there is none."""
        end = owner.ends.get(peer)
        if end is None or end.other.deaf or end.other.over:
            self.counters["messages_lost"] += 1
            return
        parts = [message]
        if self.frame_limit_bytes:
            parts = [part for part, _ in through_wire(message, self.frame_limit_bytes)]
            self.counters["frames_split"] += len(parts) > 1
        for part in parts:
            self.counters["messages_sent"] += 1
            end.other.lane.push(part)

    # ------------------------------------------------------------ what may go wrong

    def suspect(self, owner: Peer, peer: Peer) -> bool:
        """`owner` takes `peer` for dead, rightly or not; says whether it had a session."""
        end = self.endpoints[owner].ends.get(peer)
        if end is None:
            return False
        self._silence(end)
        return True

    def give_up(self, owner: Peer, peer: Peer) -> bool:
        """`owner` waits no longer for an answer; says whether it did."""
        attempt = self.endpoints[owner].attempts.get(peer)
        if attempt is None:
            return False
        self._fail(attempt, "timed out")
        return True

    def cut_direction(self, sender: Peer, receiver: Peer) -> bool:
        """What is under way is lost, and nothing passes any more."""
        if (sender, receiver) in self.cut:
            return False
        self.cut[sender, receiver] = None
        endpoint = self.endpoints[receiver]
        for end in (endpoint.ends.get(sender), endpoint.answered.get(sender)):
            if end is not None:
                self._deafen(end)
        return True

    def heal_direction(self, sender: Peer, receiver: Peer) -> bool:
        """New sessions pass again; one that has lost something stays as it is."""
        if (sender, receiver) not in self.cut:
            return False
        del self.cut[sender, receiver]
        return True

    def endpoint_died(self, owner: Endpoint) -> None:
        """Its sessions and attempts are gone; the far ends learn it as the links allow."""
        for attempt in owner.attempts.values():
            attempt.over = True
        owner.attempts.clear()
        ends = [*owner.ends.values(), *owner.answered.values()]
        owner.ends.clear()
        owner.answered.clear()
        for end in ends:
            self._forget(end)
            self._tell(end.other)

    # ------------------------------------------------------------ opening

    def _hello(self, attempt: Attempt) -> None:
        if attempt.over:
            return
        here, there = attempt.owner, self.endpoints[attempt.peer]
        if (here.key, there.key) in self.cut or (there.key, here.key) in self.cut:
            self._lose(attempt)
            return
        if not there.alive:
            self._fail(attempt, "refused")
            return
        crossing = there.attempts.get(here.key)
        if crossing is not None:
            assert isinstance(here.key, int), f"{here.key} is a client, and nobody dials clients"
            assert isinstance(there.key, int), f"{there.key} is a client, and dials no broker back"
            if here.key > there.key:  # the smaller one's attempt is kept
                self._lose(attempt)
                return
            crossing.over = True
            del there.attempts[here.key]
            stale = there.answered.pop(here.key, None)
            if stale is not None:
                self._forget(stale)
                self._tell(stale.other)
        old = there.ends.get(here.key)
        if old is not None:
            self._end(old, "closed_by_peer")
            self._tell(old.other)
        self._connect(here, there)

    def _connect(self, here: Endpoint, there: Endpoint) -> None:
        near = End(here, there.key, self._lane_to(here.key, there.key))
        far = End(there, here.key, self._lane_to(there.key, here.key))
        near.other, far.other = far, near
        assert not near.lane.queue, f"an old session is under way to {here.key}: {near.lane.queue}"
        assert not far.lane.queue, f"an old session is under way to {there.key}: {far.lane.queue}"
        here.answered[there.key] = near
        near.lane.push(_Answer(there.incarnation))
        self._up(far, here.incarnation)

    def _lane_to(self, receiver: Peer, sender: Peer) -> Lane:
        action = ("deliver", sender, receiver)
        lane = self.lanes.get(action)
        if lane is None:
            endpoint = self.endpoints[receiver]
            lane = self.lane(action, lambda item: self._arrive(endpoint, sender, item))
        return lane

    def _up(self, end: End, incarnation: int) -> None:
        self.counters["sessions_established"] += 1
        end.up = True
        end.number = end.owner.next_session()
        end.owner.ends[end.peer] = end
        end.owner.established(end, incarnation)

    def _lose(self, attempt: Attempt) -> None:
        """Nobody will answer; all that can happen to the attempt is its timeout."""
        if not attempt.lost:
            attempt.lost = True
            action = ("give up", attempt.owner.key, attempt.peer)
            self.lane(action, self._time_out).push(attempt)

    def _time_out(self, attempt: Attempt) -> None:
        if not attempt.over:
            self._fail(attempt, "timed out")

    def _fail(self, attempt: Attempt, reason: str) -> None:
        attempt.over = True
        del attempt.owner.attempts[attempt.peer]
        end = attempt.owner.answered.pop(attempt.peer, None)
        if end is not None:  # answered, but the answer has not come
            self._forget(end)
            self._tell(end.other)
        self.counters["opens_failed"] += 1
        attempt.owner.open_failed(attempt.peer, reason)

    # ------------------------------------------------------------ carrying and ending

    def _arrive(self, owner: Endpoint, peer: Peer, item: Any) -> None:
        end = owner.ends.get(peer)
        if type(item) is _Answer:
            owner.attempts.pop(peer).over = True
            self._up(owner.answered.pop(peer), item.incarnation)
        elif item is not _CLOSE:
            assert end is not None, f"{item} for {owner.key}, which has no session with {peer}"
            owner.message_arrived(end, item)
        elif end is not None:
            self._end(end, "closed_by_peer")
        else:  # the answer was destroyed by the close behind it
            self._forget(owner.answered[peer])
            del owner.answered[peer]
            self._fail(owner.attempts[peer], "closed by peer")

    def _end(self, end: End, reason: LossReason) -> None:
        """The session is over at this end, which is up; the far end is not told."""
        del end.owner.ends[end.peer]
        self._forget(end)
        end.owner.lost(end, reason)

    def _forget(self, end: End) -> None:
        if end.up and end.lane.queue:
            message = end.lane.queue[0]
            if type(message) is not _Close:
                self.old_messages.append(
                    (end.owner, end.incarnation, end.peer, end.number, message)
                )
        self.counters["messages_lost"] += len(end.lane.queue)
        end.lane.keep(0)
        end.up, end.over = False, True

    def _tell(self, end: End) -> None:
        """Let the close of the other end reach this one, unless the link swallows it."""
        if end.over or end.deaf:
            return
        if (end.peer, end.owner.key) in self.cut:
            self._deafen(end)
            return
        if self._random.random() < 0.5:
            kept = self._random.randrange(len(end.lane.queue) + 1)
            self.counters["messages_lost"] += len(end.lane.queue) - kept
            end.lane.keep(kept)
        end.lane.push(_CLOSE)

    def _deafen(self, end: End) -> None:
        if end.over or end.deaf:
            return
        end.deaf = True
        self.counters["messages_lost"] += len(end.lane.queue)
        end.lane.keep(0)
        if end.up:
            self.lane(("notice", end.owner.key, end.peer), self._silence).push(end)
        else:
            self._lose(end.owner.attempts[end.peer])

    def _silence(self, end: End) -> None:
        if end.up:
            self._end(end, "silent")
            self._tell(end.other)
