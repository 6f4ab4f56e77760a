"""A topic that a server gives away while the topic still arrives from another server.

The second of three servers receives the topic from the third, and a proxy makes the second give the
topic to the first. Under all interruptions the first server receives all events of the third.
"""

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.model.identity import SourceId
from brokerd.protocols.interface import Append, Commit
from brokerd.protocols.multi_proxy.messages import (
    CarriedFollower,
    CarriedPart,
    Carry,
    Elsewhere,
    Follow,
    Following,
    Get,
    Merge,
    Owner,
    Periodic,
    PutThrough,
    Transfer,
    Transferred,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import CAUSAL
from brokerd.units import SECOND_NS
from tests.protocols.multi_proxy.test_causal_ownership import HOME, TOPIC, carry, of_kind
from tests.protocols.multi_proxy.test_server import Disk

GIVER, BETWEEN, NEXT = 3, 2, 1
LAST = 4
GIVEN = Transfer(
    BETWEEN,
    GIVER,
    TOPIC,
    0,
    (CarriedPart(GIVER, 0, LAST, ()),),
    (PutThrough(SourceId(HOME, 0, 1), LAST),),
    (CarriedFollower(HOME, (Elsewhere(GIVER, TOPIC, 0),)),),
)
MERGE = Merge(BETWEEN, (Owner(TOPIC, NEXT),))


def nothing(_: Disk) -> None:
    """Repeat the message without any change."""


def time_passes(server: Disk) -> None:
    """Advance the clock beyond the retention time."""
    server.now_ns += 3 * SECOND_NS
    server.tick()


def follower_has_all(server: Disk) -> None:
    """Let the follower arrive here and acknowledge all events."""
    server.tell(Follow(BETWEEN, HOME, 1, 1, (TOPIC,)))
    server.tell(Periodic(BETWEEN, HOME, 1, (), (Elsewhere(GIVER, TOPIC, LAST),)))


def a_crash(server: Disk) -> None:
    server.start(2)


def given_again(server: Disk) -> None:
    """Repeat the transfer by the third server, which has no answer."""
    server.tell(carry(1, LAST, giver=GIVER))
    server.tell(GIVEN)


MEANWHILE = (nothing, time_passes, follower_has_all, a_crash, given_again)


def merged_on_the_way(server: Disk) -> None:
    server.request(GIVEN, Append)
    server.tell(MERGE)


def merged_and_not_on_disk(server: Disk) -> None:
    server.request(GIVEN, Append)
    server.request(MERGE, Append)
    server.request(GIVEN, Append, Commit)


def merged_when_it_is_here(server: Disk) -> None:
    server.tell(GIVEN)
    server.tell(MERGE)


ORDERS = (merged_on_the_way, merged_and_not_on_disk, merged_when_it_is_here)


@pytest.mark.parametrize("second", MEANWHILE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("first", MEANWHILE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("order", ORDERS, ids=lambda each: each.__name__)
def test_a_topic_that_moves_on_is_given_as_it_was_got(
    order: Callable[[Disk], None], first: Callable[[Disk], None], second: Callable[[Disk], None]
) -> None:
    server = Disk(CAUSAL, servers=3, number=BETWEEN, max_retain_ns=SECOND_NS)
    server.tell(carry(1, LAST, giver=GIVER))
    order(server)
    for meanwhile in (first, second):
        meanwhile(server)
    said: list[Any] = []
    for _ in range(8):
        server.now_ns += SECOND_NS
        said += server.tick()
    given = [each for each in of_kind(said, Transfer) if each.server == NEXT]
    assert given
    own, of_the_giver = CarriedPart(BETWEEN, 0, 0, ()), CarriedPart(GIVER, 0, LAST, ())
    assert {each.parts for each in given} == {(own, of_the_giver)}
    carried = [each.run for each in of_kind(said, Carry) if each.server == NEXT]
    assert {place for run in carried for place in run.sequences} == {*range(1, LAST + 1)}
    server.tell(Transferred(NEXT, BETWEEN, TOPIC, NEXT))
    assert server.core.status().queued == 0


def test_an_incomplete_message_is_kept_at_any_age() -> None:
    """The publications of a topic arrive long before the transfer of ownership."""
    server = Disk(CAUSAL, servers=3, number=BETWEEN, max_retain_ns=SECOND_NS)
    server.tell(carry(1, LAST, giver=GIVER))
    time_passes(server)
    assert server.core.status().queued == LAST
    (answer,) = of_kind(server.tell(GIVEN), Transferred)
    assert answer.owner == BETWEEN


def test_a_server_is_not_blamed_for_what_a_former_owner_lost() -> None:
    """With several owners it could not accept the loss, and would serve no topic for ever."""
    server = Disk(CAUSAL, servers=3, number=BETWEEN)
    server.tell(carry(1, LAST, giver=GIVER))
    server.tell(GIVEN)
    server.tell(Follow(BETWEEN, HOME, 1, 1, (TOPIC,)))
    had = Wanted(GIVER, TOPIC, LAST + 2, LAST + 2, 9)
    server.tell(Get(BETWEEN, HOME, 1, 1, (had, Wanted(BETWEEN, TOPIC, 0, 0, 9))))
    assert not server.proofs
    assert of_kind(server.tell(Follow(BETWEEN, HOME, 1, 2, (TOPIC,))), Following)
