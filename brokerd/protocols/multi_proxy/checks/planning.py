"""The topologies and parameters that simulated seeds draw for multi_proxy."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.multi_proxy.parameters import (
    ARBITER,
    CAUSAL,
    RENDEZVOUS,
    MultiProxyParameters,
)
from brokerd.simulator.checks.marks import ABSENT_CLIENT_REMOVED, RESTORED_THEN_REMOVED
from brokerd.simulator.checks.planning import CLIENT_LIMITS, ProtocolPlanning
from brokerd.units import MILLISECOND_NS

_SHARED: Final = 0.4
"""The share of seeds in which two servers may own a topic until that is detected."""

_MOVING: Final = 0.6
"""The share of seeds with arbiters in which topics move."""

BEFORE_PATIENCE: Final = 200
"""The last seed whose history is older than Gets that wait for publications without a limit."""

_PATIENT: Final = 0.5
"""The share of later seeds with such Gets."""

_LONG_WAIT_NS: Final = 500 * MILLISECOND_NS
"""The wait of other Gets in long runs."""

_SENT_AGAIN_NS: Final = 50 * MILLISECOND_NS
"""The least wait before an unconfirmed transfer is repeated."""

_GETS_A_TURN: Final = 2
"""The first is answered with the first publication, the second one with the rest."""

_LINKS_A_GET: Final = 4
"""Over a proxy to the server and back."""


class MultiProxyPlanning(ProtocolPlanning):
    """See ProtocolPlanning."""

    kept = (*ProtocolPlanning.kept, "ownership", "topic_attribute", "apart_attribute", "topics")
    compounds: ClassVar[Mapping[str, int]] = {
        RESTORED_THEN_REMOVED: 1000,
        ABSENT_CLIENT_REMOVED: 600,
    }
    draws_restored: ClassVar[bool] = True
    stores_elsewhere: ClassVar[bool] = True
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **CLIENT_LIMITS,
        "topic_attribute": ("price",),
        "apart_attribute": ("",),
    }

    def topology(self, random: Random) -> Topology:
        """See ProtocolPlanning: one to three proxies and servers, edges or none.

        Mostly several servers: only there does a topic's owner have to be found.
        """
        sides = {
            "proxies": random.choice((1, 2, 2, 3)),
            "servers": random.choice((1, 2, 2, 3, 3, 3)),
            "edges": random.randrange(0, 4),
        }
        names = [f"b{number}" for number in range(1, sum(sides.values()) + 1)]
        random.shuffle(names)
        left = iter(names)
        section = {side: [next(left) for _ in range(count)] for side, count in sides.items()}
        section = {side: members for side, members in section.items() if members}
        return Topology.from_mapping(
            {
                "schema": SCHEMA,
                "name": "proxies",
                "kind": "bipartite",
                "bipartite": section,
                "brokers": sorted(names),
            },
            "proxies",
        )

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """See ProtocolPlanning: few topics, and answers of a few publications."""
        random, early = Random(f"multi_proxy {seed}"), Random(f"early release {seed}")
        chosen: MultiProxyParameters = replace(
            parameters,
            topic_attribute="kind",
            topics=random.choice((1, 3, 8, 8)),
            ownership=random.choice((ARBITER, ARBITER, ARBITER, RENDEZVOUS)),
            assign_retry_ns=random.choice((5, 50, 400)) * MILLISECOND_NS,
        )
        shared = Random(f"causal {seed}")
        if shared.random() < _SHARED:
            period_ns = shared.choice((100, 400, 1_600)) * MILLISECOND_NS
            # What is sent again there is all of a topic.
            retry_ns = max(chosen.assign_retry_ns, _SENT_AGAIN_NS)
            chosen = replace(
                chosen, ownership=CAUSAL, period_ns=period_ns, assign_retry_ns=retry_ns
            )
        moving = Random(f"spread {seed}")
        if chosen.ownership == ARBITER and moving.random() < _MOVING:
            period_ns = moving.choice((100, 400, 1_600)) * MILLISECOND_NS
            spread_topics = moving.choice((2, 2, 3))
            chosen = replace(chosen, period_ns=period_ns, spread_topics=spread_topics)
        is_patient = seed > BEFORE_PATIENCE and Random(f"patient gets {seed}").random() < _PATIENT
        if long:
            return replace(chosen, get_wait_ns=0 if is_patient else _LONG_WAIT_NS)
        max_retain_ns = early.choice((0, 0, 200, 600)) * MILLISECOND_NS
        timeout_ns = random.choice((40, 150)) * MILLISECOND_NS
        get_wait_ns = random.choice((20, 200)) * MILLISECOND_NS
        return replace(
            chosen,
            timeout_ns=timeout_ns,
            get_wait_ns=0 if is_patient else get_wait_ns,
            get_publications=random.choice((50, 4_096)),
            home_window=random.choice((64, 16_384)),
            topic_window=random.choice((8, 64, 16_384)),
            patience_ns=random.choice((100, 2_000)) * MILLISECOND_NS,
            max_retain_ns=max_retain_ns,
            max_retain_bytes=0 if max_retain_ns else early.choice((0, 0, 1_000, 4_000)),
        )

    def trial(self, random: Random, values: Mapping[str, Any], delta: int) -> Any:
        chosen = super().trial(random, values, delta)
        return replace(chosen, topic_attribute="kind", topics=3)

    def turns(self, parameters: Any, publications: int) -> int:
        """See ProtocolPlanning: all publications may be in one topic, fetched in parts."""
        chosen: MultiProxyParameters = parameters
        at_once = min(chosen.topic_window + 1, chosen.get_publications, chosen.home_window)
        return publications // at_once * _GETS_A_TURN * _LINKS_A_GET

    def discovery_ns(self, parameters: Any) -> int:
        """See ProtocolPlanning: requests to a silent server are repeated over another proxy.

        Positions of topics with two owners are released once each server has announced the
        other's.
        """
        chosen: MultiProxyParameters = parameters
        requested_ns = 4 * (chosen.timeout_ns + chosen.get_wait_ns + chosen.retry_limit_ns)
        is_moving = chosen.ownership == CAUSAL or chosen.spread_topics > 0
        return requested_ns + 2 * chosen.period_ns * is_moving
