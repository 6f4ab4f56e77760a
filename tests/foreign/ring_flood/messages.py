"""Messages between brokers of the ring."""

from dataclasses import dataclass

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun


@dataclass(frozen=True, slots=True)
class Flooded:
    """Publications on the sender's disk, the next ones of their source."""

    run: PublicationRun


@dataclass(frozen=True, slots=True)
class StoredThrough:
    """A report that all publications of the sources, up to the positions, are on disk.

    The first message of a session is this report; only later messages are worth sending.
    """

    through: tuple[tuple[SourceId, int], ...]
