"""Passages through a broker, and its requests to relays, against plain tables over random events.

A session may end and be opened again at any moment, and messages of former requests arrive late.
"""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocols.delta_tree.messages import Relay
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.regions import path_distance
from brokerd.protocols.delta_tree.relays import NOWHERE, Channel, Leg, Passages, RelayRequests
from brokerd.protocols.delta_tree.sessions import Reach
from brokerd.protocols.interface import OpenSession, Send

BROKERS = range(1, 4)


class Row:
    """A passage in the plain table; `asked_in` is the session in which the target was asked."""

    def __init__(self, number: int, incarnation: int) -> None:
        self.number, self.incarnation = number, incarnation
        self.asked_in, self.is_accepted = 0, False
        self.channel: Channel | None = None


class Middle:
    """A broker between others, its passages, and the plain table of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.legs: dict[int, Leg] = {}
        self.effects: list[Any] = []
        self.passages = Passages(self.legs, self.effects)
        self.rows: dict[tuple[int, int], Row] = {}
        self.sent: list[Send] = []
        self.sessions = 0
        self.closed: list[Channel] = []

    def pair(self) -> tuple[int, int]:
        asker, target = self.random.sample(BROKERS, 2)
        return asker, target

    def send(self, peer: int, step: Any, name: tuple[int, int, int], incarnation: int = 0) -> None:
        self.sent.append(Send(peer, Relay(step, *name, incarnation)))

    def ask(self, pair: tuple[int, int], row: Row, *, again: bool) -> None:
        """Ask the target, unless it was asked in its session, or the asker repeats a request."""
        if pair[1] in self.legs and (again or not row.asked_in):
            row.asked_in = self.legs[pair[1]].session
            if not row.is_accepted:
                self.send(pair[1], "ask", (*pair, row.number), row.incarnation)

    def end(self, pair: tuple[int, int], notify: int) -> None:
        """Remove a row, and notify an end that has a session and has received the request."""
        row = self.rows.pop(pair)
        if row.channel is not None:
            self.closed.append(row.channel)
        if notify in self.legs and (notify == pair[0] or row.asked_in):
            self.send(notify, "close", (*pair, row.number))

    # ------------------------------------------------------------ events

    def request(self) -> None:
        pair = self.pair()
        row = self.rows.get(pair)
        is_new = row is None or self.random.random() < 0.5
        number = (row.number if row is not None else 0) + is_new
        incarnation = self.random.randrange(9)
        if row is not None and is_new:
            self.end(pair, pair[1])
        if is_new:
            row = self.rows[pair] = Row(number, incarnation)
        assert row is not None
        self.ask(pair, row, again=True)
        found = self.passages.request(Relay("ask", *pair, number, incarnation))
        assert found == (pair[1] in self.legs)

    def message(self) -> None:
        """Receive an acceptance or a close, for the present request or a former one."""
        pair = self.pair()
        row = self.rows.get(pair)
        is_known = row is not None and self.random.random() < 0.8
        number = row.number if row is not None and is_known else 99
        name = *pair, number
        if self.random.random() < 0.6:
            message = Relay("accept", *name, 3)
            if row is None or not is_known or not row.asked_in:
                self.send(pair[1], "close", name)
            else:
                row.is_accepted = True
                self.sent.append(Send(pair[0], message))
            self.passages.accept(message)
            return
        peer = self.random.choice(pair)
        if is_known:
            self.end(pair, pair[1] if peer == pair[0] else pair[0])
        self.passages.close(peer, Relay("close", *name, 0))

    def session(self) -> None:
        peer = self.random.choice(BROKERS)
        if peer in self.legs:
            del self.legs[peer]
            for pair, row in [*self.rows.items()]:
                if peer == pair[0]:
                    self.end(pair, pair[1])
                elif peer == pair[1]:
                    row.asked_in = 0
                    if row.is_accepted:
                        self.end(pair, pair[0])
            self.passages.leg_lost(peer)
            return
        self.sessions += 1
        self.legs[peer] = Leg(peer, self.sessions, self.sessions, 0)
        for pair, row in self.rows.items():
            if pair[1] == peer:
                self.ask(pair, row, again=False)
        self.passages.leg_established(peer)

    def departure(self) -> None:
        if self.random.random() < 0.8:
            return
        broker = self.random.choice(BROKERS)
        for pair in [*self.rows]:
            if broker in pair:
                self.end(pair, pair[1] if broker == pair[0] else pair[0])
        self.passages.forget(broker)

    def check(self) -> None:
        assert self.effects == self.sent
        self.effects.clear()
        self.sent.clear()
        for asker in BROKERS:
            for target in BROKERS:
                row = self.rows.get((asker, target))
                number = row.number if row is not None else 1
                assert self.passages.find((asker, target, number + 1)) is NOWHERE
                channel = self.passages.find((asker, target, number))
                if row is None or not row.is_accepted:
                    assert channel is NOWHERE
                else:
                    assert channel.name == (asker, target, number)
                    assert row.channel in (None, channel), "messages keep their order"
                    assert not channel.is_closed
                    row.channel = channel
        assert all(channel.is_closed for channel in self.closed), "late messages go nowhere"


@pytest.mark.parametrize("seed", range(40))
def test_passages_are_those_of_a_plain_table(seed: int) -> None:
    middle = Middle(Random(seed))
    for _ in range(150):
        acts = [middle.request] * 3 + [middle.message] * 4 + [middle.session] * 3
        middle.random.choice([*acts, middle.departure])()
        middle.check()
    assert middle.closed


# ---------------------------------------------------------------- requests

SELF = 0
PATHS = {1: (1,), 2: (2,), 3: (1, 3), 4: (1, 3, 4), 5: (2, 5), 6: (2, 5, 6), 7: (7,)}


class Asker:
    """A broker with unreachable peers, its requests, and the plain table of them."""

    def __init__(self, random: Random, delta: int) -> None:
        self.random, self.delta = random, delta
        self.legs: dict[int, Leg] = {}
        self.effects: list[Any] = []
        self.nodes: dict[int, Any] = {n: SimpleNamespace(path=PATHS[n]) for n in (1, 2, 3, 4, 5)}
        self.reach: dict[int, Reach] = {}
        sessions: Any = SimpleNamespace(
            nodes=self.nodes, reach_of=lambda relay: self.reach.get(relay, Reach.NOT_WANTED)
        )
        parameters = DeltaTreeParameters(delta=delta)
        self.requests = RelayRequests(SELF, sessions, parameters, self.legs, self.effects)
        self.requests.incarnation = 4
        self.asked: dict[int, tuple[int, list[int]]] = {}
        self.number = 0
        self.sent: list[Any] = []

    def send(self, relay: int, step: Any, peer: int) -> None:
        number = self.asked[peer][0]
        self.sent.append(Send(relay, Relay(step, SELF, peer, number, 4 if step == "ask" else 0)))

    def relays(self, peer: int) -> list[int]:
        """Return the brokers near a peer, the nearest first."""
        there = self.nodes[peer].path
        far = {each: path_distance(node.path, there) for each, node in self.nodes.items()}
        near = [each for each in self.nodes if each != peer and far[each] <= self.delta + 1]
        return sorted(near, key=lambda each: far[each])

    # ------------------------------------------------------------ events

    def request(self, peer: int) -> None:
        if peer not in self.asked:
            self.number += 1
            self.asked[peer] = self.number, []
        relays = self.asked[peer][1]
        for relay in self.relays(peer):
            if len(relays) < self.delta and relay in self.legs and relay not in relays:
                relays.append(relay)
                self.send(relay, "ask", peer)
        self.requests.request(peer)

    def repeat(self, peer: int) -> None:
        if peer in self.asked:
            relays = self.asked[peer][1]
            for relay in relays:
                self.send(relay, "ask", peer)
            others = [each for each in self.relays(peer) if each not in self.legs]
            for relay in others[: max(0, self.delta - len(relays))]:
                if self.reach.get(relay, Reach.NOT_WANTED) is Reach.NOT_WANTED:
                    self.sent.append(OpenSession(relay))
        self.requests.repeat(peer)

    def accept(self, peer: int) -> None:
        number, relays = self.asked.get(peer, (1, []))
        number += self.random.choice((0, 0, -1))
        relay = self.random.choice([*relays, *relays, self.random.choice([*self.nodes])])
        is_open = peer in self.asked and number == self.asked[peer][0] and relay in relays
        if is_open:
            relays.remove(relay)
            self.close_all(peer)
        assert self.requests.accept(peer, number, relay) == is_open

    def withdraw(self, peer: int) -> None:
        if self.random.random() < 0.3:
            self.close_all(peer)
            self.requests.withdraw(peer)

    def close_all(self, peer: int) -> None:
        for relay in self.asked.get(peer, (0, []))[1]:
            self.send(relay, "close", peer)
        self.asked.pop(peer, None)

    def session(self, peer: int) -> None:
        if peer in self.legs:
            del self.legs[peer]
            for _, relays in self.asked.values():
                if peer in relays:
                    relays.remove(peer)
            self.requests.on_leg_lost(peer)
        else:
            self.legs[peer] = Leg(peer, 1, 1, 0)
        self.reach[peer] = self.random.choice([*Reach])

    def neighbourhood(self, peer: int) -> None:
        """Let a leaf join or leave."""
        for leaf in (6, 7):
            if leaf in self.nodes and leaf not in self.asked and leaf not in self.legs:
                del self.nodes[leaf]
            else:
                self.nodes[leaf] = SimpleNamespace(path=PATHS[leaf])
        self.requests.on_neighbourhood_changed()

    def step(self) -> None:
        peer = self.random.choice([*self.nodes])
        acts = (
            [self.request] * 3
            + [self.session] * 4
            + [self.accept] * 2
            + [self.repeat, self.withdraw]
        )
        self.random.choice([*acts, self.neighbourhood])(peer)
        assert self.effects == self.sent
        self.effects.clear()
        self.sent.clear()
        found = {each: (row.number, [*row.relays]) for each, row in self.requests.open.items()}
        assert found == self.asked


@pytest.mark.parametrize("delta", [1, 2, 3])
@pytest.mark.parametrize("seed", range(15))
def test_requests_to_relays_are_those_of_a_plain_table(seed: int, delta: int) -> None:
    asker = Asker(Random(f"{seed} {delta}"), delta)
    for _ in range(150):
        asker.step()
    assert asker.number > 1
