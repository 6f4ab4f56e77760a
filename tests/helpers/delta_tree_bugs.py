"""Named bugs of delta_tree, as constants with descriptive names."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from brokerd.simulator.named_bugs import bugs_of, plant


class Mutant(StrEnum):
    """Names of the named bugs of delta_tree, those of the design's tables if listed there."""

    START_BEFORE_CONFIRMED = "M14"
    NO_UPSTREAM_COPY_ON_ACTIVATION = "M15"
    EDGE_FORGETS = "M20"
    CONFIRM_ON_RECEIPT = "M21"
    NO_RESEND_ON_ACTIVATION = "M22"
    RESEND_AFTER_NEWER = "M23"
    DROP_UNREACHABLE_DESTINATIONS = "M24"
    SUMMARY_MISSES_PENDING = "M25"
    RESTARTED_IS_EDGE = "M27"
    FULL_QUEUE_DROPS_OLDEST = "M38"
    HALF_A_FRAME = "M39"
    HEARTBEATS_IN_QUEUE = "M40"
    OLD_SESSION_FRAMES = "M41"
    CONFIRM_COVERS_PENDING = "confirm-covers-pending"
    NO_CUT = "no-cut"
    NO_UPSTREAM_COPY = "no-upstream-copy"
    NO_TAGS_UNREACHABLE_DONE = "no-tags"
    NO_LAST_IN_CUT = "no-last-in-cut"
    TAGS_DROPPED_FROM_CONFIRMATION = "M16"
    NOTIFIER_BEFORE_TABLES = "M26"
    NO_NOTIFIERS = "no-notifiers"
    TAGS_MAY_GROW = "tags-may-grow"
    RECEIVER_TAKES_ANY_TAGS = "receiver-takes-any-tags"
    HALF_AN_INTERSECTION = "half-an-intersection"
    ISLANDS_AS_BARRIERS = "islands-as-barriers"
    NEWCOMER_IS_COMPLETE = "newcomer-is-complete"
    NEWCOMERS_ARE_HEARD = "newcomers-count-as-tagged"
    ACKNOWLEDGED_BEFORE_DURABLE = "acknowledged-before-durable"
    LOG_RELEASED_ON_APPEND = "log-released-on-append"
    CLIENTS_BEFORE_LOG = "clients-before-log"
    RECOVERED_BEFORE_LOG = "recovered-before-log"
    EVERY_PARTITION_TAGGED = "every-partition-tagged"
    PARTITIONS_SPREAD_DELTA = "M17"
    GONE_EARLY = "gone-early"
    SHORT_VECTORS = "M19"
    HOLD_OUT_OF_ORDER = "hold-out-of-order"
    DRAIN_COMPARES_PEERS = "drain-compares-peers"
    NO_TOMBSTONES = "no-tombstones"
    TOMBSTONES_VOLATILE = "tombstones-volatile"
    NO_HOME_AUTHORITY = "no-home-authority"
    RELAYED_OUTLIVES_LEG = "relayed-outlives-leg"
    RELAY_RESUMES = "relay-resumes"
    SWITCHED_UNTOLD = "switch-is-not-announced"
    NO_LATERAL_SYNC = "no-lateral-sync"
    PENDING_NOT_REISSUED = "pending-not-reissued"
    SYNC_END_BEFORE_PENDING = "sync-end-before-pending"
    SYNC_END_FROM_INACTIVE = "sync-end-from-inactive"
    CONFIRMED_BEFORE_DURABLE = "confirmed-before-durable"
    NOTIFIER_DONE_BEFORE_DURABLE = "notifier-done-before-durable"
    ROWS_STAY_ON_DISK = "rows-stay-on-disk"
    RECOVERING_PUBLISHES = "recovering-publishes"
    MISSING_PUBLISHERS_IGNORED = "missing-publishers-ignored"
    MOVE_WITHOUT_MARK = "move-without-mark"
    MOVE_BEFORE_START = "move-before-start"
    MOVE_FORGETS_POSITIONS = "move-forgets-positions"
    TRANSIT_NOT_APPLIED = "transit-not-applied"
    ANSWER_FORGETS_CUT = "answer-forgets-cut"
    POSITION_GOES_BACK = "position-decreases"


NOT_SIMULATED: dict[str, str] = {
    Mutant.FULL_QUEUE_DROPS_OLDEST: "the queue between core and socket: tests/runtime",
    Mutant.HALF_A_FRAME: "the writer of a session: tests/runtime",
    Mutant.HEARTBEATS_IN_QUEUE: "the writer of a session: tests/runtime",
}
"""Bugs between core and socket, outside of the simulation."""


@contextmanager
def plant_mutants(mutants: Iterable[Mutant]) -> Iterator[None]:
    """Plant these bugs in this process for the duration of the context."""
    with plant([bugs_of("delta_tree")[mutant] for mutant in sorted(mutants)]):
        yield
