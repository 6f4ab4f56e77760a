"""Run folders in which one file lies, and the files that contradict the lie.

Each lie changes one file of a real run (`tests/results/witnessed_run`) and seals the folder again.
The run has two publishers at c1 and two subscribers at c3; c3-sub-2 is disconnected for a while, c3
is frozen, c2 absorbs, is killed and restarted.
"""

from tests.helpers.false_witnesses import (
    applications,
    brokers,
    causes,
    clients,
    fault_logs,
    folders,
    load_generators,
    manifests,
    process_ends,
    records,
    schemas,
    values,
)
from tests.helpers.false_witnesses.lies import (
    ABSORB,
    AWAY,
    FREEZE,
    LIES,
    SUBSCRIBERS,
    journal_change,
    renew_digests,
)

KINDS = (
    applications,
    brokers,
    causes,
    clients,
    fault_logs,
    folders,
    load_generators,
    manifests,
    process_ends,
    records,
    schemas,
    values,
)

__all__ = (
    "ABSORB",
    "AWAY",
    "FREEZE",
    "KINDS",
    "LIES",
    "SUBSCRIBERS",
    "journal_change",
    "renew_digests",
)
