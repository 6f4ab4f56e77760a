"""Safety of a placement against the loss of any single machine or failure domain.

For every machine and failure domain, the placement must leave the protocol able to continue without
all contained brokers. A counter-example is a minimal set of brokers that the protocol cannot lose.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import FailedElements
from pubsubctl.inventory.inventory import Host

if TYPE_CHECKING:
    from brokerd.protocols.registry import RunningProtocol

Kind = Literal["machine", "failure domain"]

# The search gives up after this number of hosts tried for brokers in total.
MOST_ATTEMPTS = 20_000

NO_HOME_LEFT: Final = "no broker is left that may have clients"


@dataclass(frozen=True)
class LossUnit:
    """Hosts that are lost together.

    Attributes:
        kind: the reason for the common loss.
        name: of the machine or failure domain.
        hosts: the inventory's hosts in the unit.
    """

    kind: Kind
    name: str
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        hosts = "" if self.hosts == (self.name,) else f" ({', '.join(self.hosts)})"
        return f"{self.kind} {self.name}{hosts}"


@dataclass(frozen=True)
class CounterExample:
    """A loss that is not tolerated.

    Attributes:
        unit: the lost unit.
        brokers: a minimal set of lost brokers that is too many.
        reason: the reason for which the loss is too large.
    """

    unit: LossUnit
    brokers: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"the loss of {self.unit} takes {'-'.join(self.brokers)}: {self.reason}"


def loss_units(hosts: Iterable[Host]) -> tuple[LossUnit, ...]:
    """Return units of common loss: machines, then failure domains of several machines.

    A logical host of this machine counts as a separate machine, because it stands for a machine.
    """
    machines: dict[str, list[str]] = {}
    domains: dict[str, list[str]] = {}
    for host in hosts:
        machine = host.name if host.connector == "local" else host.machine
        machines.setdefault(machine, []).append(host.name)
        domains.setdefault(host.failure_domain or host.name, []).append(host.name)
    units = []
    for machine, names in machines.items():
        units.append(LossUnit("machine", names[0] if len(names) == 1 else machine, tuple(names)))
    known = {unit.hosts for unit in units}
    for domain, names in domains.items():
        if tuple(names) not in known:
            units.append(LossUnit("failure domain", domain, tuple(names)))
    return tuple(units)


def counter_example(
    tolerance: "RunningProtocol", host_of: Mapping[str, str], units: Sequence[LossUnit]
) -> CounterExample | None:
    """Return a loss that is not tolerated, or None if the placement is safe.

    Args:
        host_of: broker → host.

    Returns:
        A loss in a unit with the fewest hosts, with a minimal set of brokers.
    """
    by_size = sorted(units, key=lambda unit: len(unit.hosts))
    names = tolerance.topology.brokers
    for unit in by_size:
        found = tolerance.excess(FailedElements(brokers_lost_with(unit, tolerance, host_of)))
        if found is not None:
            return CounterExample(unit, tuple(names[each] for each in found.brokers), found.reason)
    homes = tolerance.homes()
    for unit in by_size:
        taken = tuple(names[each] for each in brokers_lost_with(unit, tolerance, host_of))
        if not set(homes) - set(taken):
            return CounterExample(unit, taken, NO_HOME_LEFT)
    return None


def brokers_lost_with(
    unit: LossUnit, tolerance: "RunningProtocol", host_of: Mapping[str, str]
) -> tuple[BrokerNumber, ...]:
    """Return the brokers that are lost with a unit, in ascending order."""
    there = (broker for broker, host in host_of.items() if host in unit.hosts)
    return tuple(sorted(map(tolerance.topology.number_of, there)))


def safe_assignment(
    tolerance: "RunningProtocol", hosts: Sequence[Host], capacity: Mapping[str, int]
) -> dict[str, str] | None:
    """Return broker → host such that every loss is tolerated; None if the search found none.

    The search balances the load: brokers are assigned along the links, from the first on, each to
    the least loaded safe host, with backtracking from dead ends. The first search uses the least
    possible number of brokers per host; later searches use more, up to `capacity`.
    """
    search = _Search(tolerance, hosts, loss_units(hosts))
    present = len(tolerance.topology.present())
    least = -(-present // len(hosts))
    most = max(capacity.values(), default=0)
    bound = least
    while True:
        found = search.run({name: min(bound, room) for name, room in capacity.items()})
        if found is not None:
            return found
        if bound >= most or bound >= present:
            return None
        bound = min(max(bound + 1, bound * 3 // 2), most)


class _Search:
    """A depth-first search over brokers, each after a placed neighbour if possible."""

    def __init__(
        self, tolerance: "RunningProtocol", hosts: Sequence[Host], units: Sequence[LossUnit]
    ) -> None:
        self._tolerance = tolerance
        self._topology = topology = tolerance.topology
        self._homes = frozenset(map(topology.number_of, tolerance.homes()))
        self._hosts = [host.name for host in hosts]
        self._units_of = {
            name: [place for place, unit in enumerate(units) if name in unit.hosts]
            for name in self._hosts
        }
        neighbours = topology.neighbours()
        order: dict[BrokerNumber, None] = {}
        for first in map(topology.number_of, topology.present()):
            if first in order:
                continue
            order[first] = None
            part = [first]
            for broker in part:
                further = [near for near in neighbours[broker] if near not in order]
                order.update(dict.fromkeys(further))
                part += further
        self._order = list(order)
        self._lost: list[dict[BrokerNumber, None]] = [{} for _ in units]
        self._attempts = 0

    def run(self, room: Mapping[str, int]) -> dict[str, str] | None:
        """Run a search in which every host takes at most `room` brokers."""
        left = dict(room)
        chosen: list[str] = []
        untried: list[list[str]] = []
        self._attempts = 0
        for unit in self._lost:
            unit.clear()
        while len(chosen) < len(self._order):
            if len(untried) == len(chosen):
                # The host with the most room is last, because the last is tried first.
                backwards = [name for name in reversed(self._hosts) if left[name]]
                untried.append(sorted(backwards, key=lambda name: left[name]))
            broker = self._order[len(chosen)]
            host = self._next_safe(broker, untried[-1])
            if self._attempts > MOST_ATTEMPTS:
                return None
            if host is not None:
                left[host] -= 1
                chosen.append(host)
                continue
            untried.pop()
            if not chosen:
                return None
            host = chosen.pop()
            left[host] += 1
            for place in self._units_of[host]:
                del self._lost[place][self._order[len(chosen)]]
        names = {
            self._topology.brokers[broker]: host
            for broker, host in zip(self._order, chosen, strict=True)
        }
        return {name: names[name] for name in self._topology.present()}

    def _next_safe(self, broker: BrokerNumber, candidates: list[str]) -> str | None:
        while candidates:
            host = candidates.pop()
            self._attempts += 1
            for unit in self._units_of[host]:
                self._lost[unit][broker] = None
            if all(self._holds(broker, unit) for unit in self._units_of[host]):
                return host
            for unit in self._units_of[host]:
                del self._lost[unit][broker]
        return None

    def _holds(self, broker: BrokerNumber, unit: int) -> bool:
        """Return True if the loss of the unit is tolerated, given that it was without `broker`."""
        lost = self._lost[unit]
        if self._homes <= lost.keys():
            return False
        return self._tolerance.tolerates(FailedElements(tuple(sorted(lost)), latest=broker))
