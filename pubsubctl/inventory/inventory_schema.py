"""The schema of an inventory file: tables, keys and valid values.

Values end up in file names, in commands on other machines and in `ssh` connections, so every type
of value has a small alphabet; other values are refused before anything is done.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from brokerd.text import NAME, nearest
from brokerd.units import SECOND_NS, format_duration, parse_duration_ns, parse_size_bytes
from pubsubctl.inventory.typed_values import CLOSED, Between, checked

MOST_IDENTITIES = 16
SCHEMA = "pubsubctl/inventory/1"
CONNECTORS = ("local", "ssh")
MOST_GATEWAYS = 8
NO_JUMP = "none"
NUMA_ORDERS = ("fill", "interleave")

# Folders that belong to the system: nothing of ours is kept there, and nothing removed.
_SYSTEM_FOLDERS = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32")
_MORE_SYSTEM_FOLDERS = ("proc", "sbin", "sys", "usr")
_PRIVATE_FOLDERS = (".ssh", ".gnupg")

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_SCOPE = re.compile(r"[A-Za-z0-9._-]{1,15}")
_PATH = re.compile(r"(~?)/[A-Za-z0-9._/@+=,:-]*")
_RANGED_PATH = re.compile(r"(~?)/[A-Za-z0-9._/@+=,:\[\]-]*")
_KEY_PATH = re.compile(r"(~?)/[A-Za-z0-9._/@+=,: -]*(?<! )")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}")
_USER = re.compile(r"(?=.{1,64}\Z)[A-Za-z_][A-Za-z0-9_.-]*([@\\][A-Za-z0-9_][A-Za-z0-9_.-]*)?")
"""Also logins of a directory, such as joe@corp.example; no shell reads them."""
_NUMA_NODE = re.compile(r"pin:\d{1,3}")
_KERNEL = re.compile(r"(>=)?\d{1,3}(\.\d{1,5}){0,3}")
_GOVERNOR = re.compile(r"[a-z_]{1,32}")
_SECRET_KEY = re.compile(r"passw|passphrase|secret|token|private_?key", re.IGNORECASE)


def check_address(text: str) -> str:
    """Return a valid machine address: an IP, or a DNS name.

    Raises:
        ValueError: the text is no address; describes valid addresses.
    """
    if is_ip(text):
        return _check_machine(text)
    labels = text.removesuffix(".").split(".")
    # Resolvers read 0x7f.1 and 127.1 as addresses; only explicit addresses are accepted here.
    is_name = not all(re.fullmatch(r"\d+|0[xX][0-9A-Fa-f]*", label) for label in labels)
    if len(text) > 253 or not is_name or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("an address is an IP or a DNS name such as n01.lab.example")
    return text


def check_bench_address(text: str) -> str:
    """Return a valid IP on which brokers listen and are dialled.

    Raises:
        ValueError: the text is no IP, or not the IP of a single machine.
    """
    if not is_ip(text):
        raise ValueError("bench_address is an IP: brokers listen on it")
    return _check_machine(text)


def _check_machine(text: str) -> str:
    found = ipaddress.ip_address(text)
    if found.is_unspecified or found.is_multicast or text == "255.255.255.255":
        raise ValueError("not the IP of one machine")
    return text


def is_ip(text: str) -> bool:
    """Return True for an IP address; a link-local address may have a plain scope."""
    address, percent, scope = text.partition("%")
    if percent and not _SCOPE.fullmatch(scope):
        return False
    if not re.fullmatch(r"[0-9A-Fa-f:.]+", address):
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(text: str) -> bool:
    """Return True if the address cannot be reached from other machines."""
    return is_ip(text) and ipaddress.ip_address(text).is_loopback


def secrets_in(values: Mapping[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the places of values that look like secrets, with a remedy; never the secret."""
    found: list[tuple[tuple[str | int, ...], str]] = []

    def walk(value: Any, place: tuple[str | int, ...]) -> None:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                if _SECRET_KEY.search(key):
                    text = "secrets never belong into an inventory; keys and ssh-agent only"
                    found.append(((*place, key), text))
                else:
                    walk(inner, (*place, key))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                walk(inner, (*place, index))
        elif isinstance(value, str) and "PRIVATE KEY" in value:
            found.append((place, "a key itself is never written here; identity is its path"))

    walk(values, ())
    return found


def _connector(value: Any) -> Any:
    if value not in CONNECTORS:
        raise ValueError("connector is 'local' or 'ssh'" + nearest(value, CONNECTORS))
    return value


def _ports(value: Any) -> Any:
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value) if isinstance(value, str) else None
    if not found:
        raise ValueError('ports are a range in quotes, such as "21000-21999"')
    first, last = int(found[1]), int(found[2])
    if not 1024 <= first <= last <= 65535:
        raise ValueError("ports lie between 1024 and 65535, the smaller one first")
    return value


def _path(value: Any) -> Any:
    if not isinstance(value, str) or not _RANGED_PATH.fullmatch(value) or len(value) > 512:
        raise ValueError(
            "a path is absolute or begins with ~/, of letters, digits and . _ - / @ + = , :"
        )
    if ".." in value.split("/"):
        raise ValueError("a path must not contain '..'")
    return value


def _folder(value: Any) -> Any:
    parts = [part for part in _path(value).split("/") if part not in ("", ".")]
    if parts[:1] == ["~"]:
        if len(parts) < 2 or parts[1] in _PRIVATE_FOLDERS:
            raise ValueError("a folder of ours: at least one level below ~, and not a private one")
    elif len(parts) < 2 or parts[0] in (*_SYSTEM_FOLDERS, *_MORE_SYSTEM_FOLDERS):
        raise ValueError("a folder of ours: at least two levels below /, and not of the system")
    return value


def _plain_path(value: Any) -> Any:
    if not _PATH.fullmatch(_path(value)):
        raise ValueError("a path without brackets")
    return value


def _file(value: Any) -> Any:
    parts = _plain_path(value).split("/")
    if parts[1] in ("dev", "proc", "sys") or not parts[-1]:
        raise ValueError("a file on a disk")
    return value


def _identities(value: Any) -> Any:
    """Return paths of keys as a list, from a path or a list of paths."""
    paths = value if isinstance(value, list) else [value]
    if not 0 < len(paths) <= MOST_IDENTITIES:
        raise ValueError(f"from 1 to {MOST_IDENTITIES} paths of keys")
    for path in paths:
        if not isinstance(path, str) or not _KEY_PATH.fullmatch(path) or len(path) > 512:
            raise ValueError(
                "a key's path is absolute or begins with ~/, of letters, digits, blanks and "
                ". _ - / @ + = , :"
            )
        _file(path.replace(" ", "_"))
    return paths


def _python(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("/"):
        return _plain_path(value)
    if not isinstance(value, str) or not _PROGRAM.fullmatch(value):
        raise ValueError("python is a program's name or its absolute path, such as python3.11")
    return value


def _user(value: Any) -> Any:
    if not isinstance(value, str) or not _USER.fullmatch(value):
        raise ValueError(
            "a user is at most 64 letters, digits and . _ - @ \\, beginning with a letter"
        )
    return value


def _name(value: Any) -> Any:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ValueError(
            "names are lower-case letters, digits and '-', at most 32, not starting with '-'"
        )
    return value


def _jump(value: Any) -> Any:
    """Return gateways as a list, from "gw1,gw2", ["gw1", "gw2"] or "none"."""
    if value in (NO_JUMP, []):
        return []
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError('jump is "gateway", "outer,inner", a list of gateways, or "none"')
    names = [name.strip(" ") for name in names]
    if len(names) > MOST_GATEWAYS:
        raise ValueError(f"at most {MOST_GATEWAYS} gateways, one behind the other")
    for name in names:
        if name == NO_JUMP:
            raise ValueError('"none" stands alone')
        _name(name)
    return names


def _address_text(value: Any) -> Any:
    if not isinstance(value, str) or not 0 < len(value) <= 253:
        raise ValueError("an address is an IP or a DNS name")
    return value


def _known_hosts(value: Any) -> Any:
    if isinstance(value, str) and _FILE_NAME.fullmatch(value):
        return value
    if isinstance(value, str) and "/" in value:
        return _file(value)
    raise ValueError("known_hosts is a file beside the inventory, or an absolute path")


def _seconds(value: Any) -> Any:
    seconds = parse_duration_ns(value) / 1e9
    if not 0.1 <= seconds <= 600:
        raise ValueError("from 100ms to 10min")
    return seconds


def _memory(value: Any) -> Any:
    size_bytes = parse_size_bytes(value)
    if not 64 << 20 <= size_bytes <= 1 << 40:
        raise ValueError("from 64MiB to 1048576MiB")
    return size_bytes


def _numa(value: Any) -> Any:
    if value in NUMA_ORDERS or (isinstance(value, str) and _NUMA_NODE.fullmatch(value)):
        return value
    raise ValueError('numa is "fill", "interleave" or "pin:NODE"')


def _nic(value: Any) -> Any:
    if not isinstance(value, str) or not _SCOPE.fullmatch(value) or value in (".", ".."):
        raise ValueError("a network interface, such as eno2")
    return value


def _kernel(value: Any) -> Any:
    if not isinstance(value, str) or not _KERNEL.fullmatch(value):
        raise ValueError('a kernel is ">=5.15", or the beginning of its release, such as "6.1"')
    return value


def _governor(value: Any) -> Any:
    if not isinstance(value, str) or not _GOVERNOR.fullmatch(value):
        raise ValueError("a governor of the processor, such as performance")
    return value


def _clock_error(value: Any) -> Any:
    return parse_duration_ns(value)


Connector = Annotated[str, checked(_connector)]
Port = Annotated[int, Between(1, 65535)]
User = Annotated[str, checked(_user)]
KeyFiles = Annotated[list[str], checked(_identities, str | list[str])]
Folder = Annotated[str, checked(_folder)]
Jump = Annotated[list[str], checked(_jump)]
Address = Annotated[str, checked(_address_text)]


def _written(seconds: float) -> str:
    return format_duration(round(seconds * SECOND_NS))


Seconds = Annotated[float, checked(_seconds, str)]


@dataclass(frozen=True, kw_only=True)
class Variables:
    """Variables of a host; every value may also come from a group or [defaults]."""

    __pydantic_config__ = CLOSED

    connector: Connector | None = None
    port: Port | None = None
    user: User | None = None
    identity: KeyFiles | None = None
    jump: Jump | None = None
    python: Annotated[str, checked(_python)] | None = None
    bench_address: Address | None = None
    failure_domain: Annotated[str, checked(_name)] | None = None
    cores: Literal["share", "own"] | None = None
    cores_reserved: list[Annotated[int, Between(0, 4095, is_strict=False)]] | None = None
    broker_nice: Annotated[int, Between(0, 19)] | None = None
    ports: Annotated[str, checked(_ports)] | None = None
    root: Folder | None = None
    data_dir: Folder | None = None
    smt: Literal["avoid", "allow"] | None = None
    numa: Annotated[str, checked(_numa)] | None = None
    mem_per_broker: Annotated[int, checked(_memory, str)] | None = None
    bench_nic: Annotated[str, checked(_nic)] | None = None
    fsync: Literal["real", "off"] | None = None
    metrics: Literal["on", "off"] | None = None


@dataclass(frozen=True, kw_only=True)
class Expect:
    """[expect]: required properties of every host, which `doctor` checks.

    Attributes:
        kernel: ">=5.15", or the beginning of the release.
        clock_error_max: the largest clock error that a kernel may report, in nanoseconds.
    """

    __pydantic_config__ = CLOSED

    cores_min: Annotated[int, Between(1, 4096)] | None = None
    kernel: Annotated[str, checked(_kernel)] | None = None
    governor: Annotated[str, checked(_governor)] | None = None
    link_gbps_min: Annotated[float, Between(0.001, 10_000, is_strict=False)] | None = None
    clock_error_max: Annotated[int, checked(_clock_error, str)] | None = None


@dataclass(frozen=True, kw_only=True)
class Defaults(Variables):
    """[defaults]: variables of all hosts, and the file of their keys."""

    known_hosts: Annotated[str, checked(_known_hosts)] | None = None


@dataclass(frozen=True, kw_only=True)
class HostEntry:
    """[[hosts]]: a host, or all hosts of a range in the name."""

    __pydantic_config__ = CLOSED

    name: str
    connector: Connector | None = None
    address: Address | None = None
    groups: list[str] = field(default_factory=list)
    vars: Variables = Variables()


@dataclass(frozen=True, kw_only=True)
class GroupEntry:
    """[groups.NAME]: hosts that have something in common."""

    __pydantic_config__ = CLOSED

    hosts: list[str] = field(default_factory=list)
    vars: Variables = Variables()


@dataclass(frozen=True, kw_only=True)
class GatewayEntry:
    """[gateways.NAME]: a machine that others are reached through."""

    __pydantic_config__ = CLOSED

    address: Address
    port: Port = 22
    user: User | None = None
    identity: KeyFiles | None = None
    jump: Jump = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SshEntry:
    """[ssh]: how many connections at once, and how patient."""

    __pydantic_config__ = CLOSED

    forks: Annotated[int, Between(1, 1024)] = 16
    forks_per_gateway: Annotated[int, Between(1, 1024)] = 8
    connect_timeout: Seconds = 10.0
    keepalive: Seconds = 5.0
    retries: Annotated[int, Between(0, 10)] = 2


@dataclass(frozen=True, kw_only=True)
class InventoryFile:
    """A whole file."""

    __pydantic_config__ = CLOSED

    schema: Literal["pubsubctl/inventory/1"]
    name: str
    transport: Literal["tls"] | None = None
    defaults: Defaults = Defaults()
    ssh: SshEntry = SshEntry()
    gateways: dict[str, GatewayEntry] = field(default_factory=dict)
    hosts: list[HostEntry]
    groups: dict[str, GroupEntry] = field(default_factory=dict)
    expect: Expect = Expect()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of inventory files, for editors."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(InventoryFile).json_schema(mode="validation")
    defaults = schema["properties"]["ssh"]["default"]
    for key, declared in schema["$defs"]["SshEntry"]["properties"].items():
        if declared["type"] == "string":
            declared["default"] = defaults[key] = _written(declared["default"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
