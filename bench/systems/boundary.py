"""The driver boundary: the interface of a system under test and its client; loads drivers.

The module also has parts that drivers may share: paths and versions of external programs on this
machine, and ports for servers.
"""

import asyncio
import importlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, ParamSpec, Protocol, TypeVar

from brokerd.errors import BrokerError, ConfigError

Setting = bool | int | str
Settings = Mapping[str, Setting]


class NotAcknowledged(Exception):
    """A publication without an outcome, which must be published again."""


class ConnectionLost(Exception):
    """A lost or refused connection, with the reason."""


class WrongSettings(ConfigError):
    """Settings that the system, or its installed version, does not support; the user's fault."""

    exit_status: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Server:
    """A server of a system, with a folder and ports on loopback of its own.

    `through` contains, for each server that this server dials through a relay, the port to dial
    instead.
    """

    name: str
    folder: Path
    port: int
    further_ports: tuple[int, ...] = ()
    through: Mapping[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a server: its command, and files to write into its folder before."""

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attachment:
    """The parameters of a client.

    Attributes:
        name: name of the client; different in every run, the same at every attachment.
        addresses: addresses of all servers, with the client's own server first.
        publishes: True for a publisher, False for a subscriber.
        topics: all topics of the run.
        settings: settings of the configuration.
    """

    name: str
    addresses: tuple[str, ...]
    publishes: bool
    topics: tuple[str, ...]
    settings: Settings


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received publication; `receipt` is the handle for its acknowledgement."""

    topic: str
    body: bytes
    receipt: Any = None


class SystemClient(Protocol):
    """A client of a system, in the asyncio loop of a load generator.

    A client object lives as long as its load generator, and attaches repeatedly.
    """

    async def attach(self) -> None:
        """Connect to one of the addresses; raise ConnectionLost if no server accepts."""

    async def wait_lost(self) -> str:
        """Wait for the loss of the connection, and return the reason."""

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to future publications of these topics; called after every `attach`."""

    async def receive(self) -> Sequence[Delivery]:
        """Wait for deliveries, and return at least one."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries; return when the promise covers the acknowledgement."""

    async def publish(self, topic: str, message_id: str, body: bytes) -> None:
        """Publish; return when the system has accepted the publication, by its promise.

        Publications are sent in the order of the calls: nothing may be awaited before the send.

        Args:
            message_id: the same for every repetition.

        Raises:
            NotAcknowledged: the outcome is unknown.
        """

    async def drop(self) -> None:
        """Lose the connection as after a network failure; servers keep their usual state."""

    async def leave(self) -> None:
        """Disconnect, and remove all state of this client from the servers."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A system under test.

    Attributes:
        title: name for the user.
        program, package: program of the servers, and Debian's package with this program.
        version_option: option that prints the version.
        version: returns the version of a program without such an option.
        settings: settings of a configuration, with default values.
        ports: number of ports per server.
        largest: greatest number of servers.
        start: returns the starts of the servers (program, servers, settings, version as printed).
        is_up: returns True if a server takes part; called in a thread until then.
        client: creates a client, and imports the client library.
        client_library: required distribution, as in the extra of this project; "" for none.
        filters: True if subscriptions may test contents.
        start_within_s: time limit for the start of a server.
        leader: returns the present leader, or "" if unknown; None for systems without a leader.
        dials: returns pairs of dialling and dialled server, by all names; None if no relay can
            stand in between.
        dialled: index of the dialled port among the ports of a server.
        resends: True if the client keeps unacknowledged publications over a lost connection, and
            repeats them itself.
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


ANSWER_S: Final = 2.0
"""Time limit for the answer of a running server."""
AT_ONCE: Final = 256

T = TypeVar("T")


class Arrivals:
    """A queue of received deliveries."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Delivery] = asyncio.Queue()

    def put(self, delivery: Delivery) -> None:
        self._queue.put_nowait(delivery)

    async def take(self) -> list[Delivery]:
        """Wait for a delivery, and return all waiting deliveries, AT_ONCE at most."""
        found = [await self._queue.get()]
        while len(found) < AT_ONCE and not self._queue.empty():
            found.append(self._queue.get_nowait())
        return found


def settle(future: asyncio.Future[T], result: T) -> None:
    """Set the result of a future, unless the future is done."""
    if not future.done():
        future.set_result(result)


@contextmanager
def translate_errors(kind: type[Exception], *errors: type[BaseException]) -> Iterator[None]:
    """Raise errors of a client library as an error of the boundary, with names and texts."""
    try:
        yield
    except errors as error:
        raise kind(f"{type(error).__name__}: {error}") from error


def number_of(settings: Settings, key: str) -> int:
    """Return a setting that is a number."""
    value = settings[key]
    assert isinstance(value, int), (key, value)
    return value


def check_one_of(settings: Settings, key: str, valid: Sequence[Setting]) -> None:
    """Refuse an invalid value of a setting.

    Raises:
        WrongSettings: names key, value, and valid values.
    """
    if settings[key] not in valid:
        known = ", ".join(map(str, valid))
        raise WrongSettings(f"settings.{key} = {settings[key]!r}: expected one of {known}")


def pair_servers(names: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return the pairs of dialling and dialled server if every server dials every other."""
    return [(a, b) for a in names for b in names if a != b]


def fetch_json(port: int, path: str, headers: Mapping[str, str] | None = None) -> Any:
    """Return the JSON answer of a server at a port; None without an answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


_MORE_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_VERSION_WITHIN_S: Final = 10


def program_of(program: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *_MORE_FOLDERS]
    return shutil.which(program, path=os.pathsep.join(folders))


def version_of(program: str, option: str) -> str:
    """Return the first line that a program prints with this option."""
    output = subprocess.run(
        (program, option), capture_output=True, text=True, check=False, timeout=_VERSION_WITHIN_S
    )
    return (output.stdout or output.stderr).strip().split("\n")[0]


def is_taken(port: int) -> bool:
    """Return True if a process uses this port on loopback now."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False


def free_ports(count: int) -> Sequence[int]:
    """Return ports on loopback that are free now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


P = ParamSpec("P")


class WrongDriver(ConfigError):
    """A missing or failing driver in a configuration; names file, key, value and line."""

    exit_status: ClassVar[int] = 2


def load_driver(driver: str, beside: Path) -> System:
    """Return the `SYSTEM` of a driver: a module name, or a file beside the configuration.

    Raises:
        WrongDriver: there is no `SYSTEM`.
    """
    try:
        module = (
            _load_file(beside.parent / driver) if driver.endswith(".py") else _load_by_name(driver)
        )
    except (ImportError, OSError, SyntaxError) as error:
        raise WrongDriver(f"{beside}: driver = {driver!r}: {error}") from error
    except Exception as error:
        where = _line_of(error, str((beside.parent / driver).absolute()))
        raise WrongDriver(f"{beside}: driver = {driver!r}: {where}{_words(error)}") from error
    system = getattr(module, "SYSTEM", None)
    if not isinstance(system, System):
        raise WrongDriver(f"{beside}: driver = {driver!r} does not define SYSTEM")
    return system


def call_driver(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function of a driver, and return the result.

    Raises:
        WrongDriver: the function fails with an exception outside the boundary; names the place.
    """
    try:
        return function(*arguments, **named)
    except BrokerError:
        raise
    except Exception as error:
        code = getattr(function, "__code__", None)
        file = code.co_filename if code is not None else ""
        name = getattr(function, "__qualname__", "the driver")
        raise WrongDriver(f"{file}: {name}: {_line_of(error, file)}{_words(error)}") from error


def _line_of(error: Exception, file: str) -> str:
    """Return the last line of this file in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f"line {lines[-1]}: " if lines else ""


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _load_by_name(driver: str) -> ModuleType:
    return importlib.import_module(driver)


def _load_file(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None, path
    assert found.loader is not None, path
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
