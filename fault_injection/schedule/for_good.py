"""Brokers that a schedule ends and never restarts, and protocols that wait for such a broker."""

from collections import Counter

from brokerd.model.fault_verbs import ENDING_VERBS
from brokerd.overlay.routes import Lost
from brokerd.protocols.registry import RunningProtocol
from fault_injection.schedule.schedule import FaultSchedule


def ended_for_good(schedule: FaultSchedule) -> tuple[str, ...]:
    """Return the brokers that are ended more often than started, in the order of the steps."""
    ended = Counter(step.on for step in schedule.steps if step.do in ENDING_VERBS)
    started = Counter(step.on for step in schedule.steps if step.do == "restart")
    return tuple(name for name, times in ended.items() if times > started[name])


def waits_for_ever(schedule: FaultSchedule, running: RunningProtocol) -> str:
    """Return the reason why a promise of the protocol fails, for want of an ended broker.

    Return "" if the protocol continues without the ended brokers, or promises no exactly-once
    delivery.
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
