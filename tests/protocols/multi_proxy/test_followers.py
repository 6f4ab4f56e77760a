"""Followers of a server while topics arrive from other servers and move away again."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.protocols.multi_proxy.followers import Followers, Restatements
from brokerd.protocols.multi_proxy.messages import CarriedFollower, Elsewhere, Wanted
from brokerd.protocols.multi_proxy.state import FOLLOWERS, Part, Version

HERE, GIVER, HOME, OTHER = 1, 2, 7, 8
MOVED, STAYS = 3, 4


class Log:
    """The parts of topics at a server, with the positions after which they are needed."""

    def __init__(self) -> None:
        self.needed: dict[Part, int] = {}

    def parts(self, number: int) -> list[Any]:
        return [self.part(part) for part in self.needed if part.topic == number]

    def part(self, part: Part) -> Any:
        return SimpleNamespace(part=part, number=part.topic, needed_position=self.needed[part])


def with_follower() -> tuple[Followers, Log]:
    log = Log()
    log.needed = {Part(HERE, MOVED): 2, Part(HERE, STAYS): 0}
    followers = Followers(HERE, log)  # type: ignore[arg-type]
    follower = followers.add(HOME, Version(1, 1))
    follower.done = {Part(HERE, MOVED): 5, Part(HERE, STAYS): 6}
    return followers, log


@pytest.mark.parametrize("had", [0, 4, 9])
def test_a_follower_needs_nothing_that_is_released_when_a_topic_arrives(had: int) -> None:
    """Released events of the giver do not arrive; the follower's position there counts."""
    followers, log = with_follower()
    carried = CarriedFollower(OTHER, (Elsewhere(GIVER, MOVED, had),))
    followers.expect(carried, MOVED)
    part = Part(GIVER, MOVED)
    arriving = SimpleNamespace(part=part, number=MOVED, needed_position=4)
    rows = [*followers.take_positions(MOVED, [arriving])]
    assert sorted(int(row.key) for row in rows) == [HOME, OTHER]
    done = {home: of_topic[part] for home, of_topic in followers.of(MOVED)}
    assert done == {HOME: 4, OTHER: max(4, had)}
    assert sorted(followers.done_with(arriving)) == sorted(done.values())
    again = Followers(HERE, log)  # type: ignore[arg-type]
    again.recover({FOLLOWERS: {row.key: row.value for row in rows}})
    assert {home: of_topic[part] for home, of_topic in again.of(MOVED)} == done


def test_a_topic_that_moves_away_leaves_nothing_of_its_followers() -> None:
    followers, _ = with_follower()
    follower = followers.get(HOME)
    assert follower is not None
    follower.waits = {Part(HERE, topic): Wanted(HERE, topic, 5, 5, 9) for topic in (MOVED, STAYS)}
    follower.expected = {MOVED: None}
    (row,) = followers.leave(MOVED)
    assert (row.key, row.value) == (str(HOME), [1, 1, [STAYS]])
    assert followers.of(MOVED) == []
    assert [*follower.waits] == [*follower.done] == [Part(HERE, STAYS)]
    assert followers.leave(MOVED) == []


def test_a_topic_that_returns_is_followed_as_a_new_one() -> None:
    followers, _ = with_follower()
    followers.leave(MOVED)
    carried = CarriedFollower(HOME, (Elsewhere(HERE, MOVED, 8), Elsewhere(GIVER, MOVED, 3)))
    followers.expect(carried, MOVED)
    ((home, done),) = followers.of(MOVED)
    assert (home, done) == (HOME, {Part(HERE, MOVED): 8, Part(GIVER, MOVED): 3})
    followers.expect(CarriedFollower(HOME, (Elsewhere(GIVER, MOVED, 1),)), MOVED)
    assert followers.of(MOVED) == [(home, done)], "it follows it already"


def test_a_decommissioned_broker_is_not_awaited_after_a_loss() -> None:
    restatements = Restatements([1, 2])
    restatements.begin(7)
    restatements.drop(1)
    assert restatements.list_awaited() == [2]
    restatements.take(2)
    assert not restatements.are_awaited
