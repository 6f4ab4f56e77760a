"""Brokers of a hierarchy in swarms, around failures, and against rule-breaking peers."""

from dataclasses import replace

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import SourceId, SubscriptionId
from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.ges.messages import (
    ClientsCounted,
    GraphStated,
    LoadAnswered,
    ProfileChanged,
    ProfileStated,
    RoutedPublications,
    Statement,
    Target,
)
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.interface import MessageReceived
from tests.helpers.exchange import Exchange, blob, run_of

TRIANGLE = ((0, 1), (1, 2), (0, 2))
A, B = blob(kind="a"), blob(kind="b")


def triangle():
    exchange = Exchange(TRIANGLE, protocol="ges")
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    return exchange, publisher, subscriber


def test_publications_are_rerouted_around_a_cut_link():
    exchange, publisher, subscriber = triangle()
    exchange.publish(publisher, 1, A)
    exchange.cut(0, 2)
    exchange.publish(publisher, 2, B, A)
    assert subscriber.got() == [1, 3]


def test_a_republished_publication_is_delivered_once():
    exchange, publisher, subscriber = triangle()
    exchange.publish(publisher, 1, A, A)
    exchange.publish(publisher, 1, A, A, A)
    assert subscriber.got() == [1, 2, 3]


def test_a_neighbour_that_is_away_for_long_is_not_waited_for():
    exchange = Exchange(((0, 1), (1, 2)), protocol="ges")
    exchange.kill(2)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    assert subscriber.answers[-1].state == "pending"
    exchange.advance(31)
    assert subscriber.answers[-1].state == "started"


def test_invalid_times_are_refused_and_slow_link_detours_carry_a_warning():
    for name, value in (("slow_link_ns", -1), ("cost_check_ns", 0)):
        with pytest.raises(ConfigError, match=rf"here: {name} = {value}; at least"):
            GesParameters(**{name: value}).check("here")
    with pytest.raises(ConfigError, match="nothing is measured without slow_link_ns"):
        GesParameters(slow_broker_ns=1).check("here")
    with pytest.raises(ConfigError, match=r"slow_broker_ns = 7; 0, or at least six times .* 12$"):
        GesParameters(slow_link_ns=1, cost_check_ns=2, slow_broker_ns=7).check("here")
    assert "is not started again" in GesParameters(slow_broker_ns=1).warnings()[0]
    assert not GesParameters().warnings()
    [said] = GesParameters(slow_link_ns=1).warnings()
    assert "overtaken and lost" in said


@pytest.mark.parametrize("kind", [GesParameters, GesReliableParameters])
def test_invalid_roaming_settings_are_refused_and_valid_ones_carry_a_warning(kind):
    for name, value in (
        ("roam_clients_above", -1),
        ("roam_check_ns", 0),
        ("partition_policy", "flee"),
    ):
        with pytest.raises(ConfigError, match=rf"here: {name} = {value!r}; "):
            kind(**{name: value}).check("here")
    [said] = kind(partition_policy="induce_roam").warnings()
    assert "take no clients either" in said
    assert len(kind(roam_clients_above=1).warnings()) == (kind is GesParameters)


TARGET = Target(0, (2,), (), (), 0)
STATEMENT = Statement(1, 2, 2, (1, 9), (1,), (2,), 1)
FOREIGN = SubscriptionId(1, 1, 1)


@pytest.mark.parametrize(
    "message, said",
    [
        (GraphStated((replace(STATEMENT, by=0),)), "no connection"),
        (GraphStated((replace(STATEMENT, low=2),)), "no connection"),
        (GraphStated((replace(STATEMENT, high_end=(1,)),)), "no connection"),
        (GraphStated((replace(STATEMENT, low_end=()),)), "no connection"),
        (GraphStated((replace(STATEMENT, low_end=(1, 2)),)), "no connection"),
        (GraphStated((replace(STATEMENT, factor=9),)), "no connection"),
        (GraphStated((replace(STATEMENT, factor=-1),)), "no connection"),
        (LoadAnswered(), "no probe"),
        (ClientsCounted(-1), "with a negative number"),
        (ProfileStated(2, (2,), (9, 0), ((FOREIGN, EVERYTHING),)), "in 2's profile"),
        (ProfileStated(2, (2, 0), (9, 0), ()), "no unit"),
        (ProfileStated(2, (), (9, 0), ()), "no unit"),
        (ProfileChanged(2, (2,), (9, 5), (), ()), "version"),
        (RoutedPublications(run_of(SourceId(2, 1, 1), 1, A), (TARGET,), 33), "33 links"),
        (
            RoutedPublications(run_of(SourceId(2, 1, 1), 1, A), (replace(TARGET, level=1),), 1),
            "nothing can be done",
        ),
        (
            RoutedPublications(
                run_of(SourceId(2, 1, 1), 1, A), (replace(TARGET, frames=((),)),), 1
            ),
            "nothing can be done",
        ),
    ],
)
def test_a_misbehaving_broker_is_refused_without_effect_on_other_brokers(message, said):
    exchange, publisher, subscriber = triangle()
    core, session = exchange.cores[1], exchange.sessions[1, 0]
    with pytest.raises(RemoteProtocolError, match=said):
        core.handle(MessageReceived(0, session, message), 0)
    exchange.publish(publisher, 1, A)
    assert subscriber.got() == [1]
