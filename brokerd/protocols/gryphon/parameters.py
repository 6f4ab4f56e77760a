"""Parameters of gryphon.

Paper: [GD02] §3.2, §4.2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from brokerd.config import check_least, read_section
from brokerd.errors import ConfigError
from brokerd.overlay.cells import CellGraph
from brokerd.overlay.topology import Topology
from brokerd.protocols.definition import Order
from brokerd.protocols.gryphon.knowledge import ticks_in
from brokerd.text import counted
from brokerd.units import MILLISECOND_NS, SECOND_NS

_AT_LEAST_ONE: Final = (
    "pubends",
    "replicas",
    "nack_window",
    "nack_repetition_ns",
    "nack_chunk_ns",
    "ack_expected_check_ns",
    "send_window_bytes",
    "answer_window_bytes",
    "send_stall_ns",
)


_ORDERS: Final = (Order.PUBLISHER.value, Order.TOTAL.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GryphonParameters:
    """Parameters of gryphon.

    Attributes:
        order: "publisher", or "total": two subscribers receive their common publications in the
            same order, and wait for every pubend.
        doubt_curiosity_ns: how long an event may wait for other pubends before a nack to these; in
            total order only.
        delay_curiosity_ns: how long a subscribers' broker waits for news of a stream before it asks
            for the stream's end (DCT); so a lost last event is found without AET. 0: never, as in
            the paper's experiments.
        filters: whether brokers withhold events that no broker below wants; a subscription starts
            when all pubends have its predicate. Without filters, everything is sent to every
            broker, as in the paper's experiments, and a subscription starts at once.
        silence_percent: after an event, its pubend assigns silence in advance for this share of the
            expected wait for the next event; in total order only.
        silence_limit_ns: longest silence assigned in advance.
        pubends: number at each broker; a publisher stays at one pubend permanently.
        replicas: number of disks with the state of a broker with clients: the broker's own, and
            the disks of the next linked brokers by number. A publication is acknowledged, and sent
            on, once a majority of the disks has the publication. A broker with a lost disk restores
            the state from the others. 1: the broker's own disk alone.
        events_per_message: greatest number of events in a message between brokers; 0: no limit. The
            paper's is 1.
        gap_curiosity_ns: age of a gap at its first nack (GCT).
        nack_repetition_ns: least wait for an answer before the nack is repeated, and the wait until
            answers have arrived (NRT).
        nack_repetition_limit_ns: longest wait, after any number of repetitions.
        nack_chunk_ns: length of the pieces in which gaps are requested.
        nack_window: number of unanswered pieces of a stream.
        ack_expected_ns: age at which a pubend requests missing acks of an event (AET). 0: never;
            then `delay_curiosity_ns` has to find lost last events.
        ack_expected_check_ns: interval between two searches for such events.
        ack_interval_ns: how long acks may be gathered.
        send_window_bytes: of first transmissions, unconfirmed bytes of a neighbour at which brokers
            above and publishers wait.
        answer_window_bytes: of answers to nacks, unconfirmed bytes of a neighbour at which the rest
            of the answer waits.
        send_stall_ns: longest wait for a neighbour that confirms no bytes.
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is dialled again; doubles
            up to the limit.
        client_window: number of unacknowledged publications of a client at which deliveries wait.
        client_subscriptions: greatest number of subscriptions of a client; further ones are
            refused.
        client_linger_ns: duration for which subscriptions of a disconnected subscriber are kept.
    """

    order: str = "publisher"
    doubt_curiosity_ns: int = 20 * MILLISECOND_NS
    delay_curiosity_ns: int = 0
    filters: bool = True
    silence_percent: int = 0
    silence_limit_ns: int = 200 * MILLISECOND_NS
    pubends: int = 4
    replicas: int = 1
    events_per_message: int = 0
    gap_curiosity_ns: int = 200 * MILLISECOND_NS
    nack_repetition_ns: int = 600 * MILLISECOND_NS
    nack_repetition_limit_ns: int = 30 * SECOND_NS
    nack_chunk_ns: int = 500 * MILLISECOND_NS
    nack_window: int = 64
    ack_expected_ns: int = 10 * SECOND_NS
    ack_expected_check_ns: int = SECOND_NS
    ack_interval_ns: int = 100 * MILLISECOND_NS
    send_window_bytes: int = 8 << 20
    answer_window_bytes: int = 4 << 20
    send_stall_ns: int = 2 * SECOND_NS
    retry_first_ns: int = 500 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    client_window: int = 16_384
    client_subscriptions: int = 1_000
    client_linger_ns: int = 60 * SECOND_NS

    @property
    def is_total(self) -> bool:
        return self.order == Order.TOTAL

    @property
    def nack_chunk_ticks(self) -> int:
        """The length of the pieces of a gap."""
        return ticks_in(self.nack_chunk_ns)

    @property
    def curiosity_forgotten_ns(self) -> int:
        """Duration for which an intermediate broker does not forward a repeated nack.

        Shorter than the wait of any subscriber: otherwise a repetition could be stopped that is
        faster than the first nack.
        """
        return self.nack_repetition_ns * 3 // 4

    @property
    def unwanted_ns(self) -> int:
        """Age at which a broker on the route looks for events that brokers above have released."""
        return self.ack_expected_ns or self.delay_curiosity_ns

    def check_topology(self, topology: Topology, where: str) -> None:
        """See ReplicationParameters: all brokers with clients have as many linked brokers."""
        most, name = most_disks(topology)
        if self.replicas > most:
            raise ConfigError(
                f"{where}: replicas = {self.replicas}; {name} has clients and is linked to "
                f"{counted(most - 1, 'broker')}, so at most {most}"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        parameters: Self = read_section(cls, dict(values), where)
        return parameters

    def check(self, where: str) -> None:
        if self.order not in _ORDERS:
            raise ConfigError(f"{where}: order = {self.order!r}; one of {', '.join(_ORDERS)}")
        if self.events_per_message < 0:
            raise ConfigError(
                f"{where}: events_per_message = {self.events_per_message}; 0 for any number"
            )
        if not 0 <= self.silence_percent <= 100:
            raise ConfigError(f"{where}: silence_percent = {self.silence_percent}; from 0 to 100")
        if self.silence_percent and not self.is_total:
            raise ConfigError(
                f"{where}: silence_percent = {self.silence_percent} with order = "
                f'{self.order!r}; only in order "total" do subscribers wait for silence'
            )
        for name in ("delay_curiosity_ns", "ack_expected_ns"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{where}: {name} = {getattr(self, name)}; 0 for never")
        if not self.ack_expected_ns and not self.delay_curiosity_ns:
            raise ConfigError(
                f"{where}: ack_expected_ns = 0 and delay_curiosity_ns = 0; without both, no broker "
                "would find the loss of the last event"
            )
        check_least(self, 1, _AT_LEAST_ONE, where)
        if self.nack_repetition_limit_ns < self.nack_repetition_ns:
            raise ConfigError(
                f"{where}: nack_repetition_limit_ns = {self.nack_repetition_limit_ns} is less "
                f"than nack_repetition_ns = {self.nack_repetition_ns}"
            )

    def warnings(self) -> tuple[str, ...]:
        return ()


def most_disks(topology: Topology) -> tuple[int, str]:
    """Return the largest number of replicas, and the broker with clients that sets this bound."""
    graph = topology.overlay("cells")
    assert isinstance(graph, CellGraph), f"{topology.name} is of kind {topology.kind}"
    hosts = [members[0] for members in graph.members if len(members) == 1]
    return min((len(graph.surroundings(host)) + 1, topology.brokers[host]) for host in hosts)
