"""Control commands for faults of one broker's links.

A fault is in force until a command heals it or its lease expires. The counters of healed faults
are kept for later requests.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from brokerd.config import BrokerConfig
from brokerd.errors import ControlError
from brokerd.runtime.command_arguments import find_peer, find_peers, take_arguments
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.control import Handler
from brokerd.runtime.event_log import EventLog
from brokerd.runtime.links import Links
from brokerd.sessions.link_faults import LinkFault, read_fault
from brokerd.sessions.session import SelfDescription
from brokerd.units import MILLISECOND_NS

HEALED_KEPT: Final = 1_000
MAXIMUM_LEASE_MS: Final = 24 * 3_600_000


class FaultCommands:
    """The fault commands of one broker.

    Attributes:
        publish_event: publishes an event to all listeners on the control socket.
    """

    def __init__(
        self, config: BrokerConfig, links: Links, log: EventLog, own: SelfDescription
    ) -> None:
        self.publish_event: Callable[[str, Mapping[str, Any]], None] = lambda _name, _details: None
        self._config = config
        self._links = links
        self._log = log
        self._own = own
        self._healed: dict[str, LinkFault] = {}

    def handlers(self) -> dict[str, Handler]:
        return {
            "fault_apply": self._apply,
            "fault_heal": self._heal_by_command,
            "fault_renew": self._renew,
            "fault_counters": self._counters,
        }

    def expire(self, fault_id: str) -> None:
        """Heal a fault with an expired lease."""
        self._heal(fault_id, by="lease")

    async def _apply(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._check_permission()
        fault_id, verb, peer, direction, lease_ms, parameters = take_arguments(
            arguments,
            fault_id=str,
            verb=str,
            peer=(str, ""),
            direction=(str, "both"),
            lease_ms=(int, 0),
            parameters=(dict, {}),
        )
        others = find_peers(self._own, parameters.pop("peers", []))
        fault = read_fault(
            *(fault_id, verb, find_peer(self._own, peer), direction, parameters),
            *(_end_of_lease(lease_ms), others),
        )
        self._links.faults.apply(fault)
        self._links.faults_changed()
        now_ns = time.monotonic_ns()
        self._log.record(
            "fault_applied",
            {"fault_id": fault_id, "verb": verb, "peer": peer, "direction": direction},
        )
        return {"t_applied_ns": now_ns}

    async def _heal_by_command(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._check_permission()
        (fault_id,) = take_arguments(arguments, fault_id=str)
        fault = self._heal(fault_id, by="command")
        known = fault or self._healed.get(fault_id)
        return {
            "t_healed_ns": time.monotonic_ns(),
            "healed": fault is not None,
            "counters": dict(known.counters) if known else {},
        }

    async def _renew(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._check_permission()
        fault_id, lease_ms = take_arguments(arguments, fault_id=str, lease_ms=int)
        if not self._links.faults.renew(fault_id, _end_of_lease(lease_ms)):
            raise ControlError("user", f"no fault {fault_id[:100]!r} is in force")
        return {"t_ns": time.monotonic_ns()}

    async def _counters(self, arguments: dict[str, Any]) -> dict[str, Any]:
        take_arguments(arguments)
        active = {fault.fault_id: {**fault.counters} for fault in self._links.faults}
        for fault_id, counters in active.items():
            if counters["absorbed_messages"]:
                # The second witness of what was absorbed, also where the broker is killed.
                self._log.record("fault_counted", {"fault_id": fault_id, **counters})
        return {**{each: {**fault.counters} for each, fault in self._healed.items()}, **active}

    def _heal(self, fault_id: str, by: str) -> LinkFault | None:
        fault = self._links.faults.heal(fault_id)
        if fault is None:
            return None
        self._links.faults_changed()
        self._healed[fault_id] = fault
        if len(self._healed) > HEALED_KEPT:
            del self._healed[next(iter(self._healed))]
        details = {"fault_id": fault_id, "verb": fault.verb, "by": by, **fault.counters}
        self._log.record("fault_healed", details)
        self.publish_event("fault_healed", {**details, "t_ns": time.monotonic_ns()})
        return fault

    def _check_permission(self) -> None:
        if not self._config.fault_injection:
            raise ControlError("user", f"{self._own.name} was started with fault_injection = false")


def _end_of_lease(lease_ms: int) -> int | None:
    if not 0 <= lease_ms <= MAXIMUM_LEASE_MS:
        raise ControlError("user", f"lease_ms = {lease_ms}; 0 (none) to {MAXIMUM_LEASE_MS}")
    return clock_ns() + lease_ms * MILLISECOND_NS if lease_ms else None
