"""The driver boundary: what a system under test has to tell, and what its client has to do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from brokerd.errors import ConfigError

Setting = bool | int | str
Settings = Mapping[str, Setting]


class NotAcknowledged(Exception):
    """It is not known whether a publication was taken, so it has to be published again."""


class ConnectionLost(Exception):
    """The connection is gone, or could not be made; says why."""


class WrongSettings(ConfigError):
    """A configuration that this system, or the version that is installed, cannot have."""

    exit_status: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Server:
    """One server of a system: `folder` is its own, and on loopback these ports are.

    `through` has, for each server that this one dials through a relay, the port to dial instead.
    """

    name: str
    folder: Path
    port: int
    further_ports: tuple[int, ...] = ()
    through: Mapping[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Start:
    """How a server is started: its command, and files to write into its folder before."""

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a client is made for.

    Attributes:
        name: of the client; another in every run, the same whenever it attaches again.
        addresses: of all servers, its own first.
        publishes: or it subscribes.
        topics: all that there are in the run.
        settings: of the configuration.
    """

    name: str
    addresses: tuple[str, ...]
    publishes: bool
    topics: tuple[str, ...]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Delivery:
    """A publication that came: `receipt` is what its acknowledgement needs."""

    topic: str
    body: bytes
    receipt: Any = None


class SystemClient(Protocol):
    """One client of a system, in the asyncio loop of a load generator.

    A client object lives as long as its load generator and is attached again and again.
    """

    async def attach(self) -> None:
        """Connect to one of the addresses; ConnectionLost where none has it."""

    async def wait_lost(self) -> str:
        """Return when the connection is gone, with the reason."""

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Get what is published to these topics from now on; asked for after every `attach`."""

    async def receive(self) -> Sequence[Delivery]:
        """What has come, at least one; waits for it."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Say that the application has these safely; return when that holds, as promised."""

    async def publish(self, topic: str, message_id: str, body: bytes) -> None:
        """Publish; return when the system has taken it, in the sense of what it promises.

        What is called first is sent first: nothing may be waited for before it is handed over.

        Args:
            message_id: the same when it is published again.

        Raises:
            NotAcknowledged: it is not known whether it was taken.
        """

    async def drop(self) -> None:
        """Lose the connection as if the network had gone; servers keep what they then keep."""

    async def leave(self) -> None:
        """Disconnect, and leave nothing of this client at the servers."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A system under test.

    Attributes:
        title: what people call it.
        program, package: what its servers are, and Debian's package that has it.
        version_option: makes the program print its version.
        version: finds it where no option does (program).
        settings: what a configuration may set, with the values that hold otherwise.
        ports: how many each server needs.
        largest: how many servers there may be.
        start: how the servers are started (program, servers, settings, version as printed).
        is_up: whether a server takes part; asked in a thread of its own until it does.
        client: makes one; the client library is imported in there.
        client_library: distribution that it needs, as in the extra of this project; "" for none.
        filters: whether its subscriptions may test contents.
        start_within_s: how long a server may take until it is up.
        leader: which of the servers leads now, "" where nobody knows; None where none does.
        dials: which servers dial which, of all of their names; None where nothing of ours can
            stand between them.
        dialled: the place of the port that is dialled, among those of a server.
        resends: the client keeps what was not acknowledged over a lost connection, and sends it
            again itself.
    """

    title: str
    program: str
    package: str
    version_option: str
    settings: Settings
    start: Callable[[str, Sequence[Server], Settings, str], Sequence[Start]]
    is_up: Callable[[Server, Settings], bool]
    client: Callable[[Attachment], SystemClient]
    client_library: str = ""
    ports: int = 1
    largest: int = 1
    filters: bool = False
    start_within_s: float = 20.0
    version: Callable[[str], str] | None = None
    leader: Callable[[Sequence[Server], Settings], str] | None = None
    dials: Callable[[Sequence[str]], Sequence[tuple[str, str]]] | None = None
    dialled: int = 0
    resends: bool = False
