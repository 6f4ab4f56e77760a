"""A unit missing at several checks in a row is declared lost; a return resets the count."""

import pytest

from brokerd.protocols.ges.membership import LOOKS, MOST_LOOKS, FailureDetection

UNIT, OTHER = (1,), (2,)
BROKER = 7


class Looking:
    """A broker that looks for two units, and for a broker of its own unit."""

    def __init__(self) -> None:
        self.missing: set[tuple[int, ...]] = set()
        self.unknown: list[int] = []
        self.spoken_for: list[object] = []
        self.detection = FailureDetection()

    def looks(self, count: int) -> list[object]:
        """Return the units that are declared lost during `count` checks."""
        self.spoken_for.clear()
        for _ in range(count):
            self.spoken_for += self.detection.look(sorted(self.missing))
            self.spoken_for += self.detection.find_unknown(self.unknown)
            is_waiting = bool(self.missing or self.unknown) and not self.spoken_for
            assert self.detection.is_counting or not is_waiting
        return [*self.spoken_for]


@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_unit_is_spoken_for_after_so_many_looks_in_a_row(times: int) -> None:
    looking = Looking()
    for _ in range(times):
        looking.missing = {UNIT}
        assert looking.looks(LOOKS) == []
        looking.missing = set()
        assert looking.looks(1) == []
        looking.missing = {UNIT}
        assert looking.looks(LOOKS) == []
        assert looking.looks(1) == [UNIT]
        looking.missing = set()
        assert looking.looks(1) == []
    assert looking.detection.spoken_for == times


def test_a_restart_clears_the_missing_positions() -> None:
    looking = Looking()
    looking.missing = {UNIT, OTHER}
    assert looking.looks(LOOKS) == []
    looking.detection.restart()
    assert looking.looks(LOOKS) == []
    assert looking.looks(1) == [UNIT, OTHER]


def test_a_broker_that_refutes_it_is_waited_for_twice_as_long_up_to_a_limit() -> None:
    looking = Looking()
    patience = LOOKS
    for _ in range(12):
        looking.unknown = [BROKER]
        assert looking.looks(patience) == []
        assert looking.looks(1) == [BROKER]
        looking.unknown = []
        assert looking.looks(1) == []
        patience = min(2 * patience, MOST_LOOKS)
    assert patience == MOST_LOOKS
