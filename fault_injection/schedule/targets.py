"""Targets of a fault, and checks that two brokers can be separated.

A target is a broker, a link, one direction of a link, sets of brokers, a machine or a client. The
checks find whether nftables can separate two brokers without an effect on a third broker.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from brokerd.model.fault_verbs import CLIENT_VERBS, MACHINE_VERBS, SET_VERBS, VERB_TABLE
from brokerd.overlay.topology import Topology, nearest

Machines = Mapping[str, Collection[str]]
"""The brokers on each machine."""


Role = Literal["publisher", "subscriber", "own-process subscriber"]
Clients = Mapping[str, Role]
"""Kinds of the clients of a load, by name."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target: broker ("b1"), link ("b1-s1"), direction ("b1->s1"), sets ("b1,s1|b2"), or other.

    The other targets are a machine ("n03") and a client of the load ("b1-sub-1").

    Attributes:
        brokers: the broker, both ends of the link (of a direction: from, to), the brokers of all
            sets, or the present brokers on the machine.
        one_way: True for only the direction from the first to the second broker.
        sets: sets of brokers that are kept from each other; a single set is kept from all others.
        machine: name of the machine.
        client: name of the client.
        elements: brokers and links of the topology that fail; every element is one failure.
    """

    brokers: tuple[str, ...]
    one_way: bool = False
    sets: tuple[tuple[str, ...], ...] = ()
    machine: str = ""
    client: str = ""
    elements: frozenset[frozenset[str]] = field(default=frozenset(), compare=False)

    @property
    def is_link(self) -> bool:
        return len(self.brokers) == 2 and not self.sets and not self.machine

    @property
    def element(self) -> frozenset[str]:
        """The element that fails: both directions of a link are one link."""
        return frozenset(self.brokers)

    def failed(self) -> frozenset[frozenset[str]]:
        """Return the brokers and links that fail, each counted as one failure."""
        return self.elements or frozenset({self.element})

    def separated_from(self, broker: str, around: Collection[str]) -> tuple[str, ...]:
        """Return the brokers of `around` that a partition keeps from this broker, in order."""
        own = next((one for one in self.sets if broker in one), ())
        if len(self.sets) == 1:
            inside = broker in self.sets[0]
            return tuple(name for name in around if (name in self.sets[0]) != inside)
        if not own:
            return ()  # a broker in no set reaches all brokers
        return tuple(name for name in around if name in self.brokers and name not in own)

    def __str__(self) -> str:
        if self.machine or self.client:
            return self.machine or self.client
        if self.sets:
            return "|".join(",".join(one) for one in self.sets)
        return ("->" if self.one_way else "-").join(self.brokers)


def explain_unsimulated(verb: str, target: Target) -> str:
    """Return the reason why the simulator cannot strike a target; "" if the simulator can."""
    strikes = VERB_TABLE[verb].simulated_on
    if not strikes:
        return "needs real processes"
    kind = "direction" if target.one_way else "link" if target.is_link else "broker"
    if kind in strikes:
        return ""
    return f"needs real processes: simulated is {verb} on a {' or '.join(strikes)}, not on {kind}s"


def read_target(
    text: str, topology: Topology, verb: str = "", machines: Machines | None = None
) -> Target:
    """Return the target that `text` names, for this verb.

    Without `machines` every machine is assumed to exist, without brokers. Clients are assumed to
    exist; `lint` checks their names.

    Raises:
        ValueError: no such broker, link or machine; names the nearest, or the existing links.
    """
    if verb in CLIENT_VERBS:
        return Target((), client=text)
    if verb in MACHINE_VERBS:
        return _machine(text, topology, machines)
    if verb in SET_VERBS:
        return _sets(text, topology)
    if text in topology.brokers:
        return Target((text,))
    pairs = possible_pairs(text)
    for a, b in pairs:
        if a in topology.brokers and b in topology.brokers:
            return _link(a, b, "->" in text, topology)
    for a, b in pairs:
        for name in (a, b):
            _check_broker(name, topology)
    raise ValueError(f"no broker called {text!r}{nearest(text, topology.brokers)}")


def possible_pairs(text: str) -> list[tuple[str, str]]:
    """Return the possible ends of a link `text`; several pairs if names contain a "-"."""
    if "->" in text:
        a, _, b = text.partition("->")
        return [(a.strip(), b.strip())]
    places = [place for place, letter in enumerate(text) if letter == "-"]
    return [(text[:place], text[place + 1 :]) for place in places]


def is_same_target(one: str, other: str) -> bool:
    """Return True if two texts name the same broker or link, in either order of a link's ends."""
    if one == other:
        return True
    if "->" in one or "->" in other:
        return False
    return any((b, a) in possible_pairs(other) for a, b in possible_pairs(one))


def _link(a: str, b: str, one_way: bool, topology: Topology) -> Target:
    links = [(topology.brokers[x], topology.brokers[y]) for x, y in topology.links]
    if (a, b) in links or (b, a) in links:
        return Target((a, b), one_way)
    own = [f"{x}-{y}" for x, y in links if a in (x, y) or b in (x, y)]
    raise ValueError(f"{a}-{b} is no link of {topology.name}; there are {', '.join(own)}")


def _sets(text: str, topology: Topology) -> Target:
    sets = tuple(tuple(name.strip() for name in part.split(",")) for part in text.split("|"))
    seen: set[str] = set()
    for name in (name for one in sets for name in one):
        if not name:
            raise ValueError('sets are written as "b1,s1|b2,s2": brokers by ",", sets by "|"')
        _check_broker(name, topology)
        if name in seen:
            raise ValueError(f"{name} is in two sets")
        seen.add(name)
    if len(sets) == 1 and len(seen) == len(topology.brokers):
        raise ValueError(
            "the set has every broker; name a smaller one to separate it from the others"
        )
    target = Target(tuple(name for one in sets for name in one), sets=sets)
    names = topology.brokers
    across = {
        frozenset({names[x], names[y]})
        for x, y in topology.links
        if names[y] in target.separated_from(names[x], names)
    }
    return Target(target.brokers, sets=sets, elements=frozenset(across))


def _machine(text: str, topology: Topology, machines: Machines | None) -> Target:
    if machines is None:
        return Target((), machine=text)
    if text not in machines:
        on = [name for name, brokers in machines.items() if text in brokers]
        hint = f"; it is a broker on {on[0]}" if on else nearest(text, sorted(machines))
        raise ValueError(f"no machine called {text!r}{hint}")
    brokers = tuple(name for name in topology.brokers if name in machines[text])
    if not brokers:
        raise ValueError(f"no broker is on {text}")
    return Target(brokers, machine=text, elements=frozenset(frozenset({name}) for name in brokers))


def _check_broker(name: str, topology: Topology) -> None:
    if name not in topology.brokers:
        raise ValueError(f"no broker called {name!r}{nearest(name, topology.brokers)}")


Around = Callable[[str], Collection[str]]
"""A function that returns the brokers with possible sessions to a broker."""


def list_separated_pairs(target: Target, around: Around) -> list[tuple[str, str]]:
    """Return the pairs of brokers that a blackhole, cut or partition of this target separates."""
    if target.is_link:
        a, b = target.brokers
        return [(a, b)]
    return [
        (broker, other)
        for broker in target.brokers
        for other in (
            target.separated_from(broker, around(broker)) if target.sets else around(broker)
        )
    ]


def check_nft_can_separate(
    pairs: Iterable[tuple[str, str]],
    addresses: Mapping[str, str],
    around: Around,
) -> None:
    """Check that rules by address and port separate exactly these pairs.

    A connection shows the port of the dialled broker, but only the address of the dialling broker.
    So all brokers with the same address must be separated alike.

    Args:
        addresses: "address:port" of every broker.

    Raises:
        ValueError: rules cannot distinguish two brokers; names both.
    """
    parted = {frozenset(pair) for pair in pairs}
    for a, b in sorted(tuple(sorted(pair)) for pair in parted):
        for one, other in ((a, b), (b, a)):
            for third, address in addresses.items():
                same = third != one and _host_of(address) == _host_of(addresses[one])
                if not same or third == other or other not in around(third):
                    continue
                if frozenset({third, other}) not in parted:
                    raise ValueError(
                        f"nft cannot separate {third} from {one}: both have the address "
                        f'{_host_of(address)}; use backend = "broker"'
                    )


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
