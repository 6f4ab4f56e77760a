"""What a peer may not say of what is over, and what a client's old token gets."""

from dataclasses import replace

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.overlay.topology import Topology
from brokerd.protocols.durable.messages import Beyond, Fetch, Fetched, NothingFetched, Released
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon.messages import EVERYWHERE, Events
from brokerd.protocols.interface import (
    DeliveryProtocol,
    LogEnds,
    MessageReceived,
    SessionEstablished,
    Started,
)
from brokerd.protocols.registry import check_runs_on, definition_of, make_protocol
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.gryphon_stories import cells, paper_cells
from tests.helpers.stream_runs import STREAM, run_at

BLOB = encode_attributes({"kind": "a"})


def events(*ticks: int) -> PublicationRun:
    return replace(run_at(ticks), attribute_table=(BLOB,))


def core_of(broker: int, topology: Topology) -> DeliveryProtocol:
    parameters = DurableParameters()
    core = make_protocol("durable", broker, topology, parameters, decode_attribute_table)
    logs = definition_of("durable").all_logs(topology, parameters)
    core.handle(Started(1, False, {}, {log: LogEnds() for log in logs}), 0)
    return core


def relay() -> DeliveryProtocol:
    """The broker in the middle of three, which knows ticks up to 9 of the stream of the first."""
    core = core_of(1, cells("p1-b1", "b1-s1"))
    for peer in (0, 2):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
    core.handle(MessageReceived(0, 10, Events(0, 1, 10, False, True, EVERYWHERE, events(3, 6))), 0)
    return core


@pytest.mark.parametrize(
    "peer, message, why",
    [
        (0, Fetch(STREAM, ((1, 2),)), "does not go there"),
        (2, Fetch(STREAM, ()), "ranges"),
        (2, Fetch(STREAM, ((5, 5),)), "ranges"),
        (2, Fetch(STREAM, ((5, 6), (1, 2))), "ranges"),
        (2, Beyond(STREAM, 9, ((11, 12),)), "does not come from there"),
        (0, Beyond(STREAM, 9, ()), "ranges"),
        (2, Fetch(StreamId(9, 0, 0), ((5, 6),)), "no pubend has the stream"),
        (2, Fetched(0, ((1, 4),), events(3)), "does not come from there"),
        (0, Fetched(0, ((1, 3),), events(3)), "beside"),
        (2, NothingFetched(STREAM, 0, ((1, 4),)), "does not come from there"),
        (0, NothingFetched(STREAM, 0, ()), "ranges"),
        (0, Released(((STREAM, 1),)), "does not go there"),
        (2, Released(((StreamId(1, 0, 0), 7),)), "which is not that far"),
    ],
)
def test_what_a_neighbour_may_not_say(peer, message, why) -> None:
    core = relay()
    with pytest.raises(RemoteProtocolError, match=why):
        core.handle(MessageReceived(peer, 10 + peer, message), 0)


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    core = relay()
    assert core.handle(MessageReceived(0, 10, Fetched(0, ((1, 4),), events(3))), 0) == []


def test_a_broker_on_the_way_answers_with_events_and_asks_for_the_rest() -> None:
    """Not even what it calls silent: those below may not have wanted what was there."""
    core = relay()
    effects = core.handle(MessageReceived(2, 12, Fetch(STREAM, ((3, 5),))), 0)
    said = [(each.peer, each.message) for each in effects if hasattr(each, "message")]
    assert said == [(2, Fetched(0, ((3, 4),), events(3))), (0, Fetch(STREAM, ((4, 5),)))]
    (told,) = core.handle(MessageReceived(0, 10, NothingFetched(STREAM, 2, ((4, 5),))), 0)
    assert (told.peer, told.message) == (2, NothingFetched(STREAM, 2, ((4, 5),)))


def test_who_asks_for_what_is_not_there_yet_is_told_where_the_stream_ends() -> None:
    core = relay()
    (told,) = core.handle(MessageReceived(2, 12, Fetch(StreamId(1, 0, 0), ((5, 6),))), 0)
    assert (told.peer, told.message) == (2, Beyond(StreamId(1, 0, 0), 0, ((5, 6),)))
    (asked, *_) = core.handle(MessageReceived(2, 12, Fetch(STREAM, ((11, 12),))), 0)
    assert (asked.peer, asked.message) == (0, Fetch(STREAM, ((11, 12),)))
    (told,) = core.handle(MessageReceived(0, 10, Beyond(STREAM, 9, ((11, 12),))), 0)
    assert (told.peer, told.message) == (2, Beyond(STREAM, 9, ((11, 12),)))


def test_people_are_told_what_early_release_costs() -> None:
    assert DurableParameters().warnings() == ()
    (warning,) = DurableParameters(max_retain_ns=2_500_000_000).warnings()
    assert "away for longer than 2.5 s" in warning


def test_cells_of_several_brokers_and_total_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="cell 'left' is several brokers"):
        check_runs_on(paper_cells(), "durable")
    with pytest.raises(ConfigError, match="order = 'total'; durable knows publisher order"):
        DurableParameters(order="total").check("here")
    with pytest.raises(ConfigError, match="catchup_batch = 0; at least 1"):
        DurableParameters(catchup_batch=0).check("here")
