"""A send window behaves like a new window after stalls, losses and late updates."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.flow_control import EVENT_BYTES, FLOW, FlowControl
from brokerd.protocols.gryphon.messages import WindowProbe, WindowUpdate
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue

LIMIT_BYTES = 8 * EVENT_BYTES
STALL_NS = 1_000
PEER = 0


class Sender:
    """A broker with one neighbour, its publications, and the facts that it observes."""

    def __init__(self) -> None:
        topology = tree_of_cells(("b0", "b1"), [("b0", "b1")])
        self.now_ns = 0
        self.sent: list[WindowProbe] = []
        self.routes = Routes(1, topology, 1)
        self.deadlines: DeadlineQueue[tuple[str, object]] = DeadlineQueue()
        self.stream = next(each for each in self.routes.pubend_streams() if each[0] == 1)
        self.facts: list[str] = []
        parameters = GryphonParameters(
            send_window_bytes=LIMIT_BYTES,
            answer_window_bytes=LIMIT_BYTES // 2,
            send_stall_ns=STALL_NS,
        )
        self.flow = FlowControl(
            self.routes,
            parameters,
            self.deadlines,
        )
        self.sent_bytes = {False: 0, True: 0}
        self.base_bytes = {False: 0, True: 0}
        self.flow.on_session(PEER)
        self.sequence = 0

    def send(self, *, again: bool) -> None:
        self.sequence += 1
        sequences = range(self.sequence, self.sequence + 1)
        run = PublicationRun(self.stream, sequences, (b"a",), b"\0", 0, ())
        probe = self.flow.charge(PEER, run, self.now_ns, again=again)
        self.sent += [probe] if probe is not None else []
        self.sent_bytes[again] += EVENT_BYTES

    def update(self, taken_bytes: int, *, again: bool) -> None:
        """Deliver the neighbour's answer to the last probe that arrived, or to an earlier probe."""
        taken_bytes += self.base_bytes[again]
        update = WindowUpdate(self.routes.cell, again, taken_bytes)
        opened = self.flow.on_update(PEER, update, self.now_ns)
        if opened is None:
            return
        if again:
            self.facts.append("answers")
        elif opened.missed:
            self.facts.append(f"missed {[*opened.missed]}")
        self.use_room()

    def use_room(self) -> None:
        assert self.flow.updates() == []
        if not self.flow.holds_up():
            self.facts.append("room")

    def end_session(self) -> None:
        self.flow.on_session_lost(PEER)
        self.use_room()
        self.flow.on_session(PEER)

    def advance(self, by_ns: int) -> None:
        end_ns = self.now_ns + by_ns
        while (due_ns := self.deadlines.earliest()) is not None and due_ns <= end_ns:
            self.now_ns = due_ns
            assert self.deadlines.due(due_ns) == [(FLOW, None)]
            for effect in self.flow.due(due_ns):
                assert isinstance(effect, Send)
                self.sent.append(effect.message)
            self.use_room()
        self.now_ns = end_ns

    def observed(self) -> list[Any]:
        """Return the messages and facts since the last call, in relative numbers."""
        probes = [
            (
                probe.again,
                probe.sent_bytes - self.base_bytes[probe.again],
            )
            for probe in self.sent
        ]
        self.sent = []
        found, self.facts = self.facts, []
        due_ns = self.deadlines.earliest()
        return [
            probes,
            found,
            self.flow.holds_up(),
            self.flow.can_send(PEER, self.stream),
            self.flow.answer_room_bytes(PEER, self.stream),
            due_ns and due_ns - self.now_ns,
        ]

    def rest(self) -> None:
        """Let the neighbour take all events, and restart the counters."""
        for again in (False, True):
            self.advance(STALL_NS)
            self.send(again=again)
            while self.deadlines.earliest() is not None:
                self.confirm_all()
                self.advance(STALL_NS)
            self.confirm_all()
        for again in (False, True):
            self.base_bytes[again] = self.sent_bytes[again]
        self.observed()

    def confirm_all(self) -> None:
        for again in (False, True):
            if self.sent_bytes[again] > self.base_bytes[again]:
                self.update(self.sent_bytes[again] - self.base_bytes[again], again=again)


def episode(sender: Sender, random: Random) -> None:
    """Play bursts, late and early updates, stalls, and sometimes a new session."""
    for _ in range(random.randrange(5, 40)):
        match random.randrange(5):
            case 0 | 1:
                again = random.random() < 0.4
                for _ in range(random.randrange(1, 12)):
                    sender.send(again=again)
                    if not sender.flow.can_send(PEER, sender.stream):
                        sender.flow.missed(PEER, sender.stream, 0)
            case 2:
                sender.confirm_all()
            case 3:
                sender.advance(random.choice((1, STALL_NS // 4, STALL_NS, 3 * STALL_NS)))
            case 4:
                if random.random() < 0.3:
                    sender.end_session()
                    sender.sent_bytes = dict.fromkeys(sender.sent_bytes, 0)
                    sender.base_bytes = dict.fromkeys(sender.base_bytes, 0)


def burst(sender: Sender) -> None:
    for _ in range(9):
        sender.send(again=False)


def answers(sender: Sender) -> None:
    for _ in range(9):
        sender.send(again=True)


def quarter(sender: Sender) -> None:
    sender.advance(STALL_NS // 4)


def stall(sender: Sender) -> None:
    sender.advance(2 * STALL_NS)


def take(sender: Sender) -> None:
    sender.confirm_all()


FOLLOWING: tuple[Callable[[Sender], None], ...] = (
    burst, quarter, take, burst, stall, burst, take, answers, quarter, burst, take, answers, stall,
    take,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("ends", ["all is taken", "the session ends"])
def test_a_window_after_an_episode_is_like_a_new_one(seed: int, ends: str) -> None:
    old, new = Sender(), Sender()
    episode(old, Random(seed))
    if ends == "all is taken":
        old.rest()
    else:
        old.end_session()
        old.sent_bytes = dict.fromkeys(old.sent_bytes, 0)
        old.base_bytes = dict.fromkeys(old.base_bytes, 0)
        old.advance(STALL_NS)
    old.observed()
    for step in FOLLOWING:
        for each in (old, new):
            step(each)
        assert old.observed() == new.observed(), step.__name__


def test_each_kind_of_event_has_a_window_of_its_own_size() -> None:
    sender = Sender()
    assert sender.flow.answer_room_bytes(PEER, sender.stream) == LIMIT_BYTES // 2
    for _ in range(8):
        assert not sender.flow.holds_up()
        sender.send(again=False)
    assert sender.flow.holds_up()
    assert sender.flow.answer_room_bytes(PEER, sender.stream) == LIMIT_BYTES // 2
    for _ in range(4):
        assert sender.flow.answer_room_bytes(PEER, sender.stream) > 0
        sender.send(again=True)
    assert sender.flow.answer_room_bytes(PEER, sender.stream) == 0


@pytest.mark.parametrize("granted_bytes", [0, 100])
@pytest.mark.parametrize("has_new_session", [False, True])
def test_a_repeated_probe_is_answered_with_the_last_grant_of_its_session(
    granted_bytes: int, has_new_session: bool
) -> None:
    """The window onwards is full, so the answer proves that this broker is alive, and no more."""
    topology = tree_of_cells(("b0", "b1", "b2"), [("b0", "b1"), ("b1", "b2")])
    routes, onward = Routes(1, topology, 1), 2
    parameters = GryphonParameters(send_window_bytes=LIMIT_BYTES, send_stall_ns=STALL_NS)
    flow = FlowControl(routes, parameters, DeadlineQueue())
    flow.on_session(PEER)
    flow.on_session(onward)
    cell = routes.cell_by_broker[PEER]
    if granted_bytes:
        (update,) = flow.on_probe(PEER, WindowProbe(cell, False, granted_bytes))
        assert update == Send(PEER, WindowUpdate(cell, False, granted_bytes))
    if has_new_session:
        flow.on_session_lost(PEER)
        flow.on_session(PEER)
    stream = next(each for each in routes.pubend_streams() if each[0] == PEER)
    run = PublicationRun(stream, range(1, 17), (b"a",), bytes(16), 0, ())
    flow.charge(onward, run, 0, again=False)
    probe, taken_bytes = WindowProbe(cell, False, 150), 0 if has_new_session else granted_bytes
    assert flow.on_probe(PEER, probe) == []
    assert flow.on_probe(PEER, probe) == [Send(PEER, WindowUpdate(cell, False, taken_bytes))]
