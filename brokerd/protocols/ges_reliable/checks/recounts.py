"""Counters of ges_reliable, and their recounted values once all is at rest."""

from brokerd.protocols.ges_reliable.epochs import EpochLog
from brokerd.simulator.checks.recounts import Recount

RECOUNTS = (
    Recount(EpochLog, "in_flight", lambda log: log._in_flight, lambda *_: 0),
    Recount(EpochLog, "durable", lambda log: log.durable, lambda log, _: log.assigned),
    Recount(
        EpochLog,
        "retained_bytes",
        lambda log: log.retained_bytes,
        lambda log, _: sum(event.run.payload_bytes() for event in log._events),
    ),
)
