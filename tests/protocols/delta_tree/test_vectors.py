"""Tests of sequence vectors: their transport, one vector per run, holding and draining.

Paper: [DFT11] §VII.
"""

from dataclasses import replace

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.client_messages import Publish
from brokerd.model.identity import SourceId
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    SequenceVector,
    Stamp,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import MessageReceived
from brokerd.wire.codec import decode, encode, frames
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.exchange import Exchange, blob, run_of

A, B = blob(kind="a"), blob(kind="b")
CHAIN = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
VECTOR = DeltaTreeParameters(delta=1, dedupe="vector", legitimacy="hold")
BOTH = replace(VECTOR, dedupe="both")


def vectors(exchange: Exchange, a: int, b: int) -> list[tuple[tuple[int, int] | None, ...]]:
    """Return the stamps of the first publication of every run that a sent to b."""
    copies = exchange.sent(a, b, PublicationCopy)
    return [tuple(s and tuple(s) for s in c.vector.at(c.run.first).stamps) for c in copies]


def chain(parameters: DeltaTreeParameters = VECTOR, **more) -> tuple[Exchange, object, object]:
    """Return brokers 0 to 5 in a line with a publisher at 0 and a subscriber at 5."""
    exchange = Exchange(CHAIN, delta=1, parameters=parameters, **more)
    subscriber = exchange.client("s", 5)
    exchange.subscribe(subscriber, "kind = 'a'")
    publisher = exchange.client("p", 0, publishes=True)
    return exchange, publisher, subscriber


def test_a_copy_carries_the_stamps_of_at_most_2_delta_plus_1_brokers_nearest_first():
    exchange, publisher, subscriber = chain()
    exchange.publish(publisher, 1, A)
    exchange.publish(publisher, 2, A, A)
    assert vectors(exchange, 0, 1) == [((1, 1),), ((1, 2),)]
    assert vectors(exchange, 1, 2) == [((1, 1), (1, 1)), ((1, 2), (1, 2))]
    assert vectors(exchange, 3, 4) == [((1, 1),) * 3, ((1, 2),) * 3]
    assert vectors(exchange, 4, 5) == [((1, 1),) * 3, ((1, 2),) * 3]
    assert subscriber.got() == [1, 2, 3]


def test_a_broker_that_is_passed_by_leaves_a_gap_in_the_vector():
    exchange, publisher, subscriber = chain()
    exchange.kill(2)
    exchange.settle()
    exchange.publish(publisher, 1, A)
    assert vectors(exchange, 1, 3) == [(None, (1, 1), (1, 1))]
    assert vectors(exchange, 3, 4) == [((1, 1), None, (1, 1))]
    assert vectors(exchange, 4, 5) == [((1, 1), (1, 1), None)]
    assert subscriber.got() == [1]


def test_filtered_publications_do_not_split_the_vector_of_a_run():
    """Stamps follow sequence numbers, so gaps from filtering do not split a run."""
    exchange, publisher, subscriber = chain()
    exchange.publish(publisher, 1, A, B, A, B, B, A)
    copies = exchange.sent(4, 5, PublicationCopy)
    assert [list(copy.run.sequences) for copy in copies] == [[1, 3, 6]]
    assert copies[0].vector == SequenceVector(1, (Stamp(1, 1),) * 3)
    exchange.publish(publisher, 7, B, A)
    assert vectors(exchange, 0, 1)[-1] == ((1, 8),)
    assert subscriber.got() == [1, 3, 6, 8]


def test_payloads_are_forwarded_as_the_received_slices():
    exchange, publisher, _ = chain()
    exchange.publish(publisher, 1, A, A)
    first, last = exchange.sent(0, 1, PublicationCopy)[0], exchange.sent(4, 5, PublicationCopy)[0]
    assert last.run.payload[0] is first.run.payload[0]


def test_a_frame_that_is_cut_for_the_wire_keeps_the_stamps_of_its_parts():
    vector = SequenceVector(11, (Stamp(1, 5), None, Stamp(3, 70)))
    whole = PublicationCopy(run_of(SourceId(0, 0, 1), 11, *[A] * 8), (0, 1, 2, 3), vector)
    parts = [b"".join(pieces) for pieces, _ in frames(whole, 60)]
    assert len(parts) > 1
    for frame in parts:
        header = int.from_bytes(frame[4:8], "big")
        copy = decode(frame[8 : 8 + header], memoryview(frame)[8 + header :])
        own = copy.vector.at(copy.run.first).stamps[0]
        assert own == Stamp(1, 5 + copy.run.first - 11)


def test_by_default_nothing_is_carried():
    exchange, publisher, _ = chain(DeltaTreeParameters(delta=1))
    exchange.publish(publisher, 1, A)
    (copy,) = exchange.sent(4, 5, PublicationCopy)
    assert copy.vector is None
    assert len(b"".join(encode(copy))) == len(b"".join(encode(replace(copy, vector=None))))


def test_frames_that_follow_one_another_everywhere_are_sent_again_as_one():
    exchange, publisher, subscriber = chain()
    subscriber.quiet = True
    for sequence in range(1, 5):
        exchange.publish(publisher, sequence, A)
    exchange.cut(3, 4, heal=True)
    exchange.settle()
    exchange.advance(2)
    again = exchange.sent(3, 5, PublicationCopy)
    assert [list(copy.run.sequences) for copy in again] == [[1, 2, 3, 4]]
    assert again[0].vector == SequenceVector(1, (None, Stamp(1, 1), Stamp(1, 1)))


def test_frames_of_two_sources_are_sent_again_in_the_order_of_their_stamps():
    """In source order, a later stamp would arrive first and the earlier stamp would be lost."""
    exchange, publisher, subscriber = chain()
    other = exchange.client("q", 0, publishes=True)
    subscriber.quiet = True
    exchange.publish(publisher, 1, A)
    exchange.publish(other, 1, A)
    exchange.publish(publisher, 2, A)
    exchange.cut(3, 4, heal=True)
    exchange.settle()
    exchange.advance(2)
    again = exchange.sent(3, 5, PublicationCopy)
    assert [(copy.run.source.publisher, copy.run.first) for copy in again] == [
        (publisher.source.publisher, 1),
        (other.source.publisher, 1),
        (publisher.source.publisher, 2),
    ]


@pytest.mark.parametrize("parameters", [VECTOR, BOTH], ids=["vector", "both"])
def test_a_duplicate_is_confirmed_and_not_forwarded(parameters):
    exchange, publisher, subscriber = chain(parameters)
    exchange.publish(publisher, 1, A, A)
    (copy,) = exchange.sent(3, 4, PublicationCopy)
    before = len(exchange.sent(4, 5, PublicationCopy))
    exchange.handle(4, MessageReceived(3, exchange.sessions[4, 3], copy))
    exchange.settle()
    assert len(exchange.sent(4, 5, PublicationCopy)) == before
    assert exchange.sent(4, 3, PublicationConfirmation)[-1].ranges == ((copy.run.source, 1, 2),)
    assert exchange.cores[4].statistics()["duplicates_received"] == 2
    assert exchange.cores[4].statistics()["dedupe_disagreements"] == 0
    assert subscriber.got() == [1, 2]


def test_stamps_restart_with_an_incarnation_and_count_as_later():
    exchange, publisher, subscriber = chain()
    exchange.publish(publisher, 1, A)
    exchange.kill(1)
    exchange.start(1)
    exchange.advance(2)
    exchange.publish(publisher, 2, A)
    assert vectors(exchange, 1, 2)[-1] == ((2, 1), (1, 2))
    assert subscriber.got() == [1, 2]


def test_the_record_of_a_disagreement_names_the_restarted_broker():
    """Broker 1 restarts, receives a publication again, and assigns another stamp."""
    exchange, publisher, subscriber = chain(BOTH)
    exchange.publish(publisher, 1, A)
    (first,) = exchange.sent(1, 2, PublicationCopy)
    again = replace(first, vector=SequenceVector(1, (Stamp(2, 1), None)))
    with pytest.raises(RemoteProtocolError, match="bypassed broker 0"):
        exchange.handle(2, MessageReceived(1, exchange.sessions[2, 1], again))
    again = replace(first, vector=SequenceVector(1, (Stamp(2, 1), Stamp(2, 1))))
    exchange.handle(2, MessageReceived(1, exchange.sessions[2, 1], again))
    effects = exchange.log[-1][2]
    (details,) = [e.details for e in effects if getattr(e, "event", "") == "dedupe_disagreement"]
    assert details["old_by"] == "source"
    assert details["restarted"] == [1, 0]
    assert exchange.cores[2].statistics()["dedupe_disagreements"] == 1
    assert subscriber.got() == [1], "the source decides"


def test_a_copy_from_before_a_restart_names_the_restarted_broker():
    """Broker 1 restarts; a copy from before the restart arrives late over a bypass."""
    exchange, publisher, subscriber = chain(BOTH)
    exchange.publish(publisher, 1, A)
    (first,) = exchange.sent(1, 2, PublicationCopy)
    for sequence, vector in (
        (2, SequenceVector(2, (Stamp(2, 1), Stamp(1, 2)))),
        (3, SequenceVector(3, (Stamp(1, 2), Stamp(1, 3)))),
    ):
        run = replace(first.run, sequences=range(sequence, sequence + 1))
        copy = replace(first, run=run, vector=vector)
        exchange.handle(2, MessageReceived(1, exchange.sessions[2, 1], copy))
    effects = exchange.log[-1][2]
    (details,) = [e.details for e in effects if getattr(e, "event", "") == "dedupe_disagreement"]
    assert (details["old_by"], details["restarted"]) == ("vector", [1])
    exchange.settle()
    assert subscriber.got() == [1, 2, 3], "the source decides"


GOOD = SequenceVector(1, (Stamp(1, 1), Stamp(1, 1), Stamp(1, 1)))
BAD_VECTORS = {
    "none at all": None,
    "one that is too short": SequenceVector(1, GOOD.stamps[:2]),
    "one that is too long": SequenceVector(1, (*GOOD.stamps, Stamp(1, 1))),
    "one without stamps": SequenceVector(1, ()),
    "one that went past its sender": SequenceVector(1, (None, *GOOD.stamps[1:])),
    "a stamp of no incarnation": SequenceVector(1, (Stamp(0, 1), *GOOD.stamps[1:])),
    "a stamp without number": SequenceVector(1, (Stamp(1, 0), *GOOD.stamps[1:])),
    "a stamp beyond all numbers": SequenceVector(1, (Stamp(1, 1 << 62), *GOOD.stamps[1:])),
    "the stamps of a later publication": replace(GOOD, sequence=2),
    "the stamps of publication 0": replace(GOOD, sequence=0),
    "one that went past too many": SequenceVector(1, (Stamp(1, 1), None, None)),
}


@pytest.mark.parametrize("vector", BAD_VECTORS.values(), ids=BAD_VECTORS)
def test_a_vector_that_cannot_be_is_refused_and_changes_nothing(vector):
    exchange, publisher, subscriber = chain()
    exchange.publish(publisher, 1, A)
    core = exchange.cores[4]
    before = dict(core.statistics())
    source = SourceId(0, publisher.source.publisher, 1)
    copy = PublicationCopy(run_of(source, 1, A), (0, 1, 2, 3, 4), vector)
    with pytest.raises(RemoteProtocolError):
        core.handle(MessageReceived(3, exchange.sessions[4, 3], copy), 0)
    assert dict(core.statistics()) == before
    exchange.publish(publisher, 2, A)
    assert subscriber.got() == [1, 2], "life goes on"


def test_a_vector_of_brokers_that_are_not_on_the_path_is_refused():
    """One link from the source, only the source can have stamped a publication."""
    exchange, publisher, _ = chain()
    exchange.publish(publisher, 1, A)
    copy = PublicationCopy(run_of(publisher.source, 2, A), (0, 1), SequenceVector(2, GOOD.stamps))
    with pytest.raises(RemoteProtocolError, match="a vector of 3 stamps"):
        exchange.cores[1].handle(MessageReceived(0, exchange.sessions[1, 0], copy), 0)


def test_stamps_of_brokers_that_the_sender_went_past_are_refused():
    exchange, publisher, _ = chain()
    exchange.cut(2, 3)
    exchange.settle()
    exchange.publish(publisher, 1, A)
    copy = PublicationCopy(run_of(publisher.source, 2, A), (0, 1, 2, 3), GOOD)
    with pytest.raises(RemoteProtocolError, match="between it and here"):
        exchange.cores[3].handle(MessageReceived(1, exchange.sessions[3, 1], copy), 0)


def test_a_vector_is_refused_where_vectors_are_off():
    exchange, publisher, _ = chain(DeltaTreeParameters(delta=1))
    copy = PublicationCopy(
        run_of(publisher.source, 1, A), (0, 1), SequenceVector(1, (Stamp(1, 1),))
    )
    with pytest.raises(RemoteProtocolError, match="which this profile does not use"):
        exchange.cores[1].handle(MessageReceived(0, exchange.sessions[1, 0], copy), 0)


def test_a_client_cannot_use_all_stamps_up():
    exchange, publisher, _ = chain()
    run = run_of(publisher.source, 1, A, A)
    wide = Publish(replace(run, sequences=(1, 1 << 60)))
    with pytest.raises(RemoteProtocolError, match="from 1 to"):
        exchange.say(publisher, wide)


def held() -> tuple[Exchange, object, object]:
    """Bypass broker 1, restart 1, then cut 3 off: broker 2 waits for 3 with n=1."""
    exchange, publisher, subscriber = chain()
    exchange.hold(2, 3)
    exchange.kill(1)
    exchange.settle()
    exchange.publish(publisher, 1, A)
    assert vectors(exchange, 0, 2) == [(None, (1, 1))]
    exchange.start(1)
    exchange.advance(2)
    exchange.kill(3)
    exchange.release(2, 3)
    exchange.publish(publisher, 2, A)
    return exchange, publisher, subscriber


def test_a_publication_that_bypasses_too_many_brokers_waits_with_its_successors():
    """Scenario 25. Paper: [DFT11] §VII lines 693-700."""
    exchange, _, subscriber = held()
    assert exchange.sent(2, 4, PublicationCopy) == []
    assert exchange.cores[2].statistics()["legitimacy_held"] > 0
    assert subscriber.got() == []
    exchange.start(3)
    exchange.advance(2)
    assert subscriber.got() == [1, 2], "released in order"


def test_publications_withheld_one_by_one_lose_the_first_to_a_later_one():
    with plant_mutants([Mutant.HOLD_OUT_OF_ORDER]):
        exchange, _, subscriber = held()
    assert subscriber.got() == [2]
    exchange.start(3)
    exchange.advance(2)
    assert subscriber.got() == [2]


def test_observed_legitimacy_violations_are_counted_at_sender_and_receiver():
    exchange, publisher, subscriber = chain(replace(VECTOR, legitimacy="observe"))
    exchange.hold(2, 3)
    exchange.kill(1)
    exchange.settle()
    exchange.publish(publisher, 1, A)
    exchange.kill(3)
    exchange.release(2, 3)
    exchange.advance(2)
    assert subscriber.got() == [1]
    assert exchange.cores[2].statistics()["legitimacy_violating"] > 0
    assert exchange.cores[4].statistics()["legitimacy_violated"] > 0


@pytest.mark.parametrize("switch", ["resend", "drain"])
def test_publications_on_the_bypass_are_resent_or_awaited_after_a_broker_returns(switch):
    """Scenario 15, both policies."""
    exchange, publisher, subscriber = chain(DeltaTreeParameters(delta=1, switch=switch))
    subscriber.quiet = True
    exchange.kill(3)
    exchange.settle()
    exchange.publish(publisher, 1, A)
    exchange.start(3)
    exchange.advance(2)
    exchange.publish(publisher, 2, A)
    to_3 = [list(copy.run.sequences) for copy in exchange.sent(2, 3, PublicationCopy)]
    assert to_3 == ([[1], [2]] if switch == "resend" else [])
    duplicates = exchange.cores[4].statistics()["duplicates_received"]
    assert duplicates == (switch == "resend")
    subscriber.quiet = False
    exchange.detach(subscriber)
    exchange.client("s", 5)
    exchange.subscribe(subscriber, "kind = 'a'")
    assert subscriber.got()[-2:] == [1, 2]
    if switch == "drain":
        to_3 = [list(copy.run.sequences) for copy in exchange.sent(2, 3, PublicationCopy)]
        assert to_3 == [[2]], "what waited goes once the older one is confirmed"


def test_a_drained_session_that_is_renewed_has_nothing_of_the_old_one():
    """The drained session is compared, not the peer: n=1 is gone with the session of 2 and 4."""
    assert _drained_session_renewed() == [1]


def test_comparison_by_peer_loses_publications_of_a_lost_session():
    with plant_mutants([Mutant.DRAIN_COMPARES_PEERS]):
        assert _drained_session_renewed() == []


def _drained_session_renewed() -> list[int]:
    parameters = DeltaTreeParameters(delta=1, switch="drain")
    exchange, publisher, subscriber = chain(parameters)
    exchange.kill(3)
    exchange.settle()
    exchange.hold(2, 4)
    exchange.publish(publisher, 1, A)
    exchange.cut(2, 4, heal=True)
    exchange.held.clear()
    exchange.settle()
    exchange.advance(5)
    return subscriber.got()


@pytest.mark.parametrize(
    "setting, said",
    [
        ({"dedupe": "vectors"}, "dedupe = 'vectors'; one of source, vector, both"),
        ({"legitimacy": "block"}, "legitimacy = 'block'; one of observe, hold"),
        ({"switch": ""}, "switch = ''; one of resend, drain"),
    ],
)
def test_a_scheme_that_does_not_exist_is_refused(setting, said):
    with pytest.raises(ConfigError, match=said):
        DeltaTreeParameters.from_mapping(setting, "topology.toml")
