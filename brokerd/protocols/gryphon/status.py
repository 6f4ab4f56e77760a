"""The reports of a core: its status, its counters, and its state in memory."""

from collections.abc import Mapping

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.gryphon.clients import HostedClients
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.flow_control import FlowControl
from brokerd.protocols.gryphon.pubend import Pubends
from brokerd.protocols.gryphon.routes import Neighbours, Routes
from brokerd.protocols.gryphon.state import StreamState, VolatileState
from brokerd.protocols.gryphon.stream import Streams
from brokerd.protocols.interface import CoreStatus


class Reports:
    """The reports of one broker's core; they change no state.

    Args:
        counters: of the core, as they are at any time.
    """

    def __init__(
        self,
        routes: Routes,
        streams: Streams,
        pubends: Pubends,
        filters: FilterTable,
        flow: FlowControl,
        neighbours: Neighbours,
        counters: Mapping[str, int],
    ) -> None:
        self._routes = routes
        self._streams = streams
        self._pubends = pubends
        self._filters = filters
        self._flow = flow
        self._neighbours = neighbours
        self._counters = counters

    def aftermath(self) -> list[str]:
        """Return the remaining gaps and publications of a broker at rest."""
        found = [
            f"{len(stream.subend.gaps.pieces)} gaps in the stream {tuple(stream.identity)}"
            for stream in self._streams
            if stream.subend.gaps
        ]
        return [*found, *self._joining()]

    def _joining(self) -> list[str]:
        waiting = self._pubends.waiting()
        text = f"{waiting} publications whose pubend was not announced to all brokers"
        return [text] if waiting else []

    def statistics(self, clients: HostedClients) -> dict[str, int]:
        return {
            **self._counters,
            "queue_publications": self._streams.count_retained(),
            "publications_held": self._pubends.held(),
            "queue_bytes": sum(s.knowledge.events.payload_bytes for s in self._streams),
            "subscriptions": clients.table.count_subscriptions(),
            "matching_hits": clients.own.memo.hits + self._filters.memo.hits,
            "matching_misses": clients.own.memo.misses + self._filters.memo.misses,
            "sessions_active": len(self._neighbours.sessions),
            "sessions_ready": len(self._neighbours.sessions),
        }

    def status(
        self, clients: HostedClients, discrepancies: tuple[str, ...], *, is_reading: bool
    ) -> CoreStatus[BrokerNumber]:
        wanted = self._neighbours.wanted()
        subscriptions = clients.table.count_subscriptions()
        queued, held = self._streams.count_retained(), self._pubends.held()
        idle_reasons = [f"{subscriptions} subscriptions of its own clients"] * bool(subscriptions)
        if queued:
            idle_reasons.append(f"{queued} publications that are not acknowledged everywhere")
        idle_reasons += self._joining()
        if held:
            idle_reasons.append(f"{held} publications that wait until those below have room")
        return CoreStatus(
            state="recovering" if is_reading else "running",
            queued=queued,
            subscriptions=subscriptions,
            own_subscriptions=subscriptions,
            wanted=wanted,
            ready=tuple(peer for peer in wanted if peer in self._neighbours.sessions),
            idle_reasons=tuple(idle_reasons),
            discrepancies=discrepancies,
        )

    def state(self) -> VolatileState:
        """Return the state in memory, for people."""
        hosts = self._routes.hosts
        predicates = {broker: self._filters.predicates(broker) for broker in hosts}
        return VolatileState(
            streams={
                f"{each.identity.broker}.{each.identity.publisher}": StreamState.of(each)
                for each in self._streams
            },
            filters={
                broker: None if known is None else len(known)
                for broker, known in predicates.items()
            },
            full_windows=tuple((peer, again) for peer, _, again in self._flow.full),
            held=self._pubends.held(),
            joining=self._pubends.waiting(),
            reserved=self._pubends.reserved,
        )
