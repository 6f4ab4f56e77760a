"""The campaign: named settings of the swarm, each with its tolerated failures.

Links may fail in any number without breaking safety. Brokers may, too, if every confirmed
subscription is on disk. Otherwise δ limits the number of failed elements. The settings and the
numbers of runs are those of the design's prototype; half of the seeds of each run in either layer.

    pubsubctl simulate campaign

Paper: [DFT11] abstract, §II.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from brokerd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the campaign.

    Attributes:
        chain: all brokers on one path, otherwise random trees.
        links_at_once: maximum number of failed links.
        elements_at_once: maximum number of failed brokers and links together; 0 if no broker fails.
        persist_routing: the parameter of this name, if the protocol has it.
        runs: seeds 0 … runs - 1 are a full run.
        bound: the promises hold in this row; the one row without promises must fail.
        minutes: length of a run on a clock; 0: seconds, and half of the seeds without a clock.
    """

    delta: int
    brokers: int
    links_at_once: int
    runs: int
    elements_at_once: int = 0
    chain: bool = False
    persist_routing: bool = True
    bound: bool = True
    minutes: int = 0

    def describe(self) -> str:
        """Return the description of the row, in half a line."""
        shape = "a line" if self.chain else "trees"
        failing = f"{self.links_at_once} links down"
        if self.elements_at_once:
            tables = "on disk" if self.persist_routing else "volatile"
            failing = f"{self.elements_at_once} brokers or links failed, routing tables {tables}"
        outside = "" if self.bound else "; not promised"
        length = f", {self.minutes // 60} hours" if self.minutes else ""
        return f"δ = {self.delta}, {shape} of {self.brokers}, {failing}{length}{outside}"


CAMPAIGN: dict[str, Setting] = {
    "links": Setting(delta=1, brokers=8, links_at_once=1, runs=1_500),
    "links-beyond": Setting(delta=1, brokers=8, links_at_once=3, runs=2_500),
    "links-beyond-chain": Setting(delta=1, brokers=7, links_at_once=3, chain=True, runs=500),
    "links-beyond-delta2": Setting(delta=2, brokers=9, links_at_once=4, runs=1_200),
    "crashes-volatile": Setting(
        delta=1, brokers=7, links_at_once=1, elements_at_once=1, persist_routing=False, runs=1_200
    ),
    "crashes-delta2": Setting(delta=2, brokers=9, links_at_once=2, elements_at_once=2, runs=500),
    "crashes-beyond": Setting(delta=1, brokers=8, links_at_once=3, elements_at_once=3, runs=600),
    "crashes-beyond-volatile": Setting(
        delta=1,
        brokers=8,
        links_at_once=3,
        elements_at_once=3,
        persist_routing=False,
        bound=False,
        runs=400,
    ),
}


LASTING: dict[str, Setting] = {
    "ten-hours": Setting(
        delta=1, brokers=8, links_at_once=3, elements_at_once=1, minutes=600, runs=1
    ),
}
"""Rows for effects that need hundreds of restarts, ends and partitions: growth."""

ROWS = CAMPAIGN | LASTING


def find_setting(name: str) -> Setting:
    """Return the row with a name.

    Raises:
        ConfigError: no row has this name; names the nearest.
    """
    if name not in ROWS:
        near = get_close_matches(name, ROWS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"campaign row {name!r}; one of {', '.join(ROWS)}{hint}")
    return ROWS[name]
