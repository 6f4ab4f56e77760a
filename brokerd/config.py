"""The configuration of a broker, with all defaults."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Self

from brokerd.errors import ConfigError
from brokerd.model.operator_acts import OperatorAuthority
from brokerd.text import parse_toml
from brokerd.units import MILLISECOND_NS, SECOND_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParameters:
    """Parameters of the session layer.

    Attributes:
        heartbeat_ns: interval of heartbeats on an idle or busy session.
        suspicion_ns: silence (not one byte) after which a peer is suspected.
        connect_timeout_ns: an attempt without an answer by then has failed.
        frame_limit_bytes: largest frame accepted or sent.
        outbox_limit_bytes: bytes queued for one peer before its session ends (overflow).
        slow_after_ns: a client is evicted, and its subscriptions end, if others have waited for
            this time while the client sent nothing but heartbeats.
        connections_limit: connections at once, of all kinds.
        connections_per_address: connections at once from one address.
        broker_reserve: connections reserved for brokers.
        client_publications_per_second: average number of publications of one client that are read
            per second; 0 for no limit.
        strangers_limit: connections without a completed handshake; with one more, the oldest at the
            address with the most strangers is evicted.
    """

    heartbeat_ns: int = 250 * MILLISECOND_NS
    suspicion_ns: int = 750 * MILLISECOND_NS
    connect_timeout_ns: int = 2 * SECOND_NS
    frame_limit_bytes: int = 1 << 20
    outbox_limit_bytes: int = 64 << 20
    slow_after_ns: int = 5 * SECOND_NS
    client_publications_per_second: int = 0
    connections_limit: int = 4_096
    connections_per_address: int = 2_048
    broker_reserve: int = 256
    strangers_limit: int = 256


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files with the certificates and the key of a process; PEM, all three.

    Attributes:
        authority: certificate of the deployment's authority.
        certificate: certificate of the process.
        key: private key of the certificate; mode 0600.
    """

    authority: str
    certificate: str
    key: str

    @classmethod
    def from_mapping(cls, values: dict[str, Any], where: str) -> Self:
        """Return the paths in `values`.

        Raises:
            ConfigError: an unknown key, a missing one, or a value of the wrong type.
        """
        files: Self = read_section(cls, values, where)
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAcceptance:
    """An operator's signed act (`ACCEPT_LOSS`): a broker starts although it lost durable state.

    Attributes:
        loss: number of the loss, from its record in the state folder.
        signature: signature of the deployment's authority, in hexadecimal digits; "": the act is
            unsigned.
    """

    loss: int
    signature: str = ""

    @classmethod
    def from_mapping(cls, values: Any, where: str) -> Self:
        """Return the act in `values`.

        Raises:
            ConfigError: the value is no table, or has an unknown key or a wrong value.
        """
        if isinstance(values, bool):
            raise ConfigError(
                f"{where} = {str(values).lower()}: a loss is accepted by an act that the "
                "deployment's authority signs: `pubsubctl deploy TOPOLOGY --accept-loss BROKER`"
            )
        act: Self = read_section(cls, values, where)
        if not 0 <= act.loss < 1 << 63:
            raise ConfigError(f"{where}: loss = {act.loss} is not within 0 to 2^63 - 1")
        if not re.fullmatch("([0-9a-f]{128})?", act.signature):
            raise ConfigError(f"{where}: signature is not 128 hexadecimal digits")
        return act


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The complete configuration of one broker process; nothing is read from the environment.

    Attributes:
        broker: name of the broker in the topology.
        topology_file: path of the topology (the same file for every broker).
        protocol: name of the protocol in the registry.
        deployment_id: made by deploy; brokers of different deployments refuse each other.
        listen: "host:port" of the broker's own listener; off loopback only with `tls`.
        addresses: broker name → "host:port" for every broker that may be dialled.
        state_folder: folder of all state that must survive a restart.
        control_socket: path of the control socket (at most 107 bytes, mode 0600).
        log_folder: folder of event log, statistics, standard output.
        fault_injection: True if fault commands are permitted.
        core: the CPU to pin to, or -1.
        nice: niceness of the process, 0 to 19; set by the agent.
        memory_limit_bytes: largest allocation, beyond which the broker ends; 0 for no limit.
        fsync: True if writes wait for the disk. Without, written data survive the end of the
            process, but not that of the machine.
        tls: certificates for the links; None for plaintext on loopback.
        operator_key: public key of the deployment's authority for operators' acts, 64 hexadecimal
            digits (Ed25519); "": no signed act is accepted.
        accept_loss: durable state is missing, which ends a broker; with this signed act the broker
            starts nevertheless, and announces the lost data. Refused if no loss is recorded.
        joining: True if the broker joins running brokers, and so requests their state first.
        begin_within_ms: in its first incarnation the broker only listens until the command `begin`
            (sent once all of many brokers are up), or for this time; 0: the broker begins at once.
    """

    broker: str
    topology_file: str
    protocol: str
    deployment_id: str
    listen: str
    addresses: dict[str, str]
    state_folder: str
    control_socket: str
    log_folder: str
    fault_injection: bool = False
    core: int = -1
    nice: int = 0
    accept_loss: LossAcceptance | None = None
    joining: bool = False
    begin_within_ms: int = 0
    memory_limit_bytes: int = 0
    fsync: bool = True
    tls: TlsFiles | None = None
    operator_key: str = ""
    session: SessionParameters = field(default_factory=SessionParameters)

    @classmethod
    def from_mapping(cls, values: dict[str, Any], where: str) -> Self:
        """Return the configuration in `values` (a TOML file's or a control message's content).

        Raises:
            ConfigError: an unknown key, a missing one, or a value of the wrong type; names the key,
                in `where`, and the valid values.
        """
        values = dict(values)
        values["session"] = read_section(
            SessionParameters, values.get("session", {}), f"{where}: session"
        )
        if values.get("tls") is not None:
            values["tls"] = TlsFiles.from_mapping(values["tls"], f"{where}: tls")
        if values.get("accept_loss") is not None:
            values["accept_loss"] = LossAcceptance.from_mapping(
                values["accept_loss"], f"{where}: accept_loss"
            )
        configuration: Self = read_section(cls, values, where)
        key = configuration.operator_key
        if key and not re.fullmatch("[0-9a-f]{64}", key):
            raise ConfigError(f"{where}: operator_key = {key[:80]!r} is not 64 hexadecimal digits")
        return configuration

    @property
    def authority(self) -> OperatorAuthority:
        """The authority for signed acts that this broker accepts."""
        return OperatorAuthority(self.deployment_id, bytes.fromhex(self.operator_key))


def parse_value(text: str) -> Any:
    """Return the value of a text that was typed for a key.

    Numbers, lists and text in quotes are written as in TOML; true and false in any case. Any other
    text is taken literally.

    Raises:
        ConfigError: a number that is not finite or too large, or lists that nest too deeply.
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except ValueError as error:
        raise ConfigError(str(error)) from None
    kept = len(value) == 1 and isinstance(value["value"], str | int | float | list)
    return value["value"] if kept else text


def check_least(section: object, least: int, names: Iterable[str], where: str) -> None:
    """Check numbers of a section.

    Raises:
        ConfigError: a number is less than `least`; names its key, in `where`.
    """
    for name in names:
        if (value := getattr(section, name)) < least:
            raise ConfigError(f"{where}: {name} = {value}; at least {least}")


def read_section(kind: Any, values: Any, where: str) -> Any:
    """Return an instance of a frozen dataclass, `kind`, with `values`; other fields have defaults.

    Raises:
        ConfigError: no table, an unknown key, a missing one, or a value of the wrong type; names
            the key, in `where`.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a table, got {values!r}")
    known = {item.name: item for item in fields(kind)}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}")
        expected = known[key].type
        simple = {"int": int, "str": str, "bool": bool}.get(
            str(getattr(expected, "__name__", expected))
        )
        if simple is not None and type(value) is not simple:
            raise ConfigError(f"{where}: {key} = {value!r} is not of type {simple.__name__}")
        if key.endswith("_ns") and value < 0:
            raise ConfigError(f"{where}: {key} = {value} must not be negative")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
