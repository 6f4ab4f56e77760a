"""Configurations of systems under test: TOML files with a driver, its settings, and a promise."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.spec.spec import read_toml
from bench.spec.validation import SpecError, validate
from bench.spec.workload_model import EXPERIMENT_NAME, Duration
from bench.systems.boundary import (
    Server,
    Setting,
    Settings,
    System,
    WrongDriver,
    WrongSettings,
    call_driver,
    load_driver,
    program_of,
    version_of,
)
from bench.systems.synced_files import is_possible
from brokerd.errors import BrokerError
from brokerd.overlay.topology import nearest

SCHEMA: Final = "pubsubctl/system/1"
EXTERNAL: Final = "external/"
"""Prefix of the bare name of a configuration, in place of a workload."""
_HERE: Final = Path(__file__).parent


class NotInstalled(BrokerError):
    """A missing server or client library.

    Attributes:
        missing: the missing part.
        remedy: an action that installs the part.
    """

    exit_status: ClassVar[int] = 4

    def __init__(self, where: str, missing: str, remedy: str) -> None:
        super().__init__(f"{where}: {missing} ({remedy})")
        self.missing = missing
        self.remedy = remedy


class Promise(BaseModel):
    """The promise in the documentation of a system for a configuration.

    `window` is the time for which the system recognizes a repeated publication; without it, for
    ever.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    delivery: Literal["exactly-once", "at-least-once", "at-most-once"]
    order: Literal["publisher", "none"] = "publisher"
    window: Duration | None = None

    def describe(self) -> str:
        """Return the promise in words, for example "at least once, in no order"."""
        within = f" within {self.window / 1e9:g} s" if self.window else ""
        order = {"publisher": "in the order of each publisher", "none": "in no order"}
        return f"{self.delivery.replace('-', ' ')}{within}, {order[self.order]}"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_: Annotated[Literal["pubsubctl/system/1"], Field(alias="schema")]
    name: Annotated[str, Field(pattern=EXPERIMENT_NAME.pattern)]
    driver: str
    servers: Annotated[list[str], Field(min_length=1)]
    workload: str
    promise: Promise
    unsynced: Literal["kept", "lost"] = "kept"
    settings: dict[str, Setting] = Field(default_factory=dict)


@dataclass(frozen=True)
class Configuration:
    """A system in one configuration.

    Attributes:
        source: the file of the configuration.
        loses_unsynced: True if unsynced data of a server is lost at its end, as after a power
            failure.
        settings: all settings, defaults included.
        changed: settings from the file.
        program: path of the server.
        version: version as printed by the server.
    """

    name: str
    source: Path
    driver: str
    system: System
    servers: tuple[str, ...]
    workload: str
    promise: Promise
    loses_unsynced: bool
    settings: Settings
    changed: Settings
    program: str
    version: str

    def facts(self) -> dict[str, Any]:
        """Return facts about the system, for the manifest of a run."""
        return {
            "title": self.system.title,
            "configuration": self.name,
            "servers": list(self.servers),
            "program": self.program,
            "version": self.version,
            "client_library": self.system.client_library,
            "settings": dict(self.settings),
            "unsynced": "lost" if self.loses_unsynced else "kept",
            "promise": self.promise.describe(),
        }


def is_configuration(text: str) -> bool:
    """Return True if a word in place of a workload names a configuration of a system."""
    if text.startswith(EXTERNAL):
        return True
    path = Path(text)
    return path.suffix == ".toml" and path.is_file() and read_toml(path).get("schema") == SCHEMA


def load_configuration(text: str) -> Configuration:
    """Return the configuration in a file, or the project's configuration `external/NAME`.

    Raises:
        SpecError, WrongDriver: the configuration cannot be used; names file, key, value and valid
            values.
        WrongSettings: the installed version does not support the settings.
        NotInstalled: server or client library is missing.
    """
    path = find_configuration(text)
    where = str(path)
    file = validate(_File, read_toml(path), where)
    system = load_driver(file.driver, path)
    for place, name in enumerate(file.servers):
        if name in file.servers[:place] or not EXPERIMENT_NAME.fullmatch(name):
            raise SpecError(f"{where}: servers[{place}] = {name!r}: no name, or there twice")
    if len(file.servers) > system.largest:
        raise SpecError(f"{where}: servers: {system.title} has {system.largest} at most here")
    for key, value in file.settings.items():
        if key not in system.settings:
            raise SpecError(
                f"{where}: settings: unknown key {key!r}{nearest(key, [*system.settings])}"
            )
        wanted = type(system.settings[key])
        if type(value) is not wanted:
            raise SpecError(f"{where}: settings.{key} = {value!r}: expected a {wanted.__name__}")
    if file.unsynced == "lost" and not is_possible():
        raise SpecError(
            f"{where}: unsynced = 'lost': use Linux on x86_64, where fsync can be traced"
        )
    program = _program(system, where)
    if system.client_library and not _has(system.client_library):
        missing = f"the client library {system.client_library} is not installed"
        raise NotInstalled(where, missing, "`make setup` installs the extra `systems`")
    if system.version is not None:
        version = call_driver(system.version, program)
    else:
        version = _version(program, system, where)
    found = Configuration(
        file.name, path, file.driver, system, tuple(file.servers), file.workload, file.promise,
        file.unsynced == "lost", {**system.settings, **file.settings}, file.settings, program,
        version,
    )  # fmt: skip
    _check_settings(found, where)
    return found


def _check_settings(of: Configuration, where: str) -> None:
    """Let the driver check the settings before any start."""
    ports = tuple(range(1, of.system.ports + 1))
    servers = [Server(name, _HERE / name, ports[0], ports[1:]) for name in of.servers]
    try:
        starts = call_driver(of.system.start, of.program, servers, of.settings, of.version)
    except WrongSettings as error:
        raise WrongSettings(f"{where}: {error}") from None
    if len(starts) != len(servers):
        text = f"{len(starts)} starts for {len(servers)} servers"
        raise WrongDriver(f"{where}: driver = {of.driver!r}: {text}")


def configurations() -> dict[str, Path]:
    """Return the project's configurations by name."""
    return {path.stem: path for path in sorted(_HERE.glob("*/*.toml"))}


def systems() -> list[System]:
    """Return the project's systems, installed or not, by the names of their drivers."""
    drivers = sorted({str(read_toml(path)["driver"]) for path in configurations().values()})
    return [load_driver(driver, _HERE) for driver in drivers]


def find_configuration(text: str) -> Path:
    """Return the file of a configuration: a path, or a name such as `external/jetstream3`.

    Raises:
        SpecError: there is no configuration of this name; names the nearest.
    """
    if not text.startswith(EXTERNAL):
        return Path(text)
    name, known = text.removeprefix(EXTERNAL), configurations()
    if name not in known:
        hint = nearest(name, [*known]).replace("did you mean '", f"did you mean '{EXTERNAL}")
        raise SpecError(f"no configuration called {text!r}{hint}")
    return known[name]


def _program(system: System, where: str) -> str:
    program = program_of(system.program)
    if program is None:
        remedy = f"Debian: apt-get install {system.package}"
        raise NotInstalled(where, f"{system.program} is not installed", remedy)
    return program


def _version(program: str, system: System, where: str) -> str:
    try:
        return version_of(program, system.version_option)
    except (OSError, subprocess.SubprocessError) as error:
        text = f"{program} did not print its version: {error}"
        raise NotInstalled(where, text, f"of Debian's {system.package} it does") from error


def _has(distribution: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
