"""A proxy's memory of owners compared with plain tables, over random announcements and requests."""

from collections import Counter
from random import Random

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.multi_proxy.claims import Claims
from brokerd.protocols.multi_proxy.messages import Locate, Owner

NAMES = {1: "v1", 2: "v2", 3: "v3"}
TOPICS = 9
HOME, PEER = 7, 8


def candidates(claims: Claims, *topics: int) -> list[int]:
    """Return the proposed server of each topic."""
    claim = claims.claim(Locate(1, HOME, topics), PEER)
    assert [owner.topic for owner in claim.candidates] == [*topics]
    return [owner.server for owner in claim.candidates]


def counts(claims: Claims) -> dict[int, int]:
    """Return the topics of each server, counted anew."""
    known = {**claims._proposed, **claims._owners}
    assert not claims._proposed.keys() & claims._owners.keys()
    found = Counter(known.values())
    return {server: found[server] for server in NAMES}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("decides", [True, False])
def test_the_loads_of_servers_are_those_of_a_new_count(seed: int, decides: bool) -> None:
    random = Random(seed)
    sessions = {*NAMES}
    claims = Claims(TOPICS, [*NAMES.items()], sessions, [1] * TOPICS, decides=decides)
    owners: dict[int, tuple[int, int]] = {}
    for _ in range(80):
        topic, server = random.randrange(TOPICS), random.choice([*NAMES])
        act = random.randrange(5)
        if act == 0:
            sessions.symmetric_difference_update({server})
        elif act == 1:
            before = counts(claims)
            (chosen,) = candidates(claims, topic)
            if topic in owners:
                assert chosen == owners[topic][0], "an owner stays, reachable or not"
            elif sessions:
                assert chosen in sessions
            if topic not in owners and before != counts(claims):
                reached = sessions or {*NAMES}
                after = counts(claims)
                assert after[chosen] - 1 == min(after[each] - (each == chosen) for each in reached)
            assert candidates(claims, topic) == [chosen]
        elif act == 2 and decides:
            located = claims.locate(Locate(server, HOME, (topic,)), PEER)
            assert located is not None
            owners.setdefault(topic, (located.owners[0].server, 0))
        elif act == 2:
            assert claims.locate(Locate(server, HOME, (topic,)), PEER) is None
        elif act == 3 and decides:
            other = random.randrange(TOPICS)
            merged = claims.learn(PEER, [Owner(topic, server), Owner(other, server)])
            doubles = [each for each in dict.fromkeys((topic, other)) if each in owners]
            doubles = [each for each in doubles if owners[each][0] != server]
            assert {each.topic for each in merged} == {*doubles}
            for each in (topic, other):
                both = {server, owners.get(each, (server, 0))[0]}
                owners[each] = (min(both, key=NAMES.__getitem__), 0)
        elif act == 3:
            generation = random.randrange(1, 4)
            known = owners.get(topic)
            claims.learn(PEER, [Owner(topic, server, generation)])
            if known is None or generation > known[1]:
                owners[topic] = (server, generation)
            elif generation == known[1] and server != known[0]:
                del owners[topic]
        elif not decides:
            claims.learn(PEER, [Owner(topic, server)])
            if topic in owners and owners[topic][0] == server:
                del owners[topic]
        assert claims._owners == {topic: server for topic, (server, _) in owners.items()}
        assert claims._counts == counts(claims)


def test_a_topic_that_returned_to_its_owner_does_not_go_to_the_one_in_between() -> None:
    """The proxy has no session while the topic moves away and back; the other server is late."""
    claims = Claims(TOPICS, [*NAMES.items()], {*NAMES})
    assert claims.learn(PEER, [Owner(0, 1, 1)]) == (Owner(0, 1, 1),)
    assert claims.learn(PEER, [Owner(0, 1, 3)]) == ()
    assert claims.learn(PEER, [Owner(0, 2, 2)]) == ()
    assert claims.owners() == (Owner(0, 1, 3),)
    assert claims.learn(PEER, [Owner(0, 1, 2)]) == ()
    assert claims.learn(PEER, [Owner(0, 2, 4)]) == (Owner(0, 2, 4),)


def test_a_proposal_stays_while_its_server_is_reachable() -> None:
    sessions = {1, 2}
    claims = Claims(TOPICS, [*NAMES.items()], sessions)
    assert candidates(claims, 0, 1, 2) == [1, 2, 1]
    sessions.discard(1)
    assert candidates(claims, 0, 1, 2) == [2, 2, 2]
    sessions.add(1)
    assert candidates(claims, 0, 1, 3) == [2, 2, 1]
    claims.learn(PEER, [Owner(3, 3, 1)])
    assert candidates(claims, 3) == [3], "an owner is no proposal"


@pytest.mark.parametrize("topic", [TOPICS, TOPICS + 1])
def test_a_topic_beyond_the_last_is_a_fault_of_the_peer(topic: int) -> None:
    claims = Claims(TOPICS, [*NAMES.items()], {1})
    assert candidates(claims, TOPICS - 1) == [1]
    with pytest.raises(RemoteProtocolError, match="no topic"):
        candidates(claims, topic)
    with pytest.raises(RemoteProtocolError, match="owns topic"):
        claims.learn(PEER, [Owner(topic, 1, 1)])
    with pytest.raises(RemoteProtocolError, match="broker 4 owns"):
        claims.learn(PEER, [Owner(0, 4, 1)])


@pytest.mark.parametrize("counts, moves", [((3, 1), True), ((2, 1), False), ((3, 2), False)])
def test_a_topic_is_moved_from_the_server_with_the_spread_more(
    counts: tuple[int, int], moves: bool
) -> None:
    claims = Claims(TOPICS, [*NAMES.items()], {1, 2}, [2] * TOPICS, spread=2)
    claims.learn(PEER, [Owner(topic, 1, 1) for topic in range(counts[0])])
    claims.learn(PEER, [Owner(counts[0] + topic, 2, 1) for topic in range(counts[1])])
    assert claims.move() is None, "no server has announced its topics"
    claims.on_announcement(1)
    claims.on_announcement(2)
    found = claims.move()
    assert (found is not None) == moves
    if found is not None:
        assert (found.server, found.owners) == (2, (Owner(0, 2),))
        again = claims.move()
        assert again is not None
        assert again.owners == (Owner(1, 2),)
        claims.lose(2)
        assert claims.move() is None, "one server alone"
        claims.on_announcement(2)
        assert claims.move() == found


def test_the_other_owner_of_a_topic_is_a_server() -> None:
    claims = Claims(TOPICS, [*NAMES.items()], {*NAMES}, decides=True)
    claims.learn(PEER, [Owner(0, 2)])
    with pytest.raises(RemoteProtocolError, match="broker 4 owns topic 0"):
        claims.learn(PEER, [Owner(0, 4)])
    assert claims.merges == []


@pytest.mark.parametrize("reached", [(), (1,), (1, 2)])
def test_owners_of_unreachable_arbiters_are_urgent_and_never_move(reached: tuple[int, ...]) -> None:
    """An arbiter that cannot be reached neither answers access brokers nor moves a topic."""
    arbiters = [1, 2, *([1] * TOPICS)]
    sessions = {*reached}
    claims = Claims(TOPICS, [*NAMES.items()], sessions, arbiters, spread=2)
    owners = claims.learn(PEER, [Owner(0, 3, 1), Owner(1, 3, 1), Owner(2, 3, 2)])
    urgent = [owner.topic for owner in claims.list_urgent(owners)]
    assert urgent == [topic for topic in range(3) if topic == 2 or arbiters[topic] not in sessions]
    for server in (2, 3):
        claims.on_announcement(server)
    moved = claims.move()
    assert (moved is None) == (not sessions)
    if moved is not None:
        assert (moved.server, moved.owners) == (1, (Owner(0, 2),))
        again = claims.move()
        assert again is not None
        assert again.owners[0].topic == (1 if 2 in sessions else 2)
