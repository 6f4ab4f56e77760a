"""Statements that a neighbour forges, with storages that keep publications."""

from brokerd.model.identity import SourceId
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges import Target
from brokerd.protocols.ges_reliable.messages import Change, Key, Store, SubscriptionRequest
from brokerd.wire.attributes import encode_attributes
from tests.protocols.ges.forged_stories import Attacked, forged_connections, forged_profiles


def test_forged_profiles_are_refused_or_outbid() -> None:
    forged_profiles("ges_reliable")


def test_forged_connections_are_refused_or_outbid() -> None:
    forged_connections("ges_reliable")


def test_a_storage_drops_requests_of_brokers_that_do_not_exist() -> None:
    """It failed once the request was on disk."""
    story = Attacked("ges_reliable")
    storage = story.cluster.broker("e").broker
    target = Target(0, story.core("e").units.place.address, (), (), 0)
    blob = encode_attributes({"kind": "a"})
    run = PublicationRun(SourceId(0, 0, 1), range(1, 2), (blob,), b"\0", 0, ())
    request = SubscriptionRequest(Key("x", 1), 1, EVERYTHING, successor=99)
    forged = (
        Store(target, 0, 99, run),
        Change(target, 0, 0, 1 << 20, 1, (request,)),
        Change(target, 0, 99, 1, 1, (request,)),
    )
    before = storage.core.statistics()["messages_ignored"]
    for message in forged:
        assert story.forge(message, at="e", by="c")
    story.cluster.run_for(5)
    assert storage.core.statistics()["messages_ignored"] == before + len(forged)
    assert story.is_served()
