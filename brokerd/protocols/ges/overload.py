"""The load of a broker's links, measured by round trips, and the resulting costs.

A core sees no queue of a session, but measures time. A session is ordered: a probe waits behind
all messages queued before the probe, at both ends and between the ends, and the answer waits
behind the opposite traffic. So a round trip is as long as a link, or the broker at the other end,
is loaded.

Paper: [GES] §3 (link costs are updated for overload every few seconds).
"""

from dataclasses import dataclass, field
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.ges.connectivity_graph import GraphView
from brokerd.protocols.ges.dissemination import DEAREST, UP
from brokerd.protocols.ges.messages import DOWN, LoadAnswered, LoadProbe
from brokerd.protocols.ges.parameters import LoadParameters, SlowParameters
from brokerd.protocols.ges.state import CostChange, Neighbours
from brokerd.protocols.interface import Instant, Send, Shutdown
from brokerd.protocols.parts.deadlines import DeadlineQueue

LOAD: Final = "load"
"""Purpose of the deadline at which the load of links is checked."""

CHECKS_TO_RISE: Final = 2
CHECKS_TO_FALL: Final = 3
MOST_CHECKS_TO_FALL: Final = 48
"""A cost that rises within this many checks of a fall shows a link emptied by a high cost."""


@dataclass(slots=True)
class _Link:
    """The link to a neighbour.

    Attributes:
        is_probed: True after a probe since the last check, or while an earlier probe has no
            answer.
        probed_ns: the time of the unanswered probe; None without one.
        took_ns: the round trip of the answer that arrived since the last check.
        higher, lower: the factors that the last checks called for, as long as all of them were
            above, or below, the stated factor.
        checks_to_fall: checks in a row that call for a lower factor before it is stated.
        fell_ns: the time of the last fall.
    """

    is_probed: bool = False
    probed_ns: Instant | None = None
    took_ns: int | None = None
    higher: list[int] = field(default_factory=list)
    lower: list[int] = field(default_factory=list)
    checks_to_fall: int = CHECKS_TO_FALL
    fell_ns: Instant | None = None


class LinkLoad:
    """The load of a broker's links, and the factors that the broker states for these links.

    Links without traffic are not probed, except expensive links, or links that may become
    expensive. Where slow brokers end, all links are probed while a link with a session is
    expensive: a broker must find out if other links are cheap.

    Attributes:
        is_measuring: False if the topology requires no measurement.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Neighbours,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: LoadParameters,
    ) -> None:
        self.counters = dict.fromkeys(("costs_raised", "costs_raised_again", "costs_lowered"), 0)
        self.is_measuring = parameters.slow_link_ns > 0
        self._deadline = LOAD, broker
        self._neighbours = neighbours
        self._deadlines = deadlines
        self._slow_ns = parameters.slow_link_ns
        self._check_ns = parameters.cost_check_ns
        self._compares = parameters.slow_broker_ns > 0
        self._links: dict[BrokerNumber, _Link] = {}

    def sent(self, peer: BrokerNumber, now_ns: Instant) -> list[Send]:
        """Note publications to a neighbour, and send a probe after the first since a check.

        Not to be called unless `is_measuring`.
        """
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link()
        return [] if link.is_probed else self._probe(peer, link, now_ns)

    def on_session(self, peer: BrokerNumber, now_ns: Instant) -> list[Send]:
        """Probe the link of a new session if the cost is raised.

        The cost stays until checks change it.
        """
        is_raised = self._factor(peer) > UP
        return self._probe(peer, self._links[peer], now_ns) if is_raised else []

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Forget the measurements of a closed session."""
        link = self._links.get(peer)
        if link is not None:
            link.is_probed, link.probed_ns, link.took_ns = False, None, None
            link.higher, link.lower = [], []

    def check(self, now_ns: Instant) -> list[Send | CostChange]:
        """Judge the links by their load since the last check, and return lasting changes."""
        linked = self._neighbours.linked
        compares = self._compares and any(
            self._factor(peer) > UP for peer in self._links if peer in linked
        )
        if compares:
            for peer in self._neighbours.all_linked():
                self._links.setdefault(peer, _Link())
        outcomes: list[Send | CostChange] = []
        for peer, link in self._links.items():
            if peer in linked:
                outcomes += self._judge(peer, link, now_ns)
                link.is_probed, link.took_ns = False, None
                dear = link.higher or self._factor(peer) > UP
                if dear or compares or link.probed_ns is not None:
                    outcomes += self._probe(peer, link, now_ns)
        return outcomes

    def on_probe(self, peer: BrokerNumber) -> Send:
        """Answer a probe of a neighbour."""
        return Send(peer, LoadAnswered())

    def on_answered(self, peer: BrokerNumber, now_ns: Instant) -> None:
        """Record the round trip of a probe.

        Raises:
            RemoteProtocolError: there was no probe; the fault of the neighbour.
        """
        link = self._links.get(peer)
        if link is None or link.probed_ns is None:
            raise RemoteProtocolError(peer, "an answer to no probe")
        link.took_ns = now_ns - link.probed_ns
        link.probed_ns = None

    def _factor(self, peer: BrokerNumber) -> int:
        return self._neighbours.factors.get(peer, UP)

    def _probe(self, peer: BrokerNumber, link: _Link, now_ns: Instant) -> list[Send]:
        link.is_probed = True
        probes: list[Send] = []
        if link.probed_ns is None:
            link.probed_ns = now_ns
            probes.append(Send(peer, LoadProbe()))
        if self._deadline not in self._deadlines:
            self._deadlines.set(self._deadline, now_ns + self._check_ns)
        return probes

    def _judge(self, peer: BrokerNumber, link: _Link, now_ns: Instant) -> list[CostChange]:
        stated = self._factor(peer)
        called = self._required_factor(link, stated, now_ns)
        if called is None:
            return []
        link.higher = [*link.higher, called] if called > stated else []
        link.lower = [*link.lower, called] if called < stated else []
        if len(link.higher) >= CHECKS_TO_RISE:
            return [self._rise(peer, link, now_ns)]
        if len(link.lower) >= link.checks_to_fall:
            return [self._fall(peer, link, now_ns)]
        return []

    def _required_factor(self, link: _Link, stated: int, now_ns: Instant) -> int | None:
        """Return the factor that the last round trip calls for; None if undecided.

        A probe without an answer has either taken too long already, or proves nothing yet.
        """
        if link.probed_ns is None:
            return None if link.took_ns is None else self._factor_of(link.took_ns)
        so_far = self._factor_of(now_ns - link.probed_ns)
        return so_far if so_far > stated else None

    def _factor_of(self, took_ns: int) -> int:
        factor = UP
        while factor < DEAREST and took_ns > factor * self._slow_ns:
            factor *= 2
        return factor

    def _rise(self, peer: BrokerNumber, link: _Link, now_ns: Instant) -> CostChange:
        """Raise the cost to the smaller of the factors that the checks called for.

        The cost of a link that is loaded whenever it is cheap would rise and fall for ever: after
        every rise soon after a fall, the next fall takes twice as many checks.
        """
        soon_ns = MOST_CHECKS_TO_FALL * self._check_ns
        if link.fell_ns is not None and now_ns - link.fell_ns <= soon_ns:
            link.checks_to_fall = min(2 * link.checks_to_fall, MOST_CHECKS_TO_FALL)
            self.counters["costs_raised_again"] += 1
        else:
            link.checks_to_fall = CHECKS_TO_FALL
        self.counters["costs_raised"] += 1
        return self._state(peer, link, min(link.higher))

    def _fall(self, peer: BrokerNumber, link: _Link, now_ns: Instant) -> CostChange:
        link.fell_ns = now_ns
        self.counters["costs_lowered"] += 1
        return self._state(peer, link, max(link.lower))

    def _state(self, peer: BrokerNumber, link: _Link, factor: int) -> CostChange:
        link.higher, link.lower = [], []
        self._neighbours.factors[peer] = factor
        return CostChange(peer, factor)


SLOW: Final = "slow"
"""Purpose of the deadline at which this broker has been slow for long."""

WITNESSES: Final = 2
"""The least number of neighbours that find it slow and some other link cheap."""


class SlowBroker:
    """The detection that this broker is slow."""

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Neighbours,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: SlowParameters,
        view: GraphView,
    ) -> None:
        self._broker = broker
        self._neighbours = neighbours
        self._deadlines = deadlines
        self._slow_ns = parameters.slow_broker_ns
        self._view = view

    def look(self, now_ns: Instant) -> None:
        """Check the statements of neighbours after a change of statements or sessions."""
        if not self._slow_ns:
            return
        deadline = SLOW, self._broker
        if not self._is_slow():
            self._deadlines.cancel(deadline)
        elif deadline not in self._deadlines:
            self._deadlines.set(deadline, now_ns + self._slow_ns)

    def on_wait_end(self) -> Shutdown:
        """Return the shutdown of this broker, which has been slow for long."""
        seconds = self._slow_ns / 1e9
        reason = f"all neighbours have found this broker slow for {seconds:g} s (slow_broker_ns)"
        return Shutdown(reason)

    def _is_slow(self) -> bool:
        near = self._neighbours.all_linked()
        if any(self._factor_stated_by(peer) < DEAREST for peer in near):
            return False
        return sum(map(self._finds_another_cheap, near)) >= WITNESSES

    def _factor_stated_by(self, peer: BrokerNumber) -> int:
        """Return the factor that a neighbour states for the cost of its link to this broker."""
        statement = self._view.statement_by(peer, self._broker)
        return DOWN if statement is None else statement.factor

    def _finds_another_cheap(self, peer: BrokerNumber) -> bool:
        return any(
            statement.by == peer and UP <= statement.factor < DEAREST
            for statement in self._view.statements()
        )
