"""Ablations: what happens when one rule of a protocol is left out.

A swarm that finds nothing in a protocol has shown something only if it finds what is wrong
without a rule. Each ablation names its bugs and where to look: the mix of the swarm, or the row of
the campaign whose faults ask for the rule most often.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One way to break the protocol.

    Attributes:
        mutants: named bugs that every broker has.
        row: of the campaign; "" for the mix.
        settings: parameters of the protocol, as `name=value`.
        moves: clients move, and brokers join and depart.
        unseen: why no swarm sees it; "" where one must.
    """

    mutants: tuple[str, ...] = ()
    row: str = ""
    settings: tuple[str, ...] = ()
    moves: bool = False
    unseen: str = ""
