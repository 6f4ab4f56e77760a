"""The wall clocks of simulated brokers: they may show anything, and be put right in between."""

from random import Random

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Instant
from brokerd.units import SECOND_NS

_EARLIEST_S = 0
_LATEST_S = 4_000_000_000
_LARGEST_STEP_NS = 3_600 * SECOND_NS


class WallClocks:
    """Each clock starts anywhere; between two incarnations it may step, also back.

    They draw from a stream of their own, so that nothing else depends on them.
    """

    def __init__(self, seed: object) -> None:
        self._random = Random(f"wall clocks {seed}")
        self._ahead_ns: dict[BrokerNumber, int] = {}

    def at_start(self, broker: BrokerNumber, now_ns: Instant) -> int:
        """What a broker's clock shows as a new incarnation of it starts; nanoseconds."""
        ahead_ns = self._ahead_ns.get(broker)
        if ahead_ns is None:
            ahead_ns = self._random.randint(_EARLIEST_S, _LATEST_S) * SECOND_NS
        elif self._random.random() < 0.5:
            ahead_ns += self._random.randint(-_LARGEST_STEP_NS, _LARGEST_STEP_NS)
        self._ahead_ns[broker] = ahead_ns
        return max(0, ahead_ns + now_ns)
