"""Brokers that a schedule ends and never starts again, and who does not go on without them."""

from collections import Counter

from brokerd.overlay.routes import Lost
from brokerd.protocols.registry import RunningProtocol
from fault_injection.schedule.schedule import FaultSchedule
from fault_injection.schedule.verbs import ENDING_VERBS


def ended_for_good(schedule: FaultSchedule) -> tuple[str, ...]:
    """The brokers that are ended more often than started, in the order of the steps."""
    ended = Counter(step.on for step in schedule.steps if step.do in ENDING_VERBS)
    started = Counter(step.on for step in schedule.steps if step.do == "restart")
    return tuple(name for name, times in ended.items() if times > started[name])


def waits_for_ever(schedule: FaultSchedule, running: RunningProtocol) -> str:
    """Why what the protocol promises does not come, because a broker never comes back.

    "" where it goes on without these, or promises nothing anyway.
    """
    gone = ended_for_good(schedule)
    if not gone or not running.promises().exactly_once:
        return ""
    topology = running.topology
    found = running.excess(Lost(tuple(sorted(map(topology.number_of, gone))), ()))
    if found is None:
        return ""
    names = " and ".join(topology.brokers[number] for number in found.brokers)
    return f"{names} never {'comes' if len(found.brokers) == 1 else 'come'} back; {found.reason}"
