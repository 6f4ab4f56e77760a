"""Redirects of clients, and parts of a cluster, against plain rules and against a new object."""

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.protocols.ges.dissemination import DEAREST, UP
from brokerd.protocols.ges.messages import DOWN, ClientsCounted
from brokerd.protocols.ges.overload import SLOW, SlowBroker
from brokerd.protocols.ges.parameters import INDUCE_ROAM, READDRESS, GesParameters
from brokerd.protocols.ges.roaming import (
    APART,
    CHECKS_TO_DEPART,
    CHECKS_TO_STAY,
    HINT,
    STEPS,
    Fragment,
    RoamingHints,
)
from brokerd.protocols.ges.state import Neighbours, Refusal, Separation
from brokerd.protocols.ges.units import Place
from brokerd.protocols.interface import RedirectClient, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue

CHECK_NS = 1_000
ADDRESSES: dict[BrokerNumber, Address] = {2: (0, 2), 3: (0, 3), 4: (1, 0)}
"""The neighbours of broker 1 at (0, 1); broker 4 is in another cluster."""


def make_neighbours(*linked: BrokerNumber) -> Neighbours:
    return Neighbours(Place((0, 1)), dict(ADDRESSES), dict.fromkeys(linked))


class Crowd:
    """A broker with clients, and a plain record of its redirects."""

    def __init__(self, limit: int) -> None:
        self.limit, self.step = limit, max(1, limit // STEPS)
        self.now_ns = 0
        self.deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self.near = make_neighbours(*ADDRESSES)
        parameters = GesParameters(roam_clients_above=limit, roam_check_ns=CHECK_NS)
        self.hints = RoamingHints(1, self.near, self.deadlines, parameters)
        self.here: list[str] = []
        self.redirected: dict[str, tuple[int, BrokerNumber]] = {}
        self.counted: dict[BrokerNumber, int] = {}
        self.announced = 0
        self.serial = 0

    def look(self) -> list[str]:
        """Check the messages and redirects of one look; return the redirected clients."""
        self.now_ns += CHECK_NS
        effects = self.hints.look(self.here, self.now_ns)
        sent = [each for each in effects if isinstance(each, Send)]
        cluster = [peer for peer in (2, 3) if peer in self.near.linked]
        if abs(len(self.here) - self.announced) >= self.step:
            self.announced = len(self.here)
            assert sent == [Send(peer, ClientsCounted(self.announced)) for peer in cluster]
        else:
            assert sent == [], "no step"
        self._check([each for each in effects if isinstance(each, RedirectClient)], cluster)
        return [each.client for each in effects if isinstance(each, RedirectClient)]

    def _check(self, found: Sequence[RedirectClient], cluster: Sequence[BrokerNumber]) -> None:
        ages = {name: (self.now_ns - at) // CHECK_NS for name, (at, _) in self.redirected.items()}
        going = {
            name: self.redirected[name][1] for name, age in ages.items() if age < CHECKS_TO_DEPART
        }
        left = [name for name in self.here if name not in going]
        number = {
            peer: self.counted[peer] + self.step - 1 + [*going.values()].count(peer)
            for peer in cluster
            if peer in self.counted
        }
        free = [name for name in reversed(left) if ages.get(name, CHECKS_TO_STAY) >= CHECKS_TO_STAY]
        count, wanted = len(left), []
        for name in left[::-1]:
            better = [peer for peer in number if number[peer] + 2 <= count]
            if count <= self.limit or not better:
                break
            if name in free:
                best = sorted(better, key=lambda peer: (number[peer], peer))
                wanted.append(RedirectClient(name, tuple(best)))
                self.redirected[name] = self.now_ns, best[0]
                number[best[0]] += 1
                count -= 1
        assert [*found] == wanted
        ages_ns = [self.now_ns - at_ns for at_ns, _ in self.redirected.values()]
        is_due = any(age_ns < CHECKS_TO_DEPART * CHECK_NS for age_ns in ages_ns)
        assert ((HINT, 1) in self.deadlines) >= is_due, "another look once they count as departed"

    def act(self, random: Random) -> None:
        """Let clients arrive and leave, or neighbours count clients, or a session end or begin."""
        kind, peer = random.randrange(6), random.choice((2, 3))
        if kind <= 1:
            for _ in range(random.randrange(1, 8)):
                self.serial += 1
                self.here.append(f"c{self.serial}")
        elif kind == 2:
            self.here = [name for name in self.here if random.random() < 0.8]
        elif kind == 3 and peer in self.near.linked:
            self.counted[peer] = random.randrange(0, 2 * self.limit)
            self.hints.on_counted(peer, ClientsCounted(self.counted[peer]), self.now_ns)
            assert (HINT, 1) in self.deadlines
        elif kind == 4 and peer in self.near.linked:
            del self.near.linked[peer]
            self.counted.pop(peer, None)
            self.hints.on_session_lost(peer)
        elif kind == 5 and peer not in self.near.linked:
            self.near.linked[peer] = None
            assert self.hints.on_session(peer) == [Send(peer, ClientsCounted(self.announced))]


@pytest.mark.parametrize("limit", [3, 20])
@pytest.mark.parametrize("seed", range(20))
def test_redirects_are_those_of_the_plain_rule(seed: int, limit: int) -> None:
    """The last arrived clients go where the fewest are, counting those on their way."""
    random, crowd = Random(f"{seed} {limit}"), Crowd(limit)
    for _ in range(120):
        for _ in range(random.randrange(3)):
            crowd.act(random)
        crowd.look()
        while (due := crowd.deadlines.due(crowd.now_ns)) and random.random() < 0.5:
            assert due == [(HINT, 1)]
    assert crowd.redirected


@pytest.mark.parametrize("peer, clients", [(4, 1), (2, -1), (9, 1)])
def test_only_neighbours_of_the_cluster_count_clients(peer: BrokerNumber, clients: int) -> None:
    crowd = Crowd(3)
    with pytest.raises(RemoteProtocolError):
        crowd.hints.on_counted(peer, ClientsCounted(clients), 0)
    assert crowd.hints.on_session(4) == []


# ---------------------------------------------------------------- parts of a cluster

MEMBERS = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (0, 3)}
WAIT_NS = 100


class Part:
    """Broker 1 of a cluster of four; broker 4 beyond is a neighbour. Broker 0 is the lowest."""

    def __init__(self, policy: str) -> None:
        self.now_ns = 0
        self.links = {(0, 1), (1, 2), (2, 3)}
        self.view = SimpleNamespace(changes=0, near=self._near)
        self.deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        near = make_neighbours(2, 4)
        parameters = GesParameters(partition_policy=policy)
        view = cast("Any", self.view)
        self.fragment = Fragment(1, near, self.deadlines, parameters, WAIT_NS, view)
        names = tuple(f"b{number}" for number in range(5))
        hierarchy = Hierarchy(names, (*MEMBERS.values(), (1, 0)), ())
        self.fragment.use(hierarchy, (0, 2, 4))

    def _near(self, address: Address) -> list[Address]:
        here = address[1]
        ends = [b if a == here else a for a, b in sorted(self.links) if here in (a, b)]
        return [(0, end) for end in ends]

    def set_links(self, *links: tuple[int, int]) -> list[Any]:
        self.links = {*links}
        self.view.changes += 1
        return [*self.fragment.look(self.now_ns)]

    def wait(self) -> int:
        """Return the time until the end of the wait."""
        due_ns = self.deadlines.instant((APART, 1))
        assert due_ns is not None
        began_ns, self.now_ns = self.now_ns, due_ns
        assert self.deadlines.due(due_ns) == [(APART, 1)]
        return due_ns - began_ns

    def cut_off(self) -> list[Any]:
        """Return the outcomes of a separation from the lowest member and of the wait."""
        found: list[Any] = [self.set_links((1, 2)), self.wait()]
        found += [self.fragment.can_follow(self.now_ns)]
        found += [*self.fragment.on_wait_end(["x", "y"], self.now_ns)]
        return found

    def rejoin(self) -> list[Any]:
        return [self.set_links((0, 1), (1, 2), (2, 3)), self.fragment.is_closed]


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_part_that_reopened_closes_like_a_new_one(times: int) -> None:
    part, new = Part(INDUCE_ROAM), Part(INDUCE_ROAM)
    for _ in range(times):
        part.cut_off()
        assert part.rejoin() == [[Refusal("")], False]
        assert (APART, 1) not in part.deadlines
    found = part.cut_off()
    assert found == new.cut_off()
    beyond_first = [RedirectClient(name, (4, 0, 3)) for name in ("x", "y")]
    assert found[-2:] == beyond_first, "beyond the cluster, and then across"
    assert part.fragment.send_out(["x", "z"]) == [RedirectClient("z", (4, 0, 3))]


@pytest.mark.parametrize("returns", [0, 1, 3, 9])
def test_a_broker_that_returns_in_vain_waits_twice_as_long_until_it_rejoins(returns: int) -> None:
    part = Part(READDRESS)
    waits: list[int] = []
    for _ in range(returns + 1):
        _, wait_ns, _, separation = part.cut_off()
        assert separation == Separation(((0, 1), (0, 2)))
        waits.append(wait_ns)
        part.fragment.on_return(part.now_ns)
    assert waits == [WAIT_NS << min(turn, 6) for turn in range(returns + 1)]
    assert part.rejoin() == [[], False]
    assert part.cut_off() == Part(READDRESS).cut_off()


@pytest.mark.parametrize("policy", [INDUCE_ROAM, READDRESS])
@pytest.mark.parametrize("is_lost", [False, True])
def test_the_others_of_a_part_wait_half_as_long_again_for_its_lowest(
    policy: str, is_lost: bool
) -> None:
    """Broker 2 is the first of the part until the link to broker 1 is back."""
    part = Part(policy)
    part.fragment._home = part.fragment._place.address = (0, 2)
    part.set_links((0, 1), (2, 3)) if is_lost else part.set_links((1, 2), (2, 3))
    waits_ns = [part.deadlines.instant((APART, 1))]
    for now_ns in (30, 60):
        part.now_ns = now_ns
        part.set_links((1, 2), (2, 3))
        waits_ns.append(part.deadlines.instant((APART, 1)))
        assert part.fragment.look(now_ns) == [], "nothing has changed"
    longer_ns = WAIT_NS * 3 // 2 if policy == READDRESS else WAIT_NS
    first_ns = WAIT_NS if is_lost else longer_ns
    assert waits_ns == [first_ns, longer_ns, longer_ns], "since the begin of the wait"


def test_a_closed_part_reopens_without_members_that_stay_out_of_reach() -> None:
    """The lowest member may have failed for ever; once it is back, it counts again."""
    part = Part(INDUCE_ROAM)
    for turn in (1, 2):
        part.cut_off()
        assert part.deadlines.instant((APART, 1)) == part.now_ns + WAIT_NS
        part.now_ns += WAIT_NS
        assert part.deadlines.due(part.now_ns) == [(APART, 1)]
        assert part.fragment.on_wait_end([], part.now_ns) == [Refusal("")]
        counters = part.fragment.counters
        assert (counters["clusters_partitioned"], counters["members_failed"]) == (turn, 2 * turn)
        assert part.set_links((1, 2), (2, 3)) == [], "broker 0 has failed, and 3 has returned"
        assert part.rejoin() == [[], False]
    assert part.fragment.counters["partitioned_clients_redirected"] == 4


def test_a_member_that_leaves_for_good_is_not_waited_for() -> None:
    part = Part(INDUCE_ROAM)
    part.set_links((1, 2))
    assert (APART, 1) in part.deadlines
    names = tuple(f"b{number}" for number in range(5))
    part.fragment.use(Hierarchy(names, (*MEMBERS.values(), (1, 0)), (), left=(0,)), (2, 4))
    assert part.fragment.look(part.now_ns) == []
    assert (APART, 1) not in part.deadlines


@pytest.mark.parametrize("returns", [0, 1, 8])
def test_a_broker_that_has_returned_follows_no_other_for_half_a_wait(returns: int) -> None:
    part = Part(READDRESS)
    for _ in range(returns):
        part.fragment.on_return(0)
    part.set_links((1, 2))
    stays_ns = (WAIT_NS << min(returns, 6)) // 2 if returns else 0
    follows = [part.fragment.can_follow(now_ns) for now_ns in (max(0, stays_ns - 1), stays_ns)]
    assert follows == [not returns, True]
    part.rejoin()
    assert not part.fragment.can_follow(1 << 40)


@pytest.mark.parametrize("policy", ["stay", INDUCE_ROAM])
def test_clients_leave_a_closed_part_only(policy: str) -> None:
    part = Part(policy)
    part.set_links((1, 2))
    assert ((APART, 1) in part.deadlines) == (policy != "stay")
    assert part.fragment.send_out(["x"]) == []
    assert part.fragment.counters["partitioned_clients_redirected"] == 0


# ---------------------------------------------------------------- slow brokers


@pytest.mark.parametrize("stated", [(), (8,), (8, 8), (8, 8, 8), (8, 4, 8), (8, DOWN, 8)])
@pytest.mark.parametrize("cheap", range(4))
def test_a_broker_is_slow_if_all_find_it_so_and_two_know_a_cheap_link(
    stated: tuple[int, ...], cheap: int
) -> None:
    """The first `cheap` neighbours have another link that is cheap; the own statements are."""
    near = make_neighbours(*[*ADDRESSES][: len(stated)])
    peers = near.all_linked()
    by = {(peer, 1): factor for peer, factor in zip(peers, stated, strict=True)}
    by |= {(1, peer): UP for peer in peers}
    by |= {(peer, 9): UP if place < cheap else DEAREST for place, peer in enumerate(peers)}
    rows = [SimpleNamespace(by=speaker, factor=factor) for (speaker, _), factor in by.items()]
    view = SimpleNamespace(
        statement_by=lambda speaker, other: next(
            (row for row, key in zip(rows, by, strict=True) if key == (speaker, other)), None
        ),
        statements=lambda: rows,
    )
    deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
    slow = SlowBroker(1, near, deadlines, GesParameters(slow_broker_ns=50), cast("Any", view))
    is_slow = all(factor == DEAREST for factor in stated) and min(cheap, len(peers)) >= 2
    for turn in range(2):
        slow.look(turn)
        assert deadlines.instant((SLOW, 1)) == (50 if is_slow else None), "since the first look"
    near.linked.clear()
    slow.look(2)
    assert (SLOW, 1) not in deadlines
