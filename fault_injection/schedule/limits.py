"""Limits on the failures of a schedule: simultaneous failures, and brokers that never restart.

The limit on simultaneous failures is the schedule's own, or else the protocol's tolerance. A broker
that a schedule ends and never restarts matters to the protocols that wait for such a broker.
"""

from collections import Counter
from collections.abc import Iterable

from brokerd.model.fault_verbs import ENDING_VERBS
from brokerd.overlay.routes import FailedElements
from brokerd.protocols.registry import RunningProtocol
from fault_injection.schedule.schedule import FaultSchedule

Element = frozenset[str]
"""A broker, or the two ends of a link."""


def find_failed_elements(elements: Iterable[Element]) -> list[Element]:
    """Return the elements that fail, without duplicates and without links of failed brokers."""
    whole = dict.fromkeys(elements)
    return [each for each in whole if not any(each > other for other in whole)]


class FaultGuard:
    """A limit on simultaneous failures.

    Args:
        limit: greatest number of failed brokers and links, whatever the protocol tolerates.
    """

    def __init__(self, running: RunningProtocol, limit: int | None = None) -> None:
        self._running = running
        self._limit = running.fault_bound if limit is None else limit

    def exceeds(self, elements: Iterable[Element]) -> bool:
        """Return True if the elements are too many. A larger set then exceeds the limit, too."""
        together = find_failed_elements(elements)
        if self._limit is not None:
            return len(together) > self._limit
        return not self._running.tolerates(self._count_lost(together))

    def explain(self, elements: Iterable[Element]) -> str:
        """Return the reason why the elements are too many, in words for the user."""
        if self._limit is not None:
            return f"at most {self._limit} may"
        found = self._running.excess(self._count_lost(find_failed_elements(elements)))
        assert found is not None, "these are not too many"
        names = ", ".join(self._running.topology.brokers[number] for number in found.brokers)
        return f"without {names}, {found.reason}" if names else found.reason

    def _count_lost(self, together: Iterable[Element]) -> FailedElements:
        number_of = self._running.topology.number_of
        numbers = [sorted(map(number_of, each)) for each in together]
        return FailedElements(
            tuple(sorted(number for number, *other in numbers if not other)),
            tuple((a, b) for a, b in (each for each in numbers if len(each) == 2)),
        )


def find_permanently_ended(schedule: FaultSchedule) -> tuple[str, ...]:
    """Return the brokers that are ended more often than started, in the order of the steps."""
    ended = Counter(step.on for step in schedule.steps if step.do in ENDING_VERBS)
    started = Counter(step.on for step in schedule.steps if step.do == "restart")
    return tuple(name for name, times in ended.items() if times > started[name])


def waits_for_ever(schedule: FaultSchedule, running: RunningProtocol) -> str:
    """Return the reason why a promise of the protocol fails, for want of an ended broker.

    Return "" if the protocol continues without the ended brokers, or promises no exactly-once
    delivery.
    """
    ended = find_permanently_ended(schedule)
    if not ended or not running.promises().exactly_once:
        return ""
    topology = running.topology
    found = running.excess(FailedElements(tuple(sorted(map(topology.number_of, ended))), ()))
    if found is None:
        return ""
    names = " and ".join(topology.brokers[number] for number in found.brokers)
    return f"{names} never {'comes' if len(found.brokers) == 1 else 'come'} back; {found.reason}"
