"""The draft of a plan: its settings, the moves drawn so far, and values of other kinds."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from brokerd.config import SessionParameters
from brokerd.model.predicate import Scalar
from brokerd.model.predicate_text import predicate_value
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.topology import Topology
from brokerd.simulator.search.campaign import Setting
from brokerd.simulator.search.client_moves import PublicationRun, SubscriptionRequest
from brokerd.simulator.search.move import Move
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.simulator.world.faults import Link
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS, SECOND_NS

LETTERS: Final = "abcd"
ALIKE: Final[tuple[tuple[Scalar, ...], ...]] = (
    (True, "1", False, 1),
    (1, "True", 0, True),
    (0, "0", "", False),
    (False, "False", True, 0),
    ("1", True, "true", 1),
    (1 << 53, "9007199254740992", True, (1 << 53) + 1),
)
"""Values in place of each letter. Predicates test the first and the last value alone."""

_LETTER: Final = re.compile(r"'([abcd])'")


@dataclass(slots=True)
class Draft:
    """The choices before the moves.

    `flaps`: sessions break all the time under many new subscriptions, and nothing else fails; the
    start of a subscription's owed publications is then tested most often. `homes`: the possible
    brokers of clients. `tolerated`: number of simultaneous failures that the protocol promises to
    tolerate. `minutes`: length with the timeouts of a deployment, and lasting faults; 0: seconds.
    """

    random: Random
    topology: Topology
    graph: OverlayGraph
    homes: tuple[str, ...]
    adversarial: bool
    flaps: bool
    minutes: int
    tolerated: int
    failures_at_once: int
    links_at_once: int
    keeps_old_messages: bool
    publishers: list[str]
    moves: list[Move] = field(default_factory=list)
    clients: dict[str, int] = field(default_factory=dict)
    failing: list[tuple[int, int | Link]] = field(default_factory=list)

    @property
    def long(self) -> bool:
        """True if the plan lasts for minutes."""
        return self.minutes > 0

    @property
    def hours(self) -> bool:
        """True if the plan lasts for hours; no optional part is then left out."""
        return self.minutes > 60


def draw_alike(random: Random, moves: Iterable[Move]) -> list[Move]:
    """Return the moves with values that are alike across kinds, in half of the plans."""
    if random.random() < 0.5:
        return [*moves]
    values = dict(zip(LETTERS, random.choice(ALIKE), strict=True))

    def drawn(letter: Scalar) -> Scalar:
        value = values[str(letter)]
        is_number = type(value) in (int, float)
        # Integers and floats compare as numbers: 1 and 1.0 are one value.
        return (
            float(value) if is_number and float(value) == value and random.random() < 0.3 else value
        )

    def changed(move: Move) -> Move:
        if type(move) is PublicationRun:
            contents = [replace(each, kind=drawn(each.kind)) for each in move.contents]
            return replace(move, contents=tuple(contents))
        if type(move) is SubscriptionRequest:
            predicate = _LETTER.sub(lambda found: predicate_value(drawn(found[1])), move.predicate)
            return replace(move, predicate=predicate)
        return move

    return [changed(move) for move in moves]


def draw_parameters(
    random: Random, long: bool, setting: Setting | None
) -> tuple[dict[str, Any], NetworkParameters]:
    """Draw values of parameters, for any protocol, and the network."""
    quick = random.random() < 0.8 and not long
    parameters = {
        "assist": "off",
        "retry_first_ns": (100 if quick else 500) * MILLISECOND_NS,
        "retry_limit_ns": (800 if quick else 5_000) * MILLISECOND_NS,
        "client_linger_ns": NEVER_NS,
        "cold_start_after_ns": NEVER_NS,
        "client_window": random.choice((16, 256, 16_384)),
        "persist_routing": setting is None or setting.persist_routing,
        "audit_interval_ns": (1 if quick else 5) * SECOND_NS,
    }
    session = SessionParameters(
        heartbeat_ns=(80 if quick else 250) * MILLISECOND_NS,
        suspicion_ns=(250 if quick else 750) * MILLISECOND_NS,
        connect_timeout_ns=(300 if quick else 2_000) * MILLISECOND_NS,
    )
    network = NetworkParameters(
        latency_lowest_ns=100_000,
        latency_highest_ns=random.choice((2, 20, 60)) * MILLISECOND_NS,
        jitter_ns=random.choice((1, 10_000_000)),
        keep_old_messages=random.random() < 0.3,
        encode=random.random() < 0.15,
        session=session,
    )
    return parameters, network


def draw_wire(
    random: Random, network: NetworkParameters
) -> tuple[NetworkParameters, tuple[int, ...]]:
    """Draw more use of the codec, with some small frames; return the network and sizes of payloads.

    A frame must have room for one publication with all its context.
    """
    if not network.encode and random.random() < 0.75:
        return network, ()
    network = replace(network, encode=True)
    if random.random() < 0.4:
        return network, ()
    limit, sizes = random.choice(((700, (0, 8, 250)), (2_000, (3, 40, 400, 1_200))))
    session = replace(network.session, frame_limit_bytes=limit)
    return replace(network, session=session), sizes
