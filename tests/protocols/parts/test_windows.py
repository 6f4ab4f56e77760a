"""A random history of a broker's deliveries against the laws that any history obeys.

Each entry completes once, each publication is acknowledged once for each subscription that lasts,
and a client receives nothing for a subscription that it has not claimed on its session.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import pytest

from brokerd.model.client_messages import Deliveries, Gap
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Deliver
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.event_machine import EventMachine

STREAMS = (SourceId(3, 0, 1), SourceId(4, 0, 1))
WINDOW = 5
LONGEST = 3


@dataclass(eq=False)
class Wanted:
    """A subscription, as far as windows look at it."""

    client: ClientId
    number: int
    is_over: bool = False
    begins_after: dict[SourceId, int] = field(default_factory=dict)
    acknowledged: dict[SourceId, int] = field(default_factory=dict)


class History:
    """Two clients with three subscriptions each, and the effects of random requests."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.machine = EventMachine()
        self.counters = {"publications_delivered": 0}
        self.windows: DeliveryWindows[int, Wanted] = DeliveryWindows(
            self.machine, WINDOW, self.counters
        )
        self.locals = {
            client: [Wanted(client, number) for number in (1, 2, 3)] for client in ("c", "d")
        }
        self.claimed: dict[str, set[int]] = {"c": set(), "d": set()}
        self.unacknowledged: dict[str, deque[tuple[SourceId, int, int, tuple[int, ...]]]] = {
            client: deque() for client in self.locals
        }
        self.holds: Counter[str] = Counter()
        self.position = dict.fromkeys(STREAMS, 0)
        self.entries: list[int] = []
        self.completed: list[int] = []
        self.owed: Counter[tuple[str, int, SourceId, int]] = Counter()
        self.done: Counter[tuple[str, int, SourceId, int]] = Counter()
        self.delivered = 0
        self.is_in_order = True
        self.positions: dict[tuple[str, int], dict[SourceId, int]] = {
            (client, each.number): {} for client, all_ in self.locals.items() for each in all_
        }

    # ------------------------------------------------------------ requests

    def deliver(self, client: str) -> None:
        stream = self.random.choice(STREAMS)
        first = self.position[stream] + self.random.randint(1, 2)
        last = self.position[stream] = first + self.random.randrange(LONGEST)
        alive = [each for each in self.locals[client] if not each.is_over]
        if not alive:
            return
        chosen = tuple(self.random.sample(alive, self.random.randint(1, len(alive))))
        entry = len(self.entries)
        self.entries.append(entry)
        count = last - first + 1
        run = PublicationRun(
            stream, range(first, last + 1), (b"a",), bytes(count), 0, (b"",) * count
        )
        self.windows.deliver(client, run, chosen, (entry,))
        for local in chosen:
            self.owed.update((client, local.number, stream, each) for each in run.sequences)

    def claim(self, client: str) -> None:
        local = self.random.choice(self.locals[client])
        if not local.is_over:
            self.claimed[client].add(local.number)
            self.completed += self.windows.claim(local)

    def close(self, client: str) -> None:
        self.claimed[client].clear()
        self.unacknowledged[client].clear()
        self.completed += self.windows.close(client)

    def end(self, client: str) -> None:
        local = self.random.choice(self.locals[client])
        if self.random.random() < 0.2 and not local.is_over:
            local.is_over = True
            self.claimed[client].discard(local.number)
            self.completed += self.windows.discard_unsent(local)

    def hold(self, client: str) -> None:
        """Hold a client back, once for each of up to two subscriptions that are about to start."""
        if self.holds[client] and self.random.random() < 0.7:
            self.release(client)
        elif self.holds[client] < 2:
            self.holds[client] += 1
            self.windows.hold(client)

    def release(self, client: str) -> None:
        self.holds[client] -= 1
        self.windows.release(client)

    def acknowledge(self, client: str) -> None:
        """Acknowledge the beginning of the oldest delivery of a stream."""
        waiting = self.unacknowledged[client]
        if not waiting:
            return
        stream, first, last, numbers = waiting.popleft()
        upto = self.random.randint(first, last)
        if upto < last:
            waiting.appendleft((stream, upto + 1, last, numbers))
        for number in numbers:
            if upto == last:
                positions = self.positions[client, number]
                positions[stream] = max(last, positions.get(stream, 0))
            self.done.update((client, number, stream, each) for each in range(first, upto + 1))
        self.take_acknowledgement(client, stream, first, upto)

    def acknowledge_out_of_order(self, client: str) -> None:
        """Acknowledge a later delivery of a stream, as long as an earlier one has no answer."""
        waiting = self.unacknowledged[client]
        later = [
            row
            for place, row in enumerate(waiting)
            if any(each[0] == row[0] for each in [*waiting][:place])
        ]
        if not later:
            return
        self.is_in_order = False
        stream, first, last, numbers = row = self.random.choice(later)
        waiting.remove(row)
        for number in numbers:
            self.done.update((client, number, stream, each) for each in range(first, last + 1))
        self.take_acknowledgement(client, stream, first, last)

    def take_acknowledgement(self, client: str, stream: SourceId, first: int, last: int) -> None:
        """Check that exactly the subscriptions with another position are reported as advanced."""
        before = {each.number: {**each.acknowledged} for each in self.locals[client]}
        self.completed += self.windows.acknowledge(client, stream, first, last)
        moved = {each.number for each in self.locals[client]
                 if each.acknowledged != before[each.number]}  # fmt: skip
        assert {each.number for each in self.windows.advanced} == moved
        assert {each.client for each in self.windows.advanced} <= {client}

    # ------------------------------------------------------------ effects

    def take_effects(self) -> None:
        """Check each delivery against the session of its client, and remember it."""
        effects, self.machine.effects = self.machine.effects, []
        for effect in effects:
            assert isinstance(effect, Deliver)
            client, item = effect.client, effect.item
            assert isinstance(item, Deliveries), item
            assert not self.holds[client], "held back"
            ended = {each.number for each in self.locals[client] if each.is_over}
            assert {*item.subscriptions} <= self.claimed[client] | ended
            run = item.run
            before = sum(last - first + 1 for _, first, last, _ in self.unacknowledged[client])
            assert before < WINDOW, "the window was full"
            same = [row[2] for row in self.unacknowledged[client] if row[0] == run.source]
            assert all(last < run.first for last in same), "copies one after another"
            for number in item.subscriptions:
                for sequence in run.sequences:
                    assert not self.done[client, number, run.source, sequence], "acknowledged"
            self.delivered += len(run)
            row = run.source, run.first, run.last, item.subscriptions
            self.unacknowledged[client].append(row)

    def step(self) -> None:
        client = self.random.choice([*self.locals])
        act = self.random.choice(
            [self.deliver] * 6 + [self.claim] * 4 + [self.acknowledge] * 6
            + [self.close, self.end, self.hold, self.acknowledge_out_of_order]
        )  # fmt: skip
        act(client)
        self.take_effects()
        for each in self.locals:
            self.check_rest(each)

    def check_rest(self, client: str) -> None:
        """Check that nothing waits without a cause, and what is left of a client's deliveries."""
        alive = {each.number: each for each in self.locals[client] if not each.is_over}
        left = [key for key in self.owed if key[0] == client and key[1] in alive]
        is_done = all(self.done[key] for key in left) and not self.unacknowledged[client]
        assert self.windows.is_drained(client) == is_done
        for number, local in alive.items():
            assert local.acknowledged == self.positions[client, number] or not self.is_in_order
            for stream, last in local.acknowledged.items():
                owed = [key for key in left if key[1:3] == (number, stream) and key[3] <= last]
                assert all(self.done[key] for key in owed), "a position behind an open delivery"
        outlet = self.windows._outlets.get(client)
        if outlet is None:
            return
        assert {each.number for each in outlet.claimed} == self.claimed[client]
        is_behind = bool(outlet.waiting) and outlet.unacknowledged >= WINDOW
        assert (client in self.windows.clients_behind()) == is_behind
        if self.holds[client] or not outlet.waiting:
            return
        first = outlet.waiting[0].remainder
        sent = [row[2] for row in self.unacknowledged[client] if row[0] == first.source]
        is_full = outlet.unacknowledged >= WINDOW
        assert is_full or any(last >= first.first for last in sent), "it could be sent"

    def finish(self) -> None:
        """Claim every subscription, and acknowledge everything."""
        for client, locals_ in self.locals.items():
            while self.holds[client]:
                self.release(client)
            for local in locals_:
                if not local.is_over:
                    self.claimed[client].add(local.number)
                    self.completed += self.windows.claim(local)
            self.take_effects()
            while self.unacknowledged[client]:
                self.acknowledge(client)
                self.take_effects()


@pytest.mark.parametrize("seed", range(150))
def test_each_delivery_completes_once_whatever_happens_meanwhile(seed: int) -> None:
    history = History(seed)
    for _ in range(history.random.choice([10, 40, 120])):
        history.step()
    history.finish()
    assert Counter(history.completed) == Counter(history.entries)
    over = {(client, each.number) for client, all_ in history.locals.items() for each in all_
            if each.is_over}  # fmt: skip
    lasting = {key for key in history.owed if key[:2] not in over}
    assert {key for key in history.done if key[:2] not in over} == lasting
    assert {*history.done.values()} <= {1}
    assert history.counters == {"publications_delivered": history.delivered}
    for client in history.locals:
        assert history.windows.is_drained(client)
        history.windows.forget(client)
    assert not history.windows._outlets, "nothing is kept of clients that have left"


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_gap_of_each_session_waits_once_and_comes_first(sessions: int) -> None:
    """A client may connect several times before it claims its subscription."""
    history = History(0)
    windows = history.windows
    local, other = history.locals["c"][:2]
    gap, later = (Gap((1,), STREAMS[0], first, first + 3, "lost state") for first in (1, 5))
    run = PublicationRun(STREAMS[0], range(9, 10), (b"a",), b"\0", 0, (b"",))
    windows.deliver("c", run, (local,), (0,))
    for _ in range(sessions):
        windows.announce_first(local, later)
        windows.announce_first(local, gap)
        windows.announce_first(other, gap)
        assert not [*windows.close("c")]
    assert not [*windows.claim(local)]
    items = [effect.item for effect in history.machine.effects if isinstance(effect, Deliver)]
    assert items == [gap, later, Deliveries(run, (1,))]
    history.machine.effects = []
    assert not [*windows.claim(other)]
    assert [*windows.acknowledge("c", STREAMS[0], 1, 10)] == [0]
    assert history.machine.effects == [Deliver("c", gap)], "each subscription has its own"


def run_of(first: int, last: int, stream: SourceId = STREAMS[0]) -> PublicationRun:
    count = last - first + 1
    return PublicationRun(stream, range(first, last + 1), (b"a",), bytes(count), 0, (b"",) * count)


def sent_to(history: History) -> list[object]:
    """Return what clients have received since the last call."""
    effects, history.machine.effects = history.machine.effects, []
    return [effect.item for effect in effects if isinstance(effect, Deliver)]


def test_a_client_that_is_held_back_is_not_forgotten() -> None:
    history = History(0)
    windows = history.windows
    windows.forget("c")
    windows.hold("c")
    windows.forget("c")
    local = history.locals["c"][0]
    assert not [*windows.claim(local)]
    windows.deliver("c", run_of(1, 1), (local,), (0,))
    assert sent_to(history) == [], "the hold is not forgotten either"
    windows.release("c")
    assert sent_to(history) == [Deliveries(run_of(1, 1), (1,))]
    assert [*windows.acknowledge("c", STREAMS[0], 1, 1)] == [0]
    windows.forget("c")
    assert not windows._outlets


@pytest.mark.parametrize("reported", range(11))
def test_only_what_a_client_reports_is_not_repeated_to_it(reported: int) -> None:
    """A client with a position in one stream claims two subscriptions, of which one has it."""
    history = History(0)
    windows = history.windows
    mine, other = history.locals["c"][:2]
    mine.begins_after = {STREAMS[0]: reported}
    bounds = [(2, 3), (4, 7), (8, 9)]
    gap = Gap((1,), STREAMS[0], 10, 10, "lost state")
    windows.hold("c")
    assert not [*windows.claim(other)]
    for entry, (first, last) in enumerate(bounds):
        windows.deliver("c", run_of(first, last, STREAMS[1]), (mine,), (entry,))
        windows.deliver("c", run_of(first, last), (mine,), (10 + entry,))
    windows.announce("c", (mine,), STREAMS[0], 10, gap)
    windows.deliver("c", run_of(1, 1), (other,), (20,))
    assert windows.first_waiting(mine) == {STREAMS[0]: 2, STREAMS[1]: 2}
    assert windows.first_waiting(other) == {}, "nothing waits for a claim any more"
    assert windows.first_waiting(history.locals["d"][0]) == {}
    known = [10 + entry for entry, (_, last) in enumerate(bounds) if last <= reported]
    assert [*windows.claim(mine)] == known, "the client has them already"
    assert windows.first_waiting(mine) == {}
    found: list[object] = []
    windows.release("c")
    done = [*known]
    while more := sent_to(history):
        found += more
        for item in more:
            if isinstance(item, Deliveries):
                run = item.run
                done += windows.acknowledge("c", run.source, run.first, run.last)
            elif isinstance(item, Gap):
                done += windows.acknowledge("c", item.stream, item.last, item.last)
                assert not windows.advanced, "a gap has no position"
    wanted = {STREAMS[0]: [*range(max(2, reported + 1), 10)], STREAMS[1]: [*range(2, 10)]}
    runs = [each for each in found if isinstance(each, Deliveries)]
    for stream, numbers in wanted.items():
        theirs = [each.run for each in runs if each.subscriptions == (1,)]
        assert [n for run in theirs if run.source == stream for n in run.sequences] == numbers
    assert Deliveries(run_of(1, 1), (2,)) in found, "the other subscription has no position"
    assert found.count(gap) == 1
    assert sorted(done) == [0, 1, 2, 10, 11, 12, 20]


def test_a_publication_for_two_subscriptions_is_sent_once_if_both_are_claimed() -> None:
    history = History(0)
    windows = history.windows
    one, other = history.locals["c"][:2]
    windows.hold("c")
    for entry, first in enumerate((1, 3)):
        windows.deliver("c", run_of(first, first + 1), (one, other), (entry,))
    same = run_of(5, 5)
    windows.deliver("c", same, (one,), (2,))
    windows.deliver("c", same, (other,), (3,))
    assert not [*windows.claim(one)]
    assert not [*windows.claim(other)]
    windows.release("c")
    both = [Deliveries(run_of(first, first + 1), (1, 2)) for first in (1, 3)]
    assert sent_to(history) == [*both, Deliveries(same, (1,))]
    assert [*windows.acknowledge("c", STREAMS[0], 1, 5)] == [0, 1, 2]
    assert sent_to(history) == [Deliveries(same, (2,))], "of another entry"
    assert [*windows.acknowledge("c", STREAMS[0], 5, 5)] == [3]
