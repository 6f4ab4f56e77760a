"""Over how many links a publication goes, by how many clients want it, on simulated brokers.

As in the paper one client publishes, one far away wants everything, and each other broker has five
that want a share. Whom a publication is for is drawn for each of them and stands in its attributes
(one per broker, a bit per client), so that one cluster with the same subscriptions serves all
shares. Brokers count what they send on;
the oracle judges every delivery meanwhile, and nothing may be missing.

    pubsubctl simulate ges.fig7

Paper: [GES] §5, Fig. 7 (match rates; its numbers are lost).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from bench.run.experiment_folder import ExperimentFile, Row, write_experiment
from bench.spec.spec import load_topology
from brokerd.overlay.topology import Topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.wire.attributes import encode_attributes

SCHEMA = "pubsubctl/transmission-experiment/1"
PUBLISHER = "publisher"
ALWAYS = "measuring"
EACH_CLIENT = "each client"

Percent = Annotated[int, Field(ge=0, le=100, strict=True)]


class TransmissionExperiment(ExperimentFile):
    """What is counted on which hierarchies, closed: the file says it all.

    Attributes:
        publisher: the broker of the client that publishes.
        measuring: the broker of a subscriber that everything is for.
        clients: subscribers at each broker but these two.
        match_percent: of so many of the publications are for each, drawn by chance.
        interests: drawn for each client, or alike for all clients of one broker.
        publications: per point.
    """

    schema_: Annotated[Literal["pubsubctl/transmission-experiment/1"], Field(alias="schema")]
    topologies: Annotated[list[str], Field(min_length=1)]
    publisher: str
    measuring: str
    clients: Annotated[int, Field(ge=1, le=6, strict=True)]
    match_percent: Annotated[list[Percent], Field(min_length=1)]
    interests: Annotated[list[Literal["each client", "each broker"]], Field(min_length=1)]
    publications: Annotated[int, Field(ge=1, le=100_000, strict=True)]


class Progress(Protocol):
    """Whom to tell how far it has come."""

    def phase(self, name: str, expected_s: float | None = None) -> None:
        """A new phase begins."""


def run_transmission_experiment(
    experiment: TransmissionExperiment,
    runs: Path,
    progress: Progress,
    labels: Mapping[str, str] | None = None,
) -> Path:
    """Carry out an experiment; the same experiment gives the same rows.

    Args:
        runs: where run folders lie.

    Returns:
        The new run's folder.
    """
    topologies = {name: load_topology(name) for name in experiment.topologies}
    return write_experiment(
        experiment,
        runs,
        "simulation",
        "ges",
        {
            "brokers": min(len(each.brokers) for each in topologies.values()),
            "clients": experiment.clients,
            "publications": experiment.publications,
        },
        labels,
        topologies,
        lambda: {"transmissions": _rows(experiment, topologies, progress)},
    )


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
    """A hierarchy of brokers and its clients, who are all known everywhere."""

    def __init__(self, experiment: TransmissionExperiment, topology: Topology) -> None:
        self._experiment = experiment
        self._topology = topology
        self._random = Random(f"{experiment.seed}/{topology.name}")
        self._others = [
            broker
            for broker in topology.brokers
            if broker not in (experiment.publisher, experiment.measuring)
        ]
        self.cluster = SimulatedCluster(
            topology, "ges", seed=experiment.seed, strict=False, trace=False
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
        """What one share of interested clients costs, per publication."""
        before, deliveries = self.cluster.statistics(), self.cluster.oracle.deliveries
        violations = sum(self.cluster.oracle.violations.values())
        owed = reached = 0
        for wanted in self._draw(interest, match_percent):
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

    def _draw(self, interest: str, match_percent: int) -> list[dict[str, int]]:
        """Of each publication, per broker with such, for which of its clients it is, as bits.

        Each client gets just the share: what is left to chance is with whom it shares one.
        """
        count, clients = self._experiment.publications, self._experiment.clients
        shares = range(clients) if interest == EACH_CLIENT else range(1)
        everybody = (1 << clients) - 1
        drawn: list[dict[str, int]] = [{} for _ in range(count)]
        for broker in self._others:
            for bit in shares:
                bits = 1 << bit if interest == EACH_CLIENT else everybody
                for place in self._random.sample(range(count), count * match_percent // 100):
                    drawn[place][broker] = drawn[place].get(broker, 0) | bits
        return drawn
