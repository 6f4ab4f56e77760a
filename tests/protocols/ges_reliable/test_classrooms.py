"""Scenarios of brokers and units that appear while clients are active."""

from collections.abc import Callable, Iterator

import pytest

from brokerd.errors import ConfigError
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.cluster import SimulatedCluster, Subscription
from pubsubctl.deployment.topologies import load_topology
from tests.protocols.ges.readdress_stories import TOPOLOGY
from tests.protocols.ges_reliable.test_members import Members
from tests.protocols.ges_reliable.test_stories import BROKEN
from tests.protocols.ges_reliable.test_trees import Trees

MUTANTS = bugs_of("ges_reliable")

ROOMS = {
    "room1": ("n12", "n13"),
    "room2": ("n9", "n7"),
    "room3": ("n15", "n14"),
    "room4": ("n17", "n18"),
    "room5": ("n3", "n2"),
    "room6": ("n20", "n22"),
}
"""Six brokers, each near two brokers of one unit: the classrooms of the paper."""
PUPILS = 4


class Classrooms:
    """The 22 brokers; pupils of six rooms, first at distant brokers, and a teacher in each room."""

    def __init__(self, protocol: str = "ges_reliable") -> None:
        path = TOPOLOGY if protocol == "ges" else TOPOLOGY.with_name("t22-stored.toml")
        topology = load_topology(path).restrict_to_kind("hierarchy")
        self.cluster = SimulatedCluster(topology, protocol, strict=False).start()
        self.cluster.run_until_quiet()
        self.pupils: dict[str, list[Subscription]] = {}
        for place, room in enumerate(ROOMS):
            homes = [f"n{1 + (7 * place + 5 * pupil) % 22}" for pupil in range(PUPILS)]
            self.pupils[room] = [
                self.cluster.subscribe(home, f"room = '{room}'", f"pupil{number}-{room}")
                for number, home in enumerate(homes)
            ]
            self.cluster.client(f"teacher-{room}", homes[0], publishes=True)
        self.cluster.run_for(5)

    def lesson(self, at: str | None = None) -> None:
        """Publish once in each room."""
        for room in ROOMS:
            home = at or self.cluster.topology.brokers[0]
            self.cluster.publish(home, client=f"teacher-{room}", room=room)
        self.cluster.run_for(1)

    def open_rooms(self) -> None:
        """Start a broker in each room, and send the clients there."""
        for room, near in ROOMS.items():
            self.cluster.join(room, *near).start()
        self.cluster.run_for(2)
        for room in ROOMS:
            self.send_to(room, [room] * PUPILS)

    def send_to(self, room: str, homes: list[str]) -> None:
        for subscription, home in zip(self.pupils[room], homes, strict=True):
            self.cluster.transfers.reattach(subscription.client.name, home)
        self.cluster.transfers.reattach(f"teacher-{room}", homes[0])

    def close_rooms(self) -> None:
        """Send the clients to brokers near by, and remove the brokers of the rooms."""
        for room, near in ROOMS.items():
            self.send_to(room, [near[number % 2] for number in range(PUPILS)])
        self.cluster.run_for(3)
        for room in ROOMS:
            self.cluster.leave(room)
            self.cluster.run_for(1)

    def received(self) -> Iterator[int]:
        for subscriptions in self.pupils.values():
            yield from (len(each.received) for each in subscriptions)


def six_classrooms() -> None:
    """Clients appear, brokers are started near them and leave again; nothing is lost."""
    story = Classrooms()
    lessons = 0
    for step in (story.open_rooms, story.close_rooms):
        for _ in range(3):
            story.lesson()
        lessons += 3
        story.cluster.run_for(2)
        assert {*story.received()} == {lessons}, "received while the rooms are as they are"
        step()
    for _ in range(3):
        story.lesson()
    story.cluster.run_for(20)
    story.cluster.oracle.judge_end()
    assert {*story.received()} == {lessons + 3}
    assert not story.cluster.oracle.violations
    assert len(story.cluster.state.staying) == 22
    living = [broker for broker in story.cluster.state.staying if broker.alive]
    assert not any(broker.core.status().queued for broker in living)


def test_six_classrooms_lose_nothing() -> None:
    """(a25_six_classrooms)."""
    six_classrooms()


def test_six_classrooms_need_the_addresses_of_newcomers() -> None:
    with plant([MUTANTS["newcomer-has-no-address"]]), pytest.raises((*BROKEN, KeyError)):
        six_classrooms()


def test_local_brokers_keep_the_traffic_of_a_classroom_inside() -> None:
    """Best effort: a publication crosses many links before there are brokers in the rooms (G12)."""
    story = Classrooms("ges")
    counts = []
    for homes in (None, "local"):
        before = story.cluster.statistics()["publications_forwarded"]
        for room in ROOMS:
            home = room if homes else story.cluster.topology.brokers[0]
            story.cluster.client(f"teacher2-{homes}-{room}", home, publishes=True)
            story.cluster.publish(home, client=f"teacher2-{homes}-{room}", room=room)
        story.cluster.run_for(5)
        counts.append(story.cluster.statistics()["publications_forwarded"] - before)
        if homes is None:
            for room, near in ROOMS.items():
                story.cluster.join(room, *near).start()
            story.cluster.run_for(60)
            for room in ROOMS:
                for subscription in story.pupils[room]:
                    story.cluster.unsubscribe(subscription.client.name, subscription.number)
                story.pupils[room] = [
                    story.cluster.subscribe(room, f"room = '{room}'", f"again{number}-{room}")
                    for number in range(PUPILS)
                ]
            story.cluster.run_for(5)
    assert counts[0] > 6 * len(ROOMS)
    assert counts[1] * 3 < counts[0]
    assert {*story.received()} == {1}


def test_no_two_brokers_have_one_number() -> None:
    """The topology assigns addresses, and one copy of it decides (a11_double_controller)."""
    story = Members()
    with pytest.raises(ConfigError, match=r"n = '0\.0\.1': g has it"):
        story.cluster.join("n", "g", place="0.0.1")
    for name in ("n", "m"):
        story.join(name, "g")
    addresses = story.cluster.topology.overlay("hierarchy").addresses
    assert len({*addresses}) == len(addresses) == 7
    story.publish("z", "a")
    story.settle()
    assert story.got() == 2


def test_the_broker_after_the_last_number_opens_another_cluster() -> None:
    """(a22_block_65)."""
    story = Members()
    for number in range(61):
        story.cluster.join(f"n{number}", "x").start()
    with pytest.raises(ConfigError, match=r"none of the 64 numbers in 0\.1\.\* is free"):
        story.cluster.join("last", "x")
    story.cluster.join("last", "x", place="0.2.0").start()
    story.cluster.run_for(3)
    found = story.subscribe("last", "kind = 'a'")
    story.publish("z", "a")
    story.publish("n60", "a")
    story.settle()
    assert (story.got(), len(found.received)) == (3, 2)


def a_client_subscribes_while_a_finer_storage_skips_unwanted_events() -> None:
    """Root r answers f, by its old profile, that nothing through an epoch is for f."""
    trees = Trees()
    trees.publish("z", *"bbb")
    skipped = trees.log_of("r").durable
    trees.cluster.link("r", "f").delay(400_000_000)
    late = trees.cluster.subscribe("x", "kind = 'b'")
    sent = 0
    for _ in range(40):
        if late.started:
            sent += 1
        trees.publish("z", "b", seconds=0.1)
    trees.cluster.link("r", "f").heal()
    trees.settle(20)
    assert trees.log_of("r").durable > skipped
    assert sent <= len(late.received) < 40


def test_a_skip_by_an_old_profile_loses_nothing() -> None:
    """(a23_skip_race)."""
    a_client_subscribes_while_a_finer_storage_skips_unwanted_events()


def test_a_skip_needs_all_predicates_of_the_unit() -> None:
    with plant([MUTANTS["profile-ends-with-the-first"]]), pytest.raises(BROKEN):
        a_client_subscribes_while_a_finer_storage_skips_unwanted_events()


STEPS: tuple[Callable[[Trees], object], ...] = (
    lambda trees: trees.cluster.join("n", "y", place="2.0.0"),
    lambda trees: trees.cluster.join("n", "x", "y", place="2.0.0"),
)


@pytest.mark.parametrize("step", STEPS)
def test_a_unit_with_a_root_of_its_own_is_not_added(step: Callable[[Trees], object]) -> None:
    """Its clients would have no storage; the others continue (a26_new_unit_join)."""
    trees = Trees()
    with pytest.raises(ConfigError, match="has no root storage; units that have one cannot join"):
        step(trees)
    late = trees.subscribe("y", "kind = 'a'")
    trees.publish("z", "a", "a")
    trees.settle()
    assert (trees.got(), len(late.received)) == (3, 2)
