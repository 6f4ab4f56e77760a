"""Faults, and the backends that apply, observe and undo faults for the injector."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from brokerd.protocols.registry import RunningProtocol
from fault_injection.schedule.targets import Machines, Target

Evidence = dict[str, Any]
"""JSON-ready evidence of a stage.

`t_ns`, if present, is the time of the stage by the injector's clock; `host_stamps` is the same time
by the clocks of the observing hosts.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, as requested from a backend.

    Attributes:
        fault_id: unique at every target.
        verb: a name of the table of verbs in `brokerd.model.fault_verbs`.
        signal: signal of a kill.
        parameters: parameters of the verb, in the form for agents and brokers.
    """

    fault_id: str
    verb: str
    target: Target
    signal: str = "KILL"
    parameters: Mapping[str, int | str] = field(default_factory=dict)


class FaultBackend(Protocol):
    """An interface to apply and observe faults: agents and brokers, or a simulated cluster.

    Every method may raise ControlError. A `verify_` method returns evidence, or None while there is
    none, and raises MissingEffect once there can be none. The injector calls it repeatedly.
    """

    @property
    def running(self) -> RunningProtocol:
        """The brokers and links, with the protocol that runs."""
        ...

    @property
    def machines(self) -> Machines | None:
        """The brokers on each machine; None without machines."""
        ...

    async def apply(self, fault: Fault, lease_ns: int) -> Evidence:
        """Apply a fault, which ends by itself after `lease_ns` unless the lease is renewed."""
        ...

    async def verify_effect(self, fault: Fault) -> Evidence | None:
        """Return evidence of the effect, or None."""
        ...

    async def renew(self, fault: Fault, lease_ns: int) -> None:
        """Renew the lease of a fault: `lease_ns` from now."""
        ...

    async def undo(self, fault: Fault) -> Evidence:
        """Undo a fault. A fault that is already undone remains so."""
        ...

    async def verify_undone(self, fault: Fault) -> Evidence | None:
        """Return evidence that the fault is undone; None while its effect is still observable."""
        ...

    async def verify_recovered(self, fault: Fault) -> Evidence | None:
        """Return evidence that all targets of the fault work again; None while one does not."""
        ...


class MissingEffect(Exception):
    """A step without its effect; a backend raises it once the effect has become impossible."""
