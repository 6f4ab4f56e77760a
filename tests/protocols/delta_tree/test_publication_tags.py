"""Tests of publications that brokers tag in flight, and of the tags at access brokers."""

from itertools import pairwise

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Notice
from brokerd.model.identity import PartitionId, SourceId
from brokerd.protocols.delta_tree.annotations import find_first_tag, join_tags, tag_for
from brokerd.protocols.delta_tree.messages import PublicationCopy, PublicationTag, Summary, Tag
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import MessageReceived
from tests.helpers.exchange import Exchange, blob, run_of

A = blob(kind="a")
PAPER = DeltaTreeParameters(delta=1, profile="paper", dedupe="source", legitimacy="observe")


def behind_a_barrier(parameters):
    """Start s at 0 behind an older subscription while 1 reaches neither 2 nor 3."""
    exchange = Exchange(tuple(pairwise(range(5))), parameters=parameters)
    exchange.subscribe(exchange.client("old", 0), "kind = 'a'")
    for far in ((1, 3), (0, 2)):
        exchange.unreachable[far] = None
    exchange.cut(1, 2)
    exchange.advance(1)
    exchange.subscribe(exchange.client("s", 0), "kind = 'a'")
    return exchange


def test_publications_from_beyond_a_barrier_are_tagged_and_announced():
    """The publication is sent ahead of the confirmation that would open the gate."""
    exchange = behind_a_barrier(PAPER)
    source = exchange.client("p", 3, publishes=True)
    exchange.hold(1, 2)
    exchange.mend(1, 2)
    session, summary = exchange.queues[1, 2].popleft()
    assert isinstance(summary, Summary)
    exchange.handle(2, MessageReceived(1, session, summary))
    exchange.publish(source, 1, A)
    sent = exchange.sent(1, 0, PublicationCopy)
    assert [(tag.partition.detector, tag.partition.nodes) for tag in sent[-1].tags] == [
        (1, (2,)),
        (1, (2, 3)),
    ]
    assert [tag.beyond for tag in sent[-1].tags] == [True, False]
    notices = [m for m in exchange.clients["s"].answers if isinstance(m, Notice)]
    assert [notice.source for notice in notices] == [source.source]
    assert exchange.clients["old"].got() == [1]
    assert exchange.clients["s"].got() == []
    assert exchange.cores[0].statistics()["tags_missing"] == 0


def test_in_profile_robust_nothing_is_tagged_and_tags_are_refused():
    exchange = behind_a_barrier(None)
    exchange.mend(1, 2)
    exchange.unreachable.clear()
    exchange.advance(12)
    source = exchange.client("p", 3, publishes=True)
    exchange.publish(source, 1, A)
    assert exchange.clients["s"].got() == [1]
    assert all(copy.tags == () for copy in exchange.sent(2, 1, PublicationCopy))
    tagged = PublicationCopy(
        run_of(source.source, 2, A),
        (3, 2, 1),
        tags=(PublicationTag(PartitionId(1, 1, 1, (2,)), True),),
    )
    with pytest.raises(RemoteProtocolError, match="without"):
        exchange.cores[1].handle(MessageReceived(2, exchange.sessions[1, 2], tagged), 0)


@pytest.mark.parametrize(
    "tag",
    [
        PublicationTag(PartitionId(1, 1, 1, (9,)), True),
        PublicationTag(PartitionId(1, 1, 1, ()), True),
        PublicationTag(PartitionId(1, 1, 0, (2,)), True),
        PublicationTag(PartitionId(1, 1, 1, (2,)), False),
        PublicationTag(PartitionId(1, 1, 1, (2, 3)), True),
        PublicationTag(PartitionId(4, 1, 1, (3, 2)), True),
    ],
)
def test_tags_of_partitions_that_exclude_the_source_are_refused(tag):
    exchange = Exchange(tuple(pairwise(range(4))), parameters=PAPER)
    copy = PublicationCopy(run_of(SourceId(3, 0, 1), 1, A), (3, 2, 1), tags=(tag,))
    with pytest.raises(RemoteProtocolError, match="is not from"):
        exchange.cores[1].handle(MessageReceived(2, exchange.sessions[1, 2], copy), 0)


def test_a_source_is_on_a_partition_beyond_it_or_neither():
    """Paper: [DFT11] §III lines 320-325."""
    pid = PartitionId(1, 1, 1, (2, 3))
    path = (5, 4, 3, 2, 1, 0)
    assert tag_for(pid, path, path) == (pid, True)
    assert tag_for(pid, path[2:], path[2:]) == (pid, False)
    assert tag_for(pid, path[3:], path[3:]) is None, "from before it"
    assert tag_for(pid, (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)) is None, "from the detector's side"
    assert tag_for(pid, path, path[3:]) is None, "too far back to be seen"


def test_a_node_tag_withholds_only_publications_tagged_at_that_node():
    on = PublicationTag(PartitionId(1, 1, 7, (2,)), False)
    beyond = PublicationTag(PartitionId(1, 1, 7, (2,)), True)
    node = Tag((0, 1, 2), 1, 1, 1, False)
    region = Tag((0, 1, 2), 1, 1, 1, True)
    assert find_first_tag((node,), (on,)) is node
    assert find_first_tag((node,), (beyond,)) is None
    assert find_first_tag((region,), (on,)) is region
    assert find_first_tag((region,), (beyond,)) is region
    assert find_first_tag((region,), ()) is None
    assert find_first_tag((node,), (beyond,), has_joined=True) is node, (
        "it knows what that one knows"
    )
    assert find_first_tag((Tag((0, 3, 2), 3, 1, 1, True),), (on,)) is None, "another detector's"


def test_joined_publications_carry_the_union_of_their_tags():
    a = PublicationTag(PartitionId(1, 1, 1, (2,)), True)
    b = PublicationTag(PartitionId(1, 1, 2, (2, 3)), False)
    assert join_tags([(a,), (), (a, b)]) == (a, b)
