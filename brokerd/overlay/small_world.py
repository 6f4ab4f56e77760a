"""Small-world figures of a graph of brokers.

Paper: [GES] §2 (high clustering coefficients, path lengths that grow with the logarithm).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """Figures of a connected graph; 0 if there is nothing to count.

    Attributes:
        mean_degree: links of a broker.
        clustering: share of the pairs of a broker's neighbours that are linked; the mean over all
            brokers, where brokers with fewer than two neighbours count as 0.
        mean_path_links: links between two brokers on a shortest path, over all pairs.
        longest_path_links: links between the two brokers that are farthest apart.
    """

    mean_degree: float
    clustering: float
    mean_path_links: float
    longest_path_links: int


def small_world(brokers: int, links: Iterable[Link]) -> SmallWorld:
    """Return the figures of a connected graph of the brokers numbered below `brokers`."""
    near: list[dict[BrokerNumber, None]] = [{} for _ in range(brokers)]
    for a, b in links:
        near[a][b] = None
        near[b][a] = None
    mean_path, longest = _paths(near)
    return SmallWorld(
        mean_degree=sum(map(len, near)) / brokers,
        clustering=sum(_compute_clustering(near, broker) for broker in range(brokers)) / brokers,
        mean_path_links=mean_path,
        longest_path_links=longest,
    )


def _compute_clustering(near: list[dict[BrokerNumber, None]], broker: BrokerNumber) -> float:
    pairs = [*combinations(near[broker], 2)]
    return sum(b in near[a] for a, b in pairs) / len(pairs) if pairs else 0.0


def _paths(near: list[dict[BrokerNumber, None]]) -> tuple[float, int]:
    """Return mean and longest shortest path.

    All brokers advance by one link at a time, as bit sets.
    """
    reached = [1 << broker for broker in range(len(near))]
    known, walked, total = len(near), 0, 0
    while True:
        further = []
        for broker, others in enumerate(near):
            more = reached[broker]
            for other in others:
                more |= reached[other]
            further.append(more)
        now = sum(more.bit_count() for more in further)
        if now == known:
            break
        walked += 1
        total += walked * (now - known)
        known, reached = now, further
    pairs = len(near) * (len(near) - 1)
    return (total / pairs if pairs else 0.0), walked
