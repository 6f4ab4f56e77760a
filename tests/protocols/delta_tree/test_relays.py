"""Tests of relayed sessions: refused messages, and late messages that are ignored."""

from itertools import pairwise

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.delta_tree.messages import Relay, Summary, SyncEnd
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.relayed_sessions import AssistedDeltaTree
from brokerd.protocols.interface import (
    CloseSession,
    DeadlineReached,
    Effect,
    MessageReceived,
    OpenSession,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.protocols.registry import make_protocol
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.cluster import chain
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants


class Broker1:
    """Broker 1 of the chain 0-1-2-3-4, with sessions to 0 and 2."""

    def __init__(self) -> None:
        core = make_protocol(
            "delta_tree",
            1,
            chain("b0", "b1", "b2", "b3", "b4"),
            DeltaTreeParameters(assist="on"),
            decode_attribute_table,
        )
        assert isinstance(core, AssistedDeltaTree)
        self.core = core
        self.core.handle(Started(1, False, {}, {}), 0)
        for peer in (0, 2):
            self.core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
            self.hear(peer, Summary((), False, ()))

    def hear(self, peer: int, message: object) -> list[Effect]:
        """Receive a message from a neighbour."""
        return list(self.core.handle(MessageReceived(peer, 10 + peer, message), 0))

    def said(self, effects: list[Effect]) -> list[tuple[object, object]]:
        """Return the messages that are sent, with their receivers."""
        return [(effect.peer, effect.message) for effect in effects if type(effect) is Send]

    def lose(self, peer: int) -> list[tuple[object, object]]:
        """End the session with a neighbour and return the messages that are sent."""
        return self.said(list(self.core.handle(SessionLost(peer, 10 + peer, "silent"), 0)))


ASK_FOR_2 = Relay("ask", 0, 2, 7, 1)
CARRY = Relay("carry", 0, 2, 7, 0)


@pytest.mark.parametrize(
    "message",
    [
        Relay("ask", 3, 2, 7, 1),
        Relay("ask", 0, 0, 7, 1),
        Relay("ask", 0, 2, 0, 1),
        Relay("ask", 0, 1, 7, 1),
        Relay("accept", 0, 2, 7, 1),
        Relay("accept", 1, 0, 7, 1),
        Relay("close", 2, 3, 7, 0),
        Relay("carry", 2, 3, 7, 0),
    ],
    ids=str,
)
def test_an_invalid_relay_message_is_refused_before_any_change(message: Relay) -> None:
    broker = Broker1()
    before = broker.core.status()
    with pytest.raises(RemoteProtocolError):
        broker.hear(0, message)
    assert broker.core.status() == before
    assert broker.said(broker.hear(0, ASK_FOR_2)) == [(2, ASK_FOR_2)]


def test_a_request_is_forwarded_and_then_the_answers_of_both_ends() -> None:
    broker = Broker1()
    assert broker.said(broker.hear(0, ASK_FOR_2)) == [(2, ASK_FOR_2)]
    accept = Relay("accept", 0, 2, 7, 5)
    assert broker.said(broker.hear(2, accept)) == [(0, accept)]
    assert broker.said(broker.hear(0, CARRY)) == []
    assert broker.said(broker.hear(0, SyncEnd(False))) == [(2, CARRY), (2, SyncEnd(False))]
    assert broker.said(broker.hear(0, SyncEnd(True))) == [(2, SyncEnd(True))]
    assert broker.core.statistics()["messages_relayed"] == 2
    assert broker.lose(2)[0] == (0, Relay("close", 0, 2, 7, 0))
    assert broker.said(broker.hear(0, SyncEnd(False))) == []  # for a closed session


def test_a_relay_request_stays_pending_until_its_target_has_a_session() -> None:
    broker = Broker1()
    ask = Relay("ask", 2, 3, 7, 1)
    assert broker.hear(2, ask) == [OpenSession(3)]
    effects = broker.core.handle(SessionEstablished(3, 13, 1), 0)
    assert (3, ask) in broker.said(list(effects))


def test_a_withdrawn_relay_request_is_not_forwarded() -> None:
    broker = Broker1()
    broker.hear(2, Relay("ask", 2, 3, 7, 1))
    broker.hear(2, Relay("close", 2, 3, 7, 0))
    effects = broker.core.handle(SessionEstablished(3, 13, 1), 0)
    assert [to for to, message in broker.said(list(effects)) if type(message) is Relay] == []


def test_a_relay_request_waits_for_the_end_of_the_direct_session() -> None:
    broker = Broker1()
    ask = Relay("ask", 2, 1, 7, 4)
    assert broker.hear(0, ask) == []
    assert (0, Relay("accept", 2, 1, 7, 1)) in broker.lose(2)
    assert broker.core.detail()["relayed"] == [2]


def test_a_relay_request_with_an_unknown_broker_is_ignored_without_error() -> None:
    broker = Broker1()
    assert broker.hear(0, Relay("ask", 9, 1, 7, 1)) == []
    assert broker.hear(0, Relay("ask", 0, 9, 7, 1)) == []


def test_an_outdated_accept_is_answered_with_close() -> None:
    broker = Broker1()
    accept = Relay("accept", 1, 3, 99, 1)
    assert broker.said(broker.hear(2, accept)) == [(2, Relay("close", 1, 3, 99, 0))]


def test_an_error_in_a_relayed_session_closes_only_that_session() -> None:
    broker = Broker1()
    broker.hear(0, Relay("ask", 2, 1, 7, 4))
    broker.lose(2)
    broker.hear(0, Relay("carry", 2, 1, 7, 0))
    answers = broker.said(broker.hear(0, SyncEnd(False)))  # no Summary before it
    assert answers[0] == (0, Relay("close", 2, 1, 7, 0))
    assert broker.core.detail()["relayed"] == []
    assert 0 in broker.core.status().ready


def test_the_offer_of_a_leaf_that_has_left_is_not_accepted() -> None:
    """Broker 0 requested a relay through 2 to this broker, had a session here, and departed."""
    broker = Broker1()
    broker.hear(2, Relay("ask", 0, 1, 7, 4))
    effects = broker.core.handle(TopologyShrunk(0), 0)
    assert CloseSession(0, "has left the tree") in effects
    assert broker.lose(0) == []
    assert broker.core.detail()["relayed"] == []
    assert 0 not in broker.core.status().wanted


def test_an_ask_of_a_leaf_that_has_left_is_let_pass() -> None:
    """The relaying broker has not been notified of the departure yet."""
    broker = Broker1()
    broker.core.handle(TopologyShrunk(0), 0)
    assert broker.hear(2, Relay("ask", 0, 1, 7, 4)) == []
    broker.lose(0)
    assert broker.core.detail()["relayed"] == []


def test_a_relayed_session_with_a_leaf_ends_when_the_leaf_departs() -> None:
    broker = Broker1()
    broker.hear(2, Relay("ask", 0, 1, 7, 4))
    broker.lose(0)
    assert broker.core.detail()["relayed"] == [0]
    effects = broker.core.handle(TopologyShrunk(0), 0)
    assert (2, Relay("close", 0, 1, 7, 0)) in broker.said(effects)
    assert CloseSession(0, "has left the tree") in effects, "the attempt to meet it directly"
    assert broker.core.detail()["relayed"] == []
    deadline = broker.core.next_deadline()
    while deadline is not None and deadline < 100 * SECOND_NS:
        assert OpenSession(0) not in broker.core.handle(DeadlineReached(), deadline)
        deadline = broker.core.next_deadline()


def test_relay_requests_for_a_departing_leaf_are_withdrawn() -> None:
    """This broker asked 2 for the leaf 0, and 2 asked this broker to relay a request."""
    broker = Broker1()
    broker.lose(0)
    broker.hear(2, Relay("ask", 2, 0, 7, 1))
    effects = broker.core.handle(TopologyShrunk(0), 0)
    closed = {
        message.asker: message.number
        for to, message in broker.said(effects)
        if isinstance(message, Relay) and (to, message.step, message.target) == (2, "close", 0)
    }
    assert sorted(closed) == [1, 2]
    accept = Relay("accept", 1, 0, closed[1], 1)
    answer = Relay("close", 1, 0, closed[1], 0)
    assert broker.said(broker.hear(2, accept)) == [(2, answer)]


def test_a_leaf_that_relayed_leaves_and_its_sessions_end_with_it() -> None:
    broker = Broker1()
    broker.hear(0, Relay("ask", 2, 1, 7, 4))
    broker.lose(2)
    assert broker.core.detail()["relayed"] == [2]
    broker.core.handle(TopologyShrunk(0), 0)
    broker.core.handle(SessionLost(0, 10, "closed_by_us"), 0)
    assert broker.core.detail()["relayed"] == []
    assert 2 in broker.core.status().wanted


def test_direct_sessions_are_dialled_after_waits_that_double_up_to_a_limit() -> None:
    broker, parameters = Broker1(), DeltaTreeParameters()
    broker.hear(0, Relay("ask", 2, 1, 7, 4))
    broker.lose(2)
    dialled_ns = [0]
    while len(dialled_ns) < 8:
        now_ns = broker.core.next_deadline()
        assert now_ns is not None
        dialled_ns += [
            now_ns
            for each in broker.core.handle(DeadlineReached(), now_ns)
            if each == OpenSession(2)
        ]
    limit_ns, first_ns = parameters.retry_limit_ns, parameters.retry_first_ns
    doubled_ns = [min(limit_ns, first_ns << place) for place in range(7)]
    assert [later - earlier for earlier, later in pairwise(dialled_ns)] == doubled_ns


def test_a_session_with_a_departed_leaf_is_closed_without_announcement() -> None:
    """The leaf departed while the session was being dialled, or after."""
    broker = Broker1()
    broker.core.handle(TopologyShrunk(0), 0)
    broker.lose(0)
    effects = broker.core.handle(SessionEstablished(0, 17, 1), 0)
    assert effects == [CloseSession(0, "has left the tree")]
    message = MessageReceived(0, 17, Summary((), False, ()))
    assert broker.core.handle(message, 0) == []
    assert broker.core.handle(MessageReceived(0, 17, ASK_FOR_2), 0) == []
    assert broker.core.handle(SessionLost(0, 17, "closed_by_us"), 0) == []


@pytest.mark.parametrize("delta", [1, 2, 3])
@pytest.mark.parametrize("lost", [2, 4])
def test_as_many_relays_are_asked_as_brokers_may_fail(delta: int, lost: int) -> None:
    """The middle broker of a chain of seven has sessions with two brokers on either side."""
    names = [f"b{number}" for number in range(7)]
    core = make_protocol(
        "delta_tree",
        3,
        chain(*names, delta=delta),
        DeltaTreeParameters(delta=delta, assist="on"),
        decode_attribute_table,
    )
    core.handle(Started(1, False, {}, {}), 0)
    for peer in (1, 2, 4, 5):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
        core.handle(MessageReceived(peer, 10 + peer, Summary((), False, ())), 0)
    asked: dict[int, int] = {}
    effects = list(core.handle(SessionLost(lost, 10 + lost, "silent"), 0))
    for effect in effects:
        if type(effect) is Send and isinstance(effect.message, Relay):
            assert (effect.message.step, effect.message.target) == ("ask", lost)
            asked[effect.peer] = asked.get(effect.peer, 0) + 1
    assert asked == dict.fromkeys(asked, 1)
    assert len(asked) == delta


@pytest.mark.parametrize("times", [1, 2])
def test_an_answer_to_a_former_request_opens_no_passage(times: int) -> None:
    """The asker has asked again meanwhile, and the target answers the requests in turn."""
    broker = Broker1()
    broker.hear(0, ASK_FOR_2)
    for number in range(8, 8 + times):
        former = Relay("close", 0, 2, number - 1, 0)
        ask = Relay("ask", 0, 2, number, 1)
        assert broker.said(broker.hear(0, ask)) == [(2, former), (2, ask)]
        late = Relay("accept", 0, 2, number - 1, 5)
        assert broker.said(broker.hear(2, late)) == [(2, former)]
        broker.hear(0, Relay("carry", 0, 2, number, 0))
        assert broker.said(broker.hear(0, SyncEnd(True))) == [], "no passage yet"
        broker.hear(0, Relay("own", 0, 2, number, 0))
    accept = Relay("accept", 0, 2, 7 + times, 5)
    assert broker.said(broker.hear(2, accept)) == [(0, accept)]


@pytest.mark.parametrize("times", [1, 2])
def test_a_target_is_asked_again_in_each_of_its_sessions(times: int) -> None:
    broker = Broker1()
    assert broker.said(broker.hear(0, ASK_FOR_2)) == [(2, ASK_FOR_2)]
    for turn in range(times):
        broker.lose(2)
        effects = list(broker.core.handle(SessionEstablished(2, 12, 1 + turn), 0))
        assert broker.said(effects).count((2, ASK_FOR_2)) == 1
    accept = Relay("accept", 0, 2, 7, 5)
    assert (0, accept) in broker.said(broker.hear(2, accept))


def asked(sent: list[tuple[object, object]], target: int) -> list[object]:
    """Return the relays that are asked for a session with a broker."""
    return [peer for peer, each in sent
            if isinstance(each, Relay) and (each.step, each.target) == ("ask", target)]  # fmt: skip


@pytest.mark.parametrize("times", [1, 2])
def test_a_relay_that_was_lost_is_asked_again_after_its_return(times: int) -> None:
    broker = Broker1()
    assert asked(broker.lose(0), 0) == [2]
    for _ in range(times):
        broker.lose(2)
        effects = list(broker.core.handle(SessionEstablished(2, 12, 1), 0))
        effects += broker.hear(2, Summary((), False, ()))
        assert asked(broker.said(effects), 0) == [2]


def test_a_broker_that_has_joined_is_the_nearest_relay() -> None:
    """It joins behind broker 0, whose session was lost before."""
    broker = Broker1()
    assert asked(broker.lose(0), 0) == [2]
    broker.core.handle(SessionEstablished(0, 10, 1), 0)
    broker.hear(0, Summary((), False, ()))
    broker.core.handle(TopologyGrown(5, 0), 0)
    broker.core.handle(SessionEstablished(5, 15, 1), 0)
    broker.hear(5, Summary((), False, ()))
    assert asked(broker.lose(0), 0) == [5]


def relayed_over_the_other(times: int) -> bool:
    """Return True if relayed sessions end with the session to the relay and are replaced.

    Broker 0 is reached over broker 2, whose session ends; then both reconnect.
    """
    broker = Broker1()
    broker.lose(0)
    for turn in range(1, times + 1):
        broker.hear(2, Relay("ask", 0, 1, 6 + turn, 4))
        if broker.core.detail()["relayed"] != [0]:
            return False
        broker.lose(2)
        if broker.core.detail()["relayed"] != []:
            return False
        broker.core.handle(SessionEstablished(2, 12, 1), 0)
        broker.hear(2, Summary((), False, ()))
        for step in ("carry", "own"):
            broker.hear(2, Relay(step, 0, 1, 6 + turn, 0))
    return True


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_relayed_session_ends_with_the_session_to_its_relay(times: int) -> None:
    assert relayed_over_the_other(times)


def test_a_relayed_session_that_outlives_the_session_to_its_relay_is_seen() -> None:
    with plant_mutants([Mutant.RELAYED_OUTLIVES_LEG]):
        assert not relayed_over_the_other(1)
