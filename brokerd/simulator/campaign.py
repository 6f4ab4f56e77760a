"""The campaign: named settings of the swarm, each with the failures it must bear.

Links may fail in any number without breaking safety; brokers, too, where every confirmed
subscription is on disk. Without that, as many elements as δ allows.

Paper: [DFT11] abstract, §II.
"""

from dataclasses import dataclass
from difflib import get_close_matches

from brokerd.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the campaign.

    Attributes:
        chain: all brokers on one path, else random trees.
        links_at_once: how many links may be down together.
        elements_at_once: how many brokers and links together; 0 when no broker fails.
        persist_routing: see DeltaTreeParameters.
        bound: whether the promises hold here; the one row outside is there to be seen failing.
    """

    delta: int
    brokers: int
    links_at_once: int
    elements_at_once: int = 0
    chain: bool = False
    persist_routing: bool = True
    bound: bool = True


CAMPAIGN: dict[str, Setting] = {
    "links": Setting(delta=1, brokers=8, links_at_once=1),
    "links-beyond": Setting(delta=1, brokers=8, links_at_once=3),
    "links-beyond-chain": Setting(delta=1, brokers=7, links_at_once=3, chain=True),
    "links-beyond-delta2": Setting(delta=2, brokers=9, links_at_once=4),
    "crashes-volatile": Setting(
        delta=1, brokers=7, links_at_once=1, elements_at_once=1, persist_routing=False
    ),
    "crashes-delta2": Setting(delta=2, brokers=9, links_at_once=2, elements_at_once=2),
    "crashes-beyond": Setting(delta=1, brokers=8, links_at_once=3, elements_at_once=3),
    "crashes-beyond-volatile": Setting(
        delta=1,
        brokers=8,
        links_at_once=3,
        elements_at_once=3,
        persist_routing=False,
        bound=False,
    ),
}


def setting(name: str) -> Setting:
    """The row called so.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    if name not in CAMPAIGN:
        near = get_close_matches(name, CAMPAIGN, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"campaign row {name!r}; one of {', '.join(CAMPAIGN)}{hint}")
    return CAMPAIGN[name]
