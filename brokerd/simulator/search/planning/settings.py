"""Settings of a seed: parameters of the protocol, of sessions and of the network."""

from dataclasses import replace
from random import Random
from typing import Any

from brokerd.config import SessionParameters
from brokerd.simulator.search.campaign import Setting
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.simulator.world.network import NetworkParameters
from brokerd.units import MILLISECOND_NS, SECOND_NS


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
