"""Stories of brokers that join and leave while publications flow and other brokers die."""

from collections.abc import Callable

import pytest

from brokerd.errors import ConfigError
from tests.protocols.ges_reliable.test_stories import Story
from tests.protocols.ges_reliable.test_trees import Trees


class Members(Story):
    """A subscriber at x and a publisher at z, while brokers join and leave."""

    def join(self, name: str, *near: str) -> None:
        self.cluster.join(name, *near).start()
        self.cluster.run_for(1)

    def number(self, name: str) -> int:
        return self.cluster.topology.number_of(name)


def a_broker_joins_and_has_clients_like_any_other() -> None:
    """The new broker publishes too, while the storage dies and returns."""
    story = Members()
    story.cluster.publish("z", kind="a")
    story.join("n", "x", "g")
    found = story.subscribe("n", "kind = 'a'")
    story.cluster.publish("z", kind="a")
    story.cluster.publish("n", kind="a")
    story.cluster.broker("s").restart()
    story.publish("n", "b", "a", seconds=3)
    story.settle()
    assert (story.got(), len(found.received)) == (5, 3)


def clients_of_a_departing_broker_continue_at_another() -> None:
    """Clients with pending requests detach freely."""
    story = Members()
    story.join("n", "x", "y")
    found = story.subscribe("n", "kind = 'a'")
    story.publish("n", "a")
    story.cluster.publish("n", kind="a")
    story.cluster.publish("z", kind="a")
    story.cluster.transfers.reattach(found.client.name, "y")
    story.cluster.transfers.reattach("p-n", "z")
    story.cluster.publish("z", kind="a")
    story.cluster.leave("n")
    story.publish("z", "a", seconds=3)
    story.cluster.publish("z", client="p-n", kind="a")
    story.settle()
    assert (story.got(), len(found.received)) == (7, 6)
    living = [broker for broker in story.cluster.state.staying if broker.alive]
    assert not any(story.number("n") in broker.core.status().wanted for broker in living)


def a_gatekeeper_departs_with_messages_in_flight() -> None:
    """Broker g carries messages between x and its storage; they are sent again around g."""
    story = Members()
    for _ in range(5):
        story.cluster.publish("z", kind="a")
        story.cluster.publish("x", kind="a")
        story.cluster.run_for(0.01)
    story.cluster.leave("g")
    story.publish("z", "a")
    story.settle()
    assert story.got() == 12


def a_broker_that_joins_is_answered_by_a_storage_that_was_down() -> None:
    """The new broker starts with the current topology."""
    story = Members()
    story.cluster.broker("s").kill()
    story.join("n", "x", "y")
    found = story.cluster.subscribe("n", "kind = 'a'")
    story.publish("n", "a", seconds=3)
    story.cluster.broker("s").start()
    story.cluster.run_for(5)
    story.publish("z", "a")
    story.settle()
    assert (story.got(), len(found.received)) == (3, 1)


def a_newcomer_becomes_a_storage_and_stays() -> None:
    """The clients of the cluster are stored for there; then the broker cannot leave (A10)."""
    trees = Trees()
    trees.cluster.join("n", "g", "x").start()
    trees.cluster.run_for(1)
    early = trees.subscribe("n", "kind = 'b'")
    assert trees.cluster.membership.change_role("n", "1")
    trees.publish("z", "a", "b", seconds=3)
    late = trees.subscribe("g", "kind = 'b'")
    trees.publish("x", "a", "b")
    trees.settle()
    assert (trees.got(), len(early.received), len(late.received)) == (3, 2, 1)
    assert trees.stored_for("n") == 2
    with pytest.raises(ConfigError, match="leave: n is a storage, and has what others may not be"):
        trees.cluster.leave("n")


MEMBER_STORIES = (
    a_broker_joins_and_has_clients_like_any_other,
    clients_of_a_departing_broker_continue_at_another,
    a_gatekeeper_departs_with_messages_in_flight,
    a_broker_that_joins_is_answered_by_a_storage_that_was_down,
    a_newcomer_becomes_a_storage_and_stays,
)


@pytest.mark.parametrize("story", MEMBER_STORIES, ids=lambda story: story.__name__)
def test_story(story: Callable[[], None]) -> None:
    story()
