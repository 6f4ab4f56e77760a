"""The topologies and parameters that simulated seeds draw for durable."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, Final

from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.durable.parameters import LEAST_LEASE_NS, DurableParameters
from brokerd.protocols.gryphon.checks.planning import GryphonPlanning
from brokerd.simulator.checks.marks import ABSENT_CLIENT_REMOVED, RESTORED_THEN_REMOVED
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.units import MILLISECOND_NS, SECOND_NS

_LINKS_A_FETCH: Final = 5
"""Between the two brokers of a drawn tree that are farthest apart."""

_LEASES_NS: Final = (NEVER_NS, NEVER_NS, LEAST_LEASE_NS, 4 * SECOND_NS)
"""Of holds: a lease that is shorter than a client may be away allows gaps."""

_STORES_BYTES: Final = (0, 0, 600, 3_000, 16 << 20)
"""Of passed events: none, a few events, and all."""

_POLICIES: Final = tuple(
    RetentionPolicy.parse(each, "drawn")
    for each in ("never", "age=20ms", "age=100ms", "age=500ms", "bytes=200B", "age=1s,bytes=1000B")
)
"""Policies of pubends: immediate release, later release, and none."""

BEFORE_POLICIES: Final = 200
"""The last seed whose history is older than policies of single pubends."""

_EVENTS_A_COMMIT: Final = 4
"""The average number of events in a consumer's commit, at least."""


FILTERED: Final = 1 / 3
"""Share of the seeds with filters between brokers."""


class DurablePlanning(GryphonPlanning):
    """See ProtocolPlanning."""

    compounds: ClassVar[Mapping[str, int]] = {
        RESTORED_THEN_REMOVED: 600,
        ABSENT_CLIENT_REMOVED: 400,
    }
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GryphonPlanning.rare,
        "catchup_watch_ns": (20 * MILLISECOND_NS, 200 * MILLISECOND_NS),
        "fetched_limit_bytes": (1, 500),
    }
    fixed: ClassVar[Mapping[str, str]] = {
        "order": "total order is refused",
        "silence_percent": "refused without total order",
    }

    def options(self, seed: int, parameters: Any, *, long: bool, simple: bool) -> Any:
        """See ProtocolPlanning: small batches, so that a few events make several.

        Tokens mostly have one lane and large batches: else few would share a transaction.
        """
        chosen = super().options(seed, parameters, long=long, simple=simple)
        random = Random(f"durable {seed}")
        early = Random(f"early release {seed}")
        tokens = Random(f"tokens {seed}")
        filters = Random(f"filters of durable {seed}")
        is_filtered, delay_ns = filters.random() < FILTERED, chosen.delay_curiosity_ns
        if is_filtered and not delay_ns:
            delay_ns = SECOND_NS if long else filters.choice((100, 300)) * MILLISECOND_NS
        options: DurableParameters = replace(
            chosen,
            order="publisher",
            silence_percent=0,
            filters=is_filtered,
            delay_curiosity_ns=delay_ns,
            hold_lease_ns=Random(f"hold {seed}").choice(_LEASES_NS),
            token_lanes=tokens.choice((1, 1, 1, 4)),
            token_batch=tokens.choice((0, 0, 0, 0, 0, 1, 2, 2)),
            passed_limit_bytes=Random(f"store {seed}").choice(_STORES_BYTES),
        )
        if long:
            return options
        retention = ""
        if seed > BEFORE_POLICIES and (drawn := Random(f"retention {seed}")).random() < 1 / 3:
            numbers = sorted(
                drawn.sample(range(options.pubends), drawn.randint(1, options.pubends))
            )
            retention = ";".join(f"{each}:{drawn.choice(_POLICIES)}" for each in numbers)
        return replace(
            options,
            retention=retention,
            commit_interval_ns=random.choice((2, 20, 100)) * MILLISECOND_NS,
            silence_interval_ns=random.choice((20, 100)) * MILLISECOND_NS,
            catchup_batch=random.choice((16, 40, 5_000)),
            live_limit=random.choice((20, 16_384)),
            catchup_window=random.choice((1, 30, 20_000)),
            max_retain_ns=early.choice((0, 60, 200, 500)) * MILLISECOND_NS,
            release_grace_ns=early.choice((0, 100)) * MILLISECOND_NS,
            max_retain_bytes=early.choice((0, 0, 0, 200, 1_000)),
        )

    def policies(self, random: Random) -> Sequence[RetentionPolicy | None]:
        """See ProtocolPlanning: in two thirds of the plans, shorter and longer policies."""
        changes = random.choice((0, 0, 1, 2, 4, 8))
        return [random.choice((None, *_POLICIES)) for _ in range(changes)]

    def trial(self, random: Random, values: Mapping[str, Any], delta: int) -> Any:
        """See ProtocolPlanning: without a clock, no lease may end."""
        chosen: DurableParameters = super().trial(random, values, delta)
        return replace(chosen, hold_lease_ns=NEVER_NS)

    def turns(self, parameters: Any, publications: int) -> int:
        """See ProtocolPlanning: a client that has missed everything fetches batch by batch.

        A batch is requested and answered over all links; a consumer has each part of it committed
        before taking the next.
        """
        chosen: DurableParameters = parameters
        most = min(chosen.catchup_batch, chosen.live_limit)
        commits = -(-most // _EVENTS_A_COMMIT)
        return publications // most * 2 * (_LINKS_A_FETCH + commits)

    def announce_within_ns(self, parameters: Any) -> int:
        """See ProtocolPlanning: two rounds of silence announcements and commits."""
        chosen: DurableParameters = parameters
        return 2 * (chosen.silence_interval_ns + chosen.commit_interval_ns)

    def discovery_ns(self, parameters: Any) -> int:
        """See ProtocolPlanning: missed events may be released first.

        A subscription that arrives is held, then released elsewhere, and then not held any more. A
        hold with an expired lease is requested again.
        """
        chosen: DurableParameters = parameters
        lease_ns = chosen.hold_lease_ns if chosen.hold_lease_ns < NEVER_NS else 0
        return (
            lease_ns
            + super().discovery_ns(parameters)
            + 4 * (chosen.commit_interval_ns + chosen.silence_interval_ns)
            + 3 * chosen.nack_repetition_limit_ns
        )
