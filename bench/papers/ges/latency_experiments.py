"""Latency by publication rate, size and match rate, on simulated brokers with a limited speed.

The clients are those of `transmission_experiments`. A broker sends the copies of a publication, to
brokers and clients, one after another, and each takes a time that grows with its size. Publications
are sent at random times. So latency has a part for each link of the path, and a part for queues.
For comparison each broker floods: it receives every publication, and drops unwanted ones.

    pubsubctl experiment ges.fig7

Paper: [GES] §5, Fig. 7 and Table 2 (whose numbers are lost; the paper has a machine per broker).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from random import Random
from statistics import fmean, pvariance
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from bench.papers.experiments import ExperimentRecord, Point, RunContext, Tables, draw_points
from bench.papers.ges.transmission_experiments import EACH_CLIENT, PUBLISHER, Setting
from bench.spec.experiment import ExperimentFile, Row
from bench.spec.spec import load_topology
from brokerd.model.client_messages import Deliveries
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.messages import RoutedPublications
from brokerd.quantiles import quantile
from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.network import Network
from brokerd.simulator.world.sessions import NetworkParameters, SessionEnd, Transmission
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes

FLOODED = "flooded"
"""The prefix of a client that makes its broker receive everything; its copies take no time."""

Positive = Annotated[int, Field(ge=1, strict=True)]


class LatencyExperiment(ExperimentFile):
    """A closed description of latencies.

    Attributes:
        publisher, measuring, clients, match_percent: see TransmissionExperiment.
        rates: publications per second.
        sizes: bytes of a payload.
        publications: measured publications per point.
        warm_up: publications before these.
        latency_us: latency of every link, one way.
        copy_us, byte_ns: the time that a broker takes for a copy, and for each byte of its payload.
    """

    schema_: Annotated[Literal["pubsubctl/latency-surface-experiment/1"], Field(alias="schema")]
    topologies: Annotated[list[str], Field(min_length=1)]
    publisher: str
    measuring: str
    clients: Annotated[int, Field(ge=1, le=6, strict=True)]
    match_percent: Annotated[list[Annotated[int, Field(ge=0, le=100)]], Field(min_length=1)]
    rates: Annotated[list[Positive], Field(min_length=1)]
    sizes: Annotated[list[Positive], Field(min_length=1)]
    publications: Annotated[int, Field(ge=2, le=100_000, strict=True)]
    warm_up: Annotated[int, Field(ge=0, le=10_000, strict=True)] = 0
    latency_us: Positive
    copy_us: Positive
    byte_ns: Annotated[int, Field(ge=0, strict=True)]

    runs: ClassVar[int] = 1

    def points(self) -> Iterator[Point]:
        """Yield each match rate of each hierarchy, with and without flooding."""
        for topology, is_flooding, match in product(
            self.topologies, (False, True), self.match_percent
        ):
            yield {"topology": topology, "match_percent": match, "is_flooding": is_flooding}

    def scale(self) -> Row:
        brokers = min(len(each.brokers) for each in self.build_topologies().values())
        return {
            "brokers": brokers,
            "clients": self.clients * (brokers - 2),
            "publications": self.publications,
        }

    def build_topologies(self) -> Mapping[str, Topology]:
        return {name: load_topology(name) for name in self.topologies}


class BusyTransmission(Transmission):
    """A carrier for brokers that send one copy of a publication after another.

    Attributes:
        cost_ns: the time of a copy.
        busy_ns: per broker, the time of all copies.
        arrivals_ns: per client and number of a publication, the instant of its arrival.
    """

    cost_ns = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._free_at_ns: dict[int, int] = {}
        self.busy_ns: dict[int, int] = defaultdict(int)
        self.arrivals_ns: dict[tuple[str, int], int] = {}

    def post(self, target: SessionEnd, message: Any) -> None:
        """See Transmission: the copy leaves after all earlier copies of its broker."""
        end = target.other
        broker, peer, kind = end.endpoint.key, end.peer, type(message)
        is_copy = kind is RoutedPublications or kind is Deliveries
        if not isinstance(broker, int) or not is_copy or str(peer).startswith(FLOODED):
            super().post(target, message)
            return
        now_ns = self.schedule.now_ns
        leaves_ns = max(now_ns, self._free_at_ns.get(broker, 0)) + self.cost_ns
        self._free_at_ns[broker] = leaves_ns
        self.busy_ns[broker] += self.cost_ns
        arrives_ns = leaves_ns + end.latency_ns
        if isinstance(peer, str):
            for number in message.run.sequences:
                self.arrivals_ns[peer, number] = arrives_ns
        self.counters["messages_sent"] += 1
        self.schedule.post(target.lane, arrives_ns - now_ns, self.arrives, target, message)


class BusyNetwork(Network):
    """A network with a BusyTransmission."""

    def __init__(self, schedule: Schedule, random: Random, parameters: NetworkParameters) -> None:
        super().__init__(schedule, random, parameters)
        carrier = BusyTransmission(schedule, random, parameters, self.links, self.counters)
        self.transmission: BusyTransmission = carrier


class _Measurement(Setting):
    """The brokers and clients of a hierarchy, with the latencies at the measuring client."""

    def __init__(
        self, experiment: LatencyExperiment, topology: Topology, *, is_flooding: bool
    ) -> None:
        latency_ns = experiment.latency_us * 1_000
        network = NetworkParameters(
            latency_lowest_ns=latency_ns, latency_highest_ns=latency_ns, jitter_ns=0,
            session=topology.session_parameters(),
        )  # fmt: skip
        super().__init__(experiment, topology, network=network, make_network=BusyNetwork)
        self._is_flooding = is_flooding
        if is_flooding:
            for broker in topology.brokers:
                self.cluster.subscribe(broker, "true", f"{FLOODED}-{broker}")
            self.cluster.run_until_quiet()
        self._published = 0

    def follow(self, match_percent: int, size_bytes: int, rate: int) -> dict[str, Any]:
        """Return the latencies of a point; the brokers are idle before and after."""
        setup, cluster = self._experiment, self.cluster
        assert isinstance(cluster.network, BusyNetwork), f"{cluster.network} takes no time"
        carrier = cluster.network.transmission
        carrier.cost_ns = setup.copy_us * 1_000 + size_bytes * setup.byte_ns
        carrier.busy_ns.clear()
        carrier.arrivals_ns.clear()
        # The same times for each match rate, and the same receivers with and without flooding.
        random = Random(f"{setup.seed}/{size_bytes}/{rate}")
        self._random = Random(f"{setup.seed}/{match_percent}/{size_bytes}/{rate}")
        oracle, payload = cluster.oracle, bytes(size_bytes)
        deliveries, violations = oracle.deliveries, sum(oracle.violations.values())
        wanted = self._draw(EACH_CLIENT, match_percent, setup.warm_up + setup.publications)
        sent_ns: list[int] = []
        begin_ns = next_ns = cluster.schedule.now_ns
        for each in wanted:
            next_ns += int(random.expovariate(rate) * SECOND_NS)
            cluster.run_for((next_ns - cluster.schedule.now_ns) / SECOND_NS)
            sent_ns.append(cluster.schedule.now_ns)
            cluster.publish_run(setup.publisher, [(encode_attributes(each), payload)], PUBLISHER)
        took_ns = max(1, cluster.schedule.now_ns - begin_ns)
        cluster.run_until_quiet()
        before, self._published = self._published, self._published + len(wanted)
        measured = range(setup.warm_up, len(wanted))
        arrived = carrier.arrivals_ns
        late_ns = [
            arrived[self.measuring, before + place + 1] - sent_ns[place]
            for place in measured
            if (self.measuring, before + place + 1) in arrived
        ]
        late_ms = [each / 1e6 for each in late_ns]
        owed = len(wanted) + sum(sum(map(int.bit_count, each.values())) for each in wanted)
        if self._is_flooding:
            owed += len(wanted) * len(self._topology.brokers)
        missing = abs(owed - (oracle.deliveries - deliveries))
        return {
            "publications": len(measured),
            "delivered": len(late_ms),
            "mean_ms": fmean(late_ms),
            "variance_ms2": pvariance(late_ms),
            "p99_ms": quantile(sorted(late_ns), 0.99) / 1e6,
            "busiest": max(carrier.busy_ns.values()) / took_ns,
            "violations": missing + sum(oracle.violations.values()) - violations,
        }


def compute_rows(experiment: LatencyExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return draw_points(experiment, draw_point, context)


def draw_point(experiment: LatencyExperiment, point: Point, run: int) -> Tables:
    """Return the latencies of a hierarchy and match rate, at all sizes and rates."""
    topology = load_topology(point["topology"])
    setting = _Measurement(experiment, topology, is_flooding=point["is_flooding"])
    rows: list[Row] = [
        {
            **point,
            "size_bytes": size_bytes,
            "rate": rate,
            **setting.follow(point["match_percent"], size_bytes, rate),
        }
        for size_bytes in _sizes(experiment, is_flooding=point["is_flooding"])
        for rate in experiment.rates
    ]
    return {"latency_surfaces": rows}


def _sizes(experiment: LatencyExperiment, *, is_flooding: bool) -> list[int]:
    """Return the sizes of a surface; flooding is a line, at the middle size."""
    return [middle(experiment.sizes)] if is_flooding else experiment.sizes


def middle(numbers: list[int]) -> int:
    """Return the middle one of some numbers."""
    return sorted(numbers)[len(numbers) // 2]


RECORD = ExperimentRecord({"": LatencyExperiment}, compute_rows, protocol="ges")
