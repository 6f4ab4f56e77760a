"""What a seed sets: parameters of the protocol, of sessions and of the network."""

from dataclasses import replace
from random import Random
from typing import Any

from brokerd.config import SessionParameters
from brokerd.protocols.delta_tree.mutants import Mutant
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.search.campaign import Setting
from brokerd.simulator.world.clock import MILLISECOND_NS, SECOND_NS
from brokerd.simulator.world.network import NetworkParameters

NEVER_NS = 1_000_000 * SECOND_NS
"""A timer that is set to this does not come in any seed."""

_NEEDED: dict[str, dict[str, Any]] = {
    Mutant.SHORT_VECTORS: {"dedupe": "vector", "legitimacy": "hold"},
    Mutant.HOLD_OUT_OF_ORDER: {"legitimacy": "hold", "assist": "off"},
    Mutant.DRAIN_COMPARES_PEERS: {"switch": "drain"},
}
"""Bugs in what is off by default. It may wait for a link, so none stays broken."""


def draw_parameters(
    random: Random, delta: int, long: bool, setting: Setting | None
) -> tuple[DeltaTreeParameters, NetworkParameters]:
    quick = random.random() < 0.8 and not long
    parameters = DeltaTreeParameters(
        delta=delta,
        assist="off",
        retry_first_ns=(100 if quick else 500) * MILLISECOND_NS,
        retry_limit_ns=(800 if quick else 5_000) * MILLISECOND_NS,
        client_linger_ns=NEVER_NS,
        cold_start_after_ns=NEVER_NS,
        client_window=random.choice((16, 256, 16_384)),
        persist_routing=setting is None or setting.persist_routing,
        audit_interval_ns=(1 if quick else 5) * SECOND_NS,
    )
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


def draw_timers(random: Random, parameters: DeltaTreeParameters, long: bool) -> DeltaTreeParameters:
    """When a broker does by itself what its peers should have made it do long before.

    In a third of the seeds no audit comes: it would heal what others have left undone. Who is
    away for good is never given up in another third.
    """
    lingers = (10, 60) if long else (1, 3)
    without_audit = random.random() < 1 / 3
    return replace(
        parameters,
        audit_interval_ns=NEVER_NS if without_audit else parameters.audit_interval_ns,
        cold_start_after_ns=random.choice((1, 4, 30)) * SECOND_NS,
        client_linger_ns=random.choice((NEVER_NS, *(length * SECOND_NS for length in lingers))),
    )


def draw_limits(random: Random, parameters: DeltaTreeParameters) -> DeltaTreeParameters:
    """How much of something there may be before a broker says so, or refuses more."""
    if random.random() < 0.3:
        parameters = replace(parameters, queue_limit=random.choice((3, 20)))
    if random.random() < 0.2:
        parameters = replace(parameters, client_subscriptions=random.choice((1, 2, 3)))
    return parameters


def draw_wire(
    random: Random, network: NetworkParameters
) -> tuple[NetworkParameters, tuple[int, ...]]:
    """More messages through the wire's codec, some of them in small frames; sizes of payloads.

    One publication must fit a frame with all that goes with it.
    """
    if not network.encode and random.random() < 0.75:
        return network, ()
    network = replace(network, encode=True)
    if random.random() < 0.4:
        return network, ()
    limit, sizes = random.choice(((700, (0, 8, 250)), (2_000, (3, 40, 400, 1_200))))
    session = replace(network.session, frame_limit_bytes=limit)
    return replace(network, session=session), sizes


def needed_by(mutants: frozenset[str]) -> dict[str, Any]:
    needed: dict[str, Any] = {}
    for mutant in sorted(mutants):
        needed.update(_NEEDED.get(mutant, {}))
    return needed


def draw_options(
    random: Random, parameters: DeltaTreeParameters, simple: bool
) -> DeltaTreeParameters:
    """Parts of the protocol that may be on or off; they leave the rest of the plan as it is.

    A simple plan has no relayed sessions.
    """
    return replace(
        parameters,
        publication_log=random.random() < 0.2,
        assist="off" if simple or random.random() < 0.1 else "on",
    )


def draw_waiting_options(random: Random, parameters: DeltaTreeParameters) -> DeltaTreeParameters:
    """Parts with which something may wait for a link, and for ever where it stays broken.

    Vectors beside sources tell the same duplicates only where propagation is legitimate.
    """
    if random.random() < 0.25:
        parameters = replace(parameters, dedupe="both", legitimacy="hold")
    if random.random() < 0.15:
        parameters = replace(parameters, switch="drain")
    return parameters
