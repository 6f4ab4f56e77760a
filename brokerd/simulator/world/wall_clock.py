"""The wall clocks of simulated brokers, with any time, and corrections between incarnations."""

from random import Random

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Instant
from brokerd.units import SECOND_NS

_EARLIEST_S = 0
_LATEST_S = 4_000_000_000
_LARGEST_STEP_NS = 3_600 * SECOND_NS


class WallClocks:
    """Clocks with any start; between two incarnations a clock may step, also backwards.

    The clocks draw from a random stream of their own, so that no other choice depends on them.
    """

    def __init__(self, seed: object) -> None:
        self._random = Random(f"wall clocks {seed}")
        self._ahead_ns: dict[BrokerNumber, int] = {}
        self._most_ns: dict[BrokerNumber, int] = {}

    def set_ahead(self, broker: BrokerNumber) -> None:
        """Set a broker's clock ahead of all earlier times of all brokers, and of assigned ticks.

        The acceptance of a loss includes a check of the clock. A broker whose clock is behind the
        lost events would assign the same ticks again. In total order a broker assigns ticks that
        are as high as those of the broker with the fastest clock.
        """
        self._ahead_ns[broker] = max(self._most_ns.values(), default=0) + 2 * _LARGEST_STEP_NS

    def at_start(self, broker: BrokerNumber, now_ns: Instant) -> int:
        """Return the time of a broker's clock at the start of an incarnation, in nanoseconds."""
        ahead_ns = self._ahead_ns.get(broker)
        if ahead_ns is None:
            ahead_ns = self._random.randint(_EARLIEST_S, _LATEST_S) * SECOND_NS
        elif self._random.random() < 0.5:
            ahead_ns += self._random.randint(-_LARGEST_STEP_NS, _LARGEST_STEP_NS)
        self._ahead_ns[broker] = ahead_ns
        self._most_ns[broker] = max(ahead_ns, self._most_ns.get(broker, 0))
        return max(0, ahead_ns + now_ns)
