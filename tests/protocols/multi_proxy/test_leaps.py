"""Generations that are too far ahead of the known one."""

import pytest
from _pytest.outcomes import Failed

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.interface import Commit, MessageReceived
from brokerd.protocols.multi_proxy.messages import Assign, Generation, Owned, Owner
from brokerd.protocols.multi_proxy.parameters import ARBITER
from brokerd.simulator.named_bugs import bugs_of, planted
from tests.helpers.proxy_stories import Story
from tests.protocols.multi_proxy.test_server import PROXY, SERVER, TOPIC, Disk

MUTANTS = bugs_of("multi_proxy")

FAR = (1 << 33, 1 << 62)


def an_assignment_leaps(number: int) -> None:
    disk = Disk(ownership=ARBITER)
    message = Assign(SERVER, SERVER, (Generation(TOPIC, 1), Generation(TOPIC, number)))
    with pytest.raises(RemoteProtocolError, match="leaps from 0"):
        disk.core.handle(MessageReceived(PROXY, 7, message), 0)
    fair = Assign(SERVER, SERVER, (Generation(TOPIC, 1),))
    effects = disk.core.handle(MessageReceived(PROXY, 7, fair), 0)
    assert any(isinstance(each, Commit) for each in effects)


def an_owner_leaps(number: int) -> None:
    story = Story(ownership=ARBITER)
    x1, v1 = (story.topology.number_of(name) for name in ("x1", "v1"))
    broker = story.cluster.broker("x1").broker
    message = Owned((Owner(TOPIC, v1, number),))
    event = MessageReceived(v1, broker.session_with(v1), message)
    assert x1 != v1
    with pytest.raises(RemoteProtocolError, match="leaps from"):
        broker.core.handle(event, story.cluster.schedule.now_ns)


@pytest.mark.parametrize("number", FAR)
@pytest.mark.parametrize("story", [an_assignment_leaps, an_owner_leaps])
def test_a_generation_that_leaps_is_refused(story, number: int) -> None:
    story(number)
    with planted([MUTANTS["generations-leap"]]), pytest.raises((Failed, AssertionError)):
        story(number)
