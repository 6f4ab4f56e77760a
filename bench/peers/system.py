"""The definition of a system under comparison: the start of its servers, and its clients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.client import Client

__all__ = ["Client", "ServerStart", "System"]


@dataclass(frozen=True)
class ServerStart:
    """A server's command, and its port on loopback for clients."""

    command: tuple[str, ...]
    port: int


@dataclass(frozen=True, kw_only=True)
class System:
    """A system in one configuration.

    Attributes:
        name: name in the table and behind `--systems`.
        promise: the system's promise of delivery.
        kept: the part of a publication on disk, in the measured configuration.
        package, program: Debian's package, and the program in the package.
        version_option: option that prints the version.
        window: greatest number of publications in flight from publisher to subscriber.
        batch: publications per write.
        largest_chain: greatest number of brokers in a row.
        start: starts of the servers of a chain (program, a folder per server, two free ports per
            server).
        client: creates the client of a subscriber, or of a publisher.
    """

    name: str
    promise: str
    kept: str
    package: str
    program: str
    version_option: str
    window: int
    batch: int
    largest_chain: int
    start: Callable[[str, Sequence[Path], Sequence[int]], list[ServerStart]]
    client: Callable[[bool], Client]
