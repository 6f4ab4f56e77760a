"""Stories of assignments of topics that overtake each other on their way to the disk of a server.

An arbiter sends its assignments over all proxies, so a repetition of an earlier assignment may
arrive behind a later one.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pytest

from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.assignments import Assignments
from brokerd.protocols.multi_proxy.messages import Assign, Generation
from brokerd.protocols.multi_proxy.state import ASSIGNED

ARBITER, SERVER = 0, 3


class HeldDisk:
    """A disk whose commits wait until `settle`, in order.

    Attributes:
        written: all values of each row, in order.
    """

    def __init__(self) -> None:
        self.written: dict[str, list[Any]] = {}
        self._waiting: list[tuple[tuple[Change, ...], Callable[[], None]]] = []

    def commit(self, changes: Iterable[Change], then: Callable[[], None]) -> None:
        self._waiting.append((tuple(changes), then))

    def settle(self, commits: int | None = None) -> None:
        for changes, then in self._waiting[:commits]:
            for change in changes:
                assert change.table == ASSIGNED
                self.written.setdefault(change.key, []).append(change.value)
            then()
        del self._waiting[:commits]


def server(disk: HeldDisk) -> Assignments:
    anything: Any = disk
    return Assignments(SERVER, anything, 9, ())


def take(found: Assignments, *rows: tuple[int, int]) -> list[tuple[Generation, ...]]:
    answers: list[tuple[Generation, ...]] = []
    generations = tuple(Generation(*row) for row in rows)
    found.take(ARBITER, Assign(SERVER, ARBITER, generations), answers.append)
    return answers


def test_a_later_assignment_stays_though_an_earlier_one_arrives_behind_it() -> None:
    disk = HeldDisk()
    found = server(disk)
    later, earlier = take(found, (7, 3)), take(found, (7, 2))
    assert (later, earlier, found.owns(7)) == ([], [], False), "nothing is on disk yet"
    disk.settle()
    assert found.generation(7) == 3
    assert disk.written["7"][-1] == 3
    assert (later, earlier) == ([(Generation(7, 3),)], [(Generation(7, 2),)])
    take(found, (7, 3))
    disk.settle()
    assert disk.written["7"] == [3], "it is there already"


def test_a_topic_that_is_adopted_keeps_the_assignment_on_its_way() -> None:
    disk = HeldDisk()
    found = server(disk)
    found.begin(1)
    take(found, (7, 3))
    assert found.adopts(7)
    disk.settle()
    assert (found.generation(7), disk.written["7"][-1]) == (3, 3)
    assert found.adopts(8)
    assert not found.adopts(9), "there is no such topic"
    disk.settle()
    assert (found.generation(8), disk.written["8"]) == (1, [1])


def test_a_query_is_answered_with_the_generation_on_disk() -> None:
    disk = HeldDisk()
    found = server(disk)
    take(found, (4, 2))
    asked = take(found, (4, 0), (5, 0))
    disk.settle()
    assert asked == [(Generation(4, 2), Generation(5, 0))]


@pytest.mark.parametrize("seed", range(20))
def test_no_row_decreases_in_any_order_of_assignments(seed: int) -> None:
    random, disk = Random(seed), HeldDisk()
    found = server(disk)
    found.begin(1)
    highest: dict[int, int] = {}
    for _ in range(30):
        topic, number = random.randrange(3), random.randrange(1, 9)
        match random.randrange(4):
            case 0:
                disk.settle(random.randrange(3))
            case 1 if not found.owns(topic):
                found.adopts(topic)
                highest[topic] = max(1, highest.get(topic, 0))
            case _:
                take(found, (topic, number))
                highest[topic] = max(number, highest.get(topic, 0))
    disk.settle()
    assert {topic: found.generation(topic) for topic in highest} == highest
    for rows in disk.written.values():
        assert rows == sorted(rows)
