"""Whether a placement survives the loss of any one machine or failure domain.

The delta tree goes on when no more than delta consecutive brokers of a primary path are gone at
once. So the question is, per machine and per failure domain: among the brokers it holds, how many
lie side by side on a path? Those are paths in the forest that its brokers span within the tree;
the longest such path decides. A counter-example is always a path of delta + 1 brokers: nothing
shorter breaks the promise.

Paper: [DFT11] §II ("δ-fault-tolerance").
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.chains import farthest_lost, longest_lost
from brokerd.overlay.topology import Topology
from pubsubctl.inventory.inventory import Host

Kind = Literal["machine", "failure domain"]

# So many hosts are tried for brokers, in all, before the search gives up.
MOST_ATTEMPTS = 20_000


@dataclass(frozen=True)
class LossUnit:
    """What is lost together.

    Attributes:
        kind: why it is lost together.
        name: of the machine or failure domain.
        hosts: the inventory's hosts in it.
    """

    kind: Kind
    name: str
    hosts: tuple[str, ...]

    def __str__(self) -> str:
        hosts = "" if self.hosts == (self.name,) else f" ({', '.join(self.hosts)})"
        return f"{self.kind} {self.name}{hosts}"


@dataclass(frozen=True)
class CounterExample:
    """One loss that delta does not cover.

    Attributes:
        unit: what is lost.
        path: consecutive brokers of a primary path that are gone then: delta + 1 of them.
        delta: how many may be gone.
    """

    unit: LossUnit
    path: tuple[str, ...]
    delta: int

    def __str__(self) -> str:
        return (
            f"the loss of {self.unit} takes {'-'.join(self.path)}: {len(self.path)} consecutive "
            f"brokers of a primary path, and delta is {self.delta}"
        )


def loss_units(hosts: Iterable[Host]) -> tuple[LossUnit, ...]:
    """What can be lost together: machines, then failure domains that are more than one machine.

    A logical host of this machine counts as a machine of its own: that is what it stands for.
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
    topology: Topology, host_of: Mapping[str, str], units: Sequence[LossUnit]
) -> CounterExample | None:
    """A loss that removes more than delta consecutive brokers, or None: the placement is safe.

    Args:
        host_of: broker → host.

    Returns:
        The smallest: no loss with fewer brokers in a row breaks the promise, and of those it is
        in the unit with the fewest hosts.
    """
    for unit in sorted(units, key=lambda unit: len(unit.hosts)):
        lost = [
            topology.brokers.index(broker) for broker, host in host_of.items() if host in unit.hosts
        ]
        path = longest_lost(topology, lost)
        if len(path) > topology.delta:
            names = tuple(topology.brokers[number] for number in path[: topology.delta + 1])
            return CounterExample(unit, names, topology.delta)
    return None


def safe_assignment(
    topology: Topology, hosts: Sequence[Host], capacity: Mapping[str, int]
) -> dict[str, str] | None:
    """Broker → host such that no loss removes more than delta consecutive brokers; None if found
    none.

    Loads differ as little as the search manages: brokers are dealt from a middle of the tree
    outwards, each to the least loaded host that is safe, and taken back where that leads nowhere.
    First with as few brokers per host as there must be; then with more, up to `capacity`.
    """
    search = _Search(topology, hosts, loss_units(hosts))
    present = len(topology.present())
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
    """Depth first over brokers in an order in which each but the first has a placed neighbour."""

    def __init__(
        self, topology: Topology, hosts: Sequence[Host], units: Sequence[LossUnit]
    ) -> None:
        self._topology = topology
        self._neighbours = topology.neighbours()
        self._hosts = [host.name for host in hosts]
        self._units_of = {
            name: [place for place, unit in enumerate(units) if name in unit.hosts]
            for name in self._hosts
        }
        first = topology.brokers.index(topology.present()[0])
        self._order = [first]
        seen = {first}
        for broker in self._order:
            self._order += [near for near in self._neighbours[broker] if near not in seen]
            seen.update(self._neighbours[broker])
        self._lost: list[dict[BrokerNumber, None]] = [{} for _ in units]
        self._attempts = 0

    def run(self, room: Mapping[str, int]) -> dict[str, str] | None:
        """One search; every host takes at most `room` brokers."""
        left = dict(room)
        chosen: list[str] = []
        untried: list[list[str]] = []
        self._attempts = 0
        for unit in self._lost:
            unit.clear()
        while len(chosen) < len(self._order):
            if len(untried) == len(chosen):
                # The one with the most room is last: tried first.
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
        """Whether no path through the brokers around `broker` in the unit is too long."""
        gone = self._lost[unit]
        end = list(farthest_lost(broker, gone, self._neighbours))[-1]
        path = list(farthest_lost(end, gone, self._neighbours).values())[-1]
        return len(path) <= self._topology.delta
