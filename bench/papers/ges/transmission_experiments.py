"""Links per publication, by the number of interested clients, on simulated brokers.

As in the paper, a client publishes, a distant client wants everything, and each other broker has
five clients that want a share. The receivers of a publication are drawn and stand in its attributes
(an attribute per broker, a bit per client), so that a cluster with constant subscriptions serves
all shares. Brokers count their forwarded publications. The oracle judges every delivery, and
nothing may be missing.

    pubsubctl experiment ges.links

Paper: [GES] §5, Fig. 7 (match rates).
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from bench.papers.experiments import ExperimentRecord, Progress, RunContext, Tables
from bench.spec.experiment import ExperimentFile, Row
from bench.spec.spec import load_topology
from brokerd.overlay.topology import Topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.wire.attributes import encode_attributes

PUBLISHER = "publisher"
ALWAYS = "measuring"
EACH_CLIENT = "each client"

Percent = Annotated[int, Field(ge=0, le=100, strict=True)]


class TransmissionExperiment(ExperimentFile):
    """A closed description of counts and hierarchies.

    Attributes:
        publisher: the broker of the publishing client.
        measuring: the broker of a subscriber that receives everything.
        clients: subscribers at each other broker.
        match_percent: shares of the publications for a client, drawn at random.
        interests: drawn for each client, or equal for all clients of a broker.
        publications: publications per point.
    """

    schema_: Annotated[Literal["pubsubctl/transmission-experiment/1"], Field(alias="schema")]
    topologies: Annotated[list[str], Field(min_length=1)]
    publisher: str
    measuring: str
    clients: Annotated[int, Field(ge=1, le=6, strict=True)]
    match_percent: Annotated[list[Percent], Field(min_length=1)]
    interests: Annotated[list[Literal["each client", "each broker"]], Field(min_length=1)]
    publications: Annotated[int, Field(ge=1, le=100_000, strict=True)]

    def scale(self) -> Row:
        return {
            "brokers": min(len(each.brokers) for each in self.build_topologies().values()),
            "clients": self.clients,
            "publications": self.publications,
        }

    def build_topologies(self) -> Mapping[str, Topology]:
        return {name: load_topology(name) for name in self.topologies}


def compute_rows(experiment: TransmissionExperiment, context: RunContext) -> Tables:
    """Return the rows of every table; the same experiment gives the same rows."""
    return {"transmissions": _rows(experiment, context.topologies, context.progress)}


def _rows(
    experiment: TransmissionExperiment, topologies: Mapping[str, Topology], progress: Progress
) -> Iterator[Row]:
    for name, topology in topologies.items():
        setting = Setting(experiment, topology)
        for interest in experiment.interests:
            for match in experiment.match_percent:
                progress.phase(f"{name}: {match} % for {interest}")
                yield {
                    "topology": name,
                    "interest": interest,
                    "match_percent": match,
                    **setting.measure(interest, match),
                }


class Setting:
    """A hierarchy of brokers and its clients, with all subscriptions known everywhere.

    Args:
        experiment: names the publisher, the measuring client's broker, the clients and the seed.
        options: of the simulated cluster.

    Attributes:
        measuring: the client that receives everything.
    """

    def __init__(self, experiment: Any, topology: Topology, **options: Any) -> None:
        self.measuring = ALWAYS
        self._experiment = experiment
        self._topology = topology
        self._random = Random(f"{experiment.seed}/{topology.name}")
        self._others = [
            broker
            for broker in topology.brokers
            if broker not in (experiment.publisher, experiment.measuring)
        ]
        self.cluster = SimulatedCluster(
            topology, "ges", seed=experiment.seed, strict=False, trace=False, **options
        ).start()
        self.cluster.run_until_quiet()
        self.cluster.client(PUBLISHER, experiment.publisher, publishes=True)
        self.cluster.subscribe(experiment.measuring, "true", ALWAYS)
        for broker in self._others:
            for number in range(experiment.clients):
                those = [bits for bits in range(1 << experiment.clients) if bits >> number & 1]
                wanted = f"{broker} in ({', '.join(map(str, those))})"
                self.cluster.subscribe(broker, wanted, f"c{number}-{broker}")
        self.cluster.run_until_quiet()

    def measure(self, interest: str, match_percent: int) -> dict[str, Any]:
        """Return the cost of a share of interested clients, per publication."""
        before, deliveries = self.cluster.statistics(), self.cluster.oracle.deliveries
        violations = sum(self.cluster.oracle.violations.values())
        owed = reached = 0
        for wanted in self._draw(interest, match_percent, self._experiment.publications):
            owed += 1 + sum(map(int.bit_count, wanted.values()))
            reached += 1 + len(wanted)
            content = encode_attributes(wanted), b""
            self.cluster.publish_run(self._experiment.publisher, [content], PUBLISHER)
            self.cluster.run_until_quiet()
        after = self.cluster.statistics()
        delivered = self.cluster.oracle.deliveries - deliveries
        return {
            "publications": self._experiment.publications,
            "brokers_reached": reached,
            "transmissions": after["publications_forwarded"] - before["publications_forwarded"],
            "owed": owed,
            "delivered": delivered,
            "violations": sum(self.cluster.oracle.violations.values()) - violations,
        }

    def _draw(self, interest: str, match_percent: int, count: int) -> list[dict[str, int]]:
        """Return for each publication the interested clients by broker, as bits.

        A client receives exactly the share; only the combination of clients is random.
        """
        clients = self._experiment.clients
        shares = range(clients) if interest == EACH_CLIENT else range(1)
        everybody = (1 << clients) - 1
        drawn: list[dict[str, int]] = [{} for _ in range(count)]
        for broker in self._others:
            for bit in shares:
                bits = 1 << bit if interest == EACH_CLIENT else everybody
                for place in self._random.sample(range(count), count * match_percent // 100):
                    drawn[place][broker] = drawn[place].get(broker, 0) | bits
        return drawn


RECORD = ExperimentRecord({"": TransmissionExperiment}, compute_rows, protocol="ges")
