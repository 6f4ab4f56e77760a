"""How loaded links are, as far as a broker sees it, and what they cost for that.

A core sees no queue of its sessions, but it sees time. A session keeps its order: a probe waits
behind all that was queued before it, at both ends and between them, and its answer behind what
goes the other way. So a round trip is as long as a link is loaded, or the broker at its other end.

Paper: [GES] §3 (link costs are updated for overload every few seconds).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.ges.graph import DEAREST, UP, Graph
from brokerd.protocols.ges.messages import LoadAnswered, LoadProbe
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

LOAD: Final = "load"
"""Purpose of the deadline at which it is checked how loaded links are."""

CHECKS_TO_RISE: Final = 2
CHECKS_TO_FALL: Final = 3
MOST_CHECKS_TO_FALL: Final = 48
"""A link whose cost rises again within so many checks of its fall is one that its cost empties."""


class LoadParameters(Protocol):
    """What parameters say of it."""

    @property
    def slow_link_ns(self) -> int:
        """A round trip that takes longer makes its link dearer; 0: none does."""

    @property
    def cost_check_ns(self) -> int:
        """How often it is checked."""

    @property
    def slow_broker_ns(self) -> int:
        """See `slow.SlowParameters`."""


@dataclass(slots=True)
class _Link:
    """The link to a neighbour.

    Attributes:
        is_probed: since the last check, or a probe of before has no answer.
        asked_ns: when the probe left that has no answer; None for none.
        took_ns: what a round trip took whose answer came since the last check.
        higher, lower: the factors that the last checks called for, as long as all of them were
            above, or below, what is stated.
        checks_to_fall: so many checks in a row call for a lower factor before it is stated.
        fell_ns: when it last fell.
    """

    is_probed: bool = False
    asked_ns: Instant | None = None
    took_ns: int | None = None
    higher: list[int] = field(default_factory=list)
    lower: list[int] = field(default_factory=list)
    checks_to_fall: int = CHECKS_TO_FALL
    fell_ns: Instant | None = None


class LinkLoad:
    """One broker's part in it: what it says of its own links.

    Links over which it sends nothing are not probed, but for those that are dear or may get so.
    Where slow brokers end, all are while one is dear: who finds one link dear has to know whether
    the others are cheap.

    Args:
        neighbours: those that have sessions.
        reaches: whether a neighbour has one.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: LoadParameters,
        graph: Graph,
        neighbours: Callable[[], Iterable[BrokerNumber]],
        reaches: Callable[[BrokerNumber], bool],
    ) -> None:
        self.counters = dict.fromkeys(("costs_raised", "costs_raised_again", "costs_lowered"), 0)
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._slow_ns = parameters.slow_link_ns
        self._check_ns = parameters.cost_check_ns
        self._compares = parameters.slow_broker_ns > 0
        self._graph = graph
        self._neighbours = neighbours
        self._reaches = reaches
        self._links: dict[BrokerNumber, _Link] = {}

    def sent(self, peer: BrokerNumber) -> None:
        """Publications were sent to a neighbour; a probe follows the first ones behind a check."""
        if not self._slow_ns:
            return
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
        if not link.is_probed:
            self._probe(peer, link)

    def came(self, peer: BrokerNumber) -> None:
        """A neighbour has a new session: what the link cost it costs until checks say otherwise."""
        if self._graph.factor(peer) > UP:
            self._probe(peer, self._links[peer])

    def went(self, peer: BrokerNumber) -> None:
        """A session is over, with what was under way."""
        link = self._links.get(peer)
        if link is not None:
            link.is_probed, link.asked_ns, link.took_ns = False, None, None
            link.higher, link.lower = [], []

    def check(self) -> None:
        """See how loaded links were since the last check, and say what has changed for good."""
        compares = self._compares and any(self._graph.factor(peer) > UP for peer in self._links)
        if compares:
            for peer in self._neighbours():
                self._links.setdefault(peer, _Link())
        for peer, link in self._links.items():
            if self._reaches(peer):
                self._judge(peer, link)
                link.is_probed, link.took_ns = False, None
                dear = link.higher or self._graph.factor(peer) > UP
                if dear or compares or link.asked_ns is not None:
                    self._probe(peer, link)

    def on_probe(self, peer: BrokerNumber, _message: LoadProbe) -> None:
        """A neighbour wants to know how long an answer takes."""
        self._machine.send(peer, LoadAnswered())

    def on_answered(self, peer: BrokerNumber, _message: LoadAnswered) -> None:
        """A neighbour answers a probe."""
        link = self._links.get(peer)
        if link is None or link.asked_ns is None:
            raise RemoteProtocolError(peer, "an answer to no probe")
        link.took_ns = self._machine.now_ns - link.asked_ns
        link.asked_ns = None

    def _probe(self, peer: BrokerNumber, link: _Link) -> None:
        link.is_probed = True
        if link.asked_ns is None:
            link.asked_ns = self._machine.now_ns
            self._machine.send(peer, LoadProbe())
        if (LOAD, self._broker) not in self._deadlines:
            self._deadlines.set((LOAD, self._broker), self._machine.now_ns + self._check_ns)

    def _judge(self, peer: BrokerNumber, link: _Link) -> None:
        stated = self._graph.factor(peer)
        called = self._called_for(link, stated)
        if called is None:
            return
        link.higher = [*link.higher, called] if called > stated else []
        link.lower = [*link.lower, called] if called < stated else []
        if len(link.higher) >= CHECKS_TO_RISE:
            self._rise(peer, link)
        elif len(link.lower) >= link.checks_to_fall:
            self._fall(peer, link)

    def _called_for(self, link: _Link, stated: int) -> int | None:
        """The factor that the last round trip calls for; None where there is no telling.

        A probe without an answer has taken too long already, or it says nothing yet.
        """
        if link.asked_ns is None:
            return None if link.took_ns is None else self._factor_of(link.took_ns)
        so_far = self._factor_of(self._machine.now_ns - link.asked_ns)
        return so_far if so_far > stated else None

    def _factor_of(self, took_ns: int) -> int:
        factor = UP
        while factor < DEAREST and took_ns > factor * self._slow_ns:
            factor *= 2
        return factor

    def _rise(self, peer: BrokerNumber, link: _Link) -> None:
        """To what both checks called for, at least.

        A link that is loaded whenever it costs little would have its cost rise and fall for ever:
        each time it rises soon after a fall, the next fall takes twice as many checks.
        """
        soon_ns = MOST_CHECKS_TO_FALL * self._check_ns
        if link.fell_ns is not None and self._machine.now_ns - link.fell_ns <= soon_ns:
            link.checks_to_fall = min(2 * link.checks_to_fall, MOST_CHECKS_TO_FALL)
            self.counters["costs_raised_again"] += 1
        else:
            link.checks_to_fall = CHECKS_TO_FALL
        self.counters["costs_raised"] += 1
        self._state(peer, link, min(link.higher))

    def _fall(self, peer: BrokerNumber, link: _Link) -> None:
        link.fell_ns = self._machine.now_ns
        self.counters["costs_lowered"] += 1
        self._state(peer, link, max(link.lower))

    def _state(self, peer: BrokerNumber, link: _Link, factor: int) -> None:
        link.higher, link.lower = [], []
        self._graph.charge(peer, factor)
