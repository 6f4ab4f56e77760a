"""What brokers of the ring say to each other."""

from dataclasses import dataclass

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun


@dataclass(frozen=True, slots=True)
class Flooded:
    """Publications that the sender has on disk, the next ones of their source."""

    run: PublicationRun


@dataclass(frozen=True, slots=True)
class StoredThrough:
    """All publications of these sources, up to these, are on the sender's disk.

    The first message of a session is one of them; only what follows it is worth sending.
    """

    through: tuple[tuple[SourceId, int], ...]
