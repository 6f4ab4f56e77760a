"""Ablations: protocols with one rule left out.

A swarm without a violation is evidence only if the swarm finds a violation once a rule is left out.
Each ablation names its bugs and the place of the search: the mix of the swarm, or the row of the
campaign with the faults that need the rule most often.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """A way to break the protocol.

    Attributes:
        mutants: named bugs of every broker.
        row: row of the campaign; "" for the mix.
        settings: parameters of the protocol, as `name=value`.
        moves: clients move, and brokers join and depart.
        unseen: reason why no swarm finds the bugs; "" if a swarm must find them.
    """

    mutants: tuple[str, ...] = ()
    row: str = ""
    settings: tuple[str, ...] = ()
    moves: bool = False
    unseen: str = ""
