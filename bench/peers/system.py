"""What a system under comparison is: how its servers are started, and what its clients say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.client import Client

__all__ = ["Client", "ServerStart", "System"]


@dataclass(frozen=True)
class ServerStart:
    """One server: its command, and the port on loopback that clients reach it at."""

    command: tuple[str, ...]
    port: int


@dataclass(frozen=True, kw_only=True)
class System:
    """A system in one configuration.

    Attributes:
        name: as in the table and behind `--systems`.
        promise: what it claims of a delivery.
        kept: what of a publication is on disk, in the configuration measured.
        package, program: Debian's package, and what it installs.
        version_option: makes the program print its version.
        window: publications in flight from publisher to subscriber at most.
        batch: publications written at once.
        largest_chain: how many of its brokers in a row can be compared.
        start: the servers of a chain (program, a folder for each, two free ports for each).
        client: of a subscriber, or of a publisher.
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
