"""What a fault is done to: a broker, a link of the topology, or one direction of it."""

from dataclasses import dataclass

from brokerd.overlay.topology import Topology, nearest


@dataclass(frozen=True, slots=True)
class Target:
    """A broker ("b1"), a link ("b1-s1") or one direction of it ("b1->s1").

    Attributes:
        brokers: the broker, or the link's two ends (of one direction: from, to).
        one_way: whether only what goes from the first to the second is meant.
    """

    brokers: tuple[str, ...]
    one_way: bool = False

    @property
    def is_link(self) -> bool:
        return len(self.brokers) == 2

    @property
    def element(self) -> frozenset[str]:
        """What fails as one: both directions of a link are one link."""
        return frozenset(self.brokers)

    def __str__(self) -> str:
        return ("->" if self.one_way else "-").join(self.brokers)


def read_target(text: str, topology: Topology) -> Target:
    """The target that `text` names.

    Raises:
        ValueError: no such broker or link; names the nearest, or the links there are.
    """
    if text in topology.brokers:
        return Target((text,))
    pairs = possible_pairs(text)
    for a, b in pairs:
        if a in topology.brokers and b in topology.brokers:
            return _link(a, b, "->" in text, topology)
    for a, b in pairs:
        for name in (a, b):
            if name not in topology.brokers:
                raise ValueError(f"no broker called {name!r}{nearest(name, topology.brokers)}")
    raise ValueError(f"no broker called {text!r}{nearest(text, topology.brokers)}")


def possible_pairs(text: str) -> list[tuple[str, str]]:
    """The ends of a link that `text` may mean; several, where names hold a "-" themselves."""
    if "->" in text:
        a, _, b = text.partition("->")
        return [(a.strip(), b.strip())]
    places = [place for place, letter in enumerate(text) if letter == "-"]
    return [(text[:place], text[place + 1 :]) for place in places]


def is_same_target(one: str, other: str) -> bool:
    """Whether two texts name one broker or link, whatever the order of a link's ends."""
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
