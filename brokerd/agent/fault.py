"""Faults on one machine: their definition, their verbs, and their checks."""

import signal
import time
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from brokerd.agent.nft import Separation
from brokerd.agent.processes import ProcessIdentity
from brokerd.agent.supervisor import parse_signal
from brokerd.errors import ControlError
from brokerd.model.fault_verbs import (
    AGENT_VERBS,
    BROKER_VERBS,
    DAMAGES,
    LASTING_VERBS,
    LINK_VERBS,
    SEVERING_VERBS,
    STOPPING_VERBS,
    VERB_TABLE,
)
from brokerd.overlay.topology import nearest

DIRECTIONS: Final = ("both", "out", "in")
BACKENDS: Final = ("broker", "nft")
MINIMUM_LEASE_MS: Final = 100

_NFT_PARAMETERS: Final = ("backend", "own", "peers", "protect", "mode")


@dataclass(slots=True, eq=False)
class Fault:
    """One fault, in any state.

    Attributes:
        fault_id: assigned by the injecting client.
        process, peer, direction: target; peer is "" unless the target is a link of the process.
        deadline_ns: end of the lease; None for a fault that is complete once applied.
        state: requested, applied, healed (also after the end of the process), or failed.
        result: outcome of the application: stamps and evidence.
    """

    fault_id: str
    verb: str
    process: str
    peer: str = ""
    direction: str = "both"
    parameters: dict[str, Any] = field(default_factory=dict)
    lease_ms: int = 0
    deadline_ns: int | None = None
    state: str = "requested"
    applied_ns: int | None = None
    healed_ns: int | None = None
    healed_by: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    watchdog: ProcessIdentity | None = None
    changing: trio.Lock = field(default_factory=trio.Lock)

    @property
    def is_active(self) -> bool:
        return self.verb in LASTING_VERBS and self.state in ("requested", "applied")

    @property
    def uses_nft(self) -> bool:
        return self.parameters.get("backend") == "nft"

    @property
    def is_of_broker(self) -> bool:
        """Return True if the broker itself applies the fault, and heals it by its clock."""
        return self.verb in BROKER_VERBS and not self.uses_nft

    @property
    def dies_with_process(self) -> bool:
        """Return True if the fault has no effect once its process has ended."""
        return self.is_of_broker or self.verb in STOPPING_VERBS

    def definition(self) -> dict[str, Any]:
        return {
            "fault_id": self.fault_id,
            "verb": self.verb,
            "process": self.process,
            "peer": self.peer,
            "direction": self.direction,
            "parameters": self.parameters,
        }

    def to_row(self) -> dict[str, Any]:
        """Return the entry of the agent's `status`, also the answer to fault commands."""
        left_ns = None if self.deadline_ns is None else self.deadline_ns - time.monotonic_ns()
        return {
            **self.definition(),
            "state": self.state,
            "lease_left_ms": left_ns // 1_000_000 if left_ns and self.is_active else None,
            "t_applied_ns": self.applied_ns,
            "t_healed_ns": self.healed_ns,
            "healed_by": self.healed_by,
            "result": self.result,
        }

    def check(self) -> None:
        """Check everything that does not depend on a process.

        Raises:
            ControlError: `user`: names the invalid value, and the nearest valid one.
        """
        where = f"fault {self.fault_id}"
        if not self.fault_id or len(self.fault_id) > 200:
            raise ControlError("user", f"fault_id = {self.fault_id[:40]!r} cannot be an id")
        if self.verb not in AGENT_VERBS:
            raise ControlError(
                "user", f"{where}: no verb {self.verb[:40]!r}{nearest(self.verb, AGENT_VERBS)}"
            )
        if self.direction not in DIRECTIONS:
            known = nearest(self.direction, DIRECTIONS)
            raise ControlError("user", f"{where}: direction = {self.direction[:40]!r}{known}")
        if self.peer and self.verb not in LINK_VERBS:
            raise ControlError("user", f"{where}: {self.verb} is for processes, not for links")
        if self.verb in LASTING_VERBS:
            check_lease(self.fault_id, self.lease_ms)
        self._check_parameters(where)
        if VERB_TABLE[self.verb].signal:
            self.end_signal()

    def _check_parameters(self, where: str) -> None:
        backend = self.parameters.get("backend", BACKENDS[0])
        if backend not in BACKENDS:
            known = nearest(backend, BACKENDS)
            raise ControlError("user", f"{where}: backend = {str(backend)[:40]!r}{known}")
        known_parameters: tuple[str, ...] = VERB_TABLE[self.verb].agent_parameters
        if self.uses_nft:
            if self.verb not in SEVERING_VERBS:
                text = f"{self.verb} is not done by nft; it does {', '.join(SEVERING_VERBS)}"
                raise ControlError("user", f"{where}: {text}")
            known_parameters = _NFT_PARAMETERS
            Separation.read(self.verb, self.direction, self.parameters)
        for key in self.parameters:
            if key not in known_parameters:
                hint = nearest(key, known_parameters) if known_parameters else ""
                raise ControlError(
                    "user", f"{where}: {self.verb} takes no parameter {key[:40]!r}{hint}"
                )
        damage = self.parameters.get("damage", DAMAGES[0])
        if damage not in DAMAGES:
            known = nearest(damage, DAMAGES)
            raise ControlError("user", f"{where}: damage = {str(damage)[:40]!r}{known}")
        if not isinstance(self.parameters.get("file", ""), str):
            text = f"file = {self.parameters['file']!r} is no text"
            raise ControlError("user", f"{where}: {text}")
        number = VERB_TABLE[self.verb].number
        if number is not None and not self.is_of_broker:  # a broker checks its own numbers
            value = self.parameters.get(number.name)
            if type(value) is not int or not number.lowest <= value <= number.highest:
                raise ControlError(
                    "user",
                    f"{where}: {number.name} = {value!r}; from {number.lowest} to {number.highest}",
                )

    def end_signal(self) -> signal.Signals:
        """Return the signal by which this fault ends the process.

        Raises:
            ControlError: `user`: the signal of a kill does not kill.
        """
        name = VERB_TABLE[self.verb].signal
        assert name, f"{self.verb} ends no process"
        number = parse_signal(self.parameters.get("signal", name))
        if number not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            raise ControlError("user", f"fault {self.fault_id}: {number.name} does not kill")
        return number


def check_lease(fault_id: str, lease_ms: object) -> None:
    """Check that a fault can have this lease; raise ControlError (`user`) if not."""
    if type(lease_ms) is not int or lease_ms < MINIMUM_LEASE_MS:
        raise ControlError(
            "user", f"fault {fault_id}: lease_ms = {lease_ms!r}; at least {MINIMUM_LEASE_MS}"
        )
