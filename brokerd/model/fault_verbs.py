"""Fault verbs: the table that schedules, agents, brokers, simulator, judges and reports share.

A row has the targets and options of a verb, the part of the testbed that carries out the verb, and
the publications at risk. The tuples at the end are derived from the rows. Code elsewhere names a
single verb only to carry out or observe the verb, or to state a rule about the verb. The reference
judge (`results.reference`) has separate sets, because the two judges share no code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, get_args

TargetKind = Literal[
    "broker", "link", "machine", "sets", "client", "subscriber", "own-process subscriber"
]
SimulatedTarget = Literal["broker", "link", "direction"]
Backend = Literal["broker", "stop", "end", "start", "files", "load", "steps"]
"""Executor of a verb.

broker: the broker itself, whose own lease ends the fault. stop, end, start: the agent, which stops,
ends or starts processes. files: the agent, in the files of a stopped process. load: the load
generator of a client. steps: other verbs.
"""
Risk = Literal["", "passing", "disk", "end", "client"]
"""Publications at risk: see `results.rules.risks`."""
SystemPart = Literal["", "process", "relay", "disk", "clients"]
"""Part that carries out a verb on a system under test; "" if none does."""
Evidence = Literal[
    "", "end", "start", "frozen", "share", "absorbed", "dropped", "limited", "slow links",
    "matrix", "full disk", "slow disk", "changed file", "sessions", "client",
]  # fmt: skip
"""Kind of evidence of an effect: see `fault_injection.apply.evidence`."""

MODES: Final = ("blackhole", "cut")
"""Effects of a partition on the links across the partition."""
DISCONNECT: Final = "client-disconnect"
SLOW: Final = "client-slow"
ROAM: Final = "client-roam"
CRASH: Final = "client-crash"
Damage = Literal["bit", "tail"]
"""bit: one bit is flipped. tail: the file ends at the place."""
DAMAGES: Final[tuple[Damage, ...]] = get_args(Damage)
MOST_DRAWN: Final = (1 << 53) - 1
"""Highest number that is drawn for the place of a corruption; JSON keeps it exactly."""


@dataclass(frozen=True, slots=True)
class NumberParameter:
    """The number that an agent or a broker receives with a verb, and its bounds."""

    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class Trial:
    """A short fault of `inject --selftest`.

    Attributes:
        lasts: duration, in user notation.
        options: options of the step.
        is_one_way: True to try one direction of a link, too.
    """

    lasts: str
    options: Mapping[str, Any]
    is_one_way: bool = False


@dataclass(frozen=True, slots=True)
class Verb:
    """A kind of fault.

    Attributes:
        on: kinds of targets.
        lasts: True if the fault lasts until it is undone, and so needs a `for`.
        effect: the effect in a few words.
        seen_by: the evidence of the effect.
        undone_by: the action that ends the fault, alike for schedule, `heal`, Ctrl-C and lease; ""
            if there is nothing to undo.
        options: further keys of a step that the verb takes; "!" marks a required key.
        needs: requirements on the machine, beyond the broker and its agent.
        needs_messages: True if only messages show the effect, so that idle brokers show none.
        backend: executor of the verb.
        evidence: kind of evidence of the effect.
        signal: the signal by which the agent ends the process, without "SIG"; "" for other verbs.
        number: number that the agent or the broker receives.
        parameters: further parameters that the agent accepts.
        severs: True if no session crosses the target; nftables can carry out these verbs.
        acts_on: part of a broker's work that the verb affects: its traffic with peers and clients,
            one direction of it, or its disk.
        holds: True if messages are held, and released or lost later.
        limits: True if the target is slower, and counts as no failure.
        is_deaf: True if the target receives nothing either.
        ends_session: True if a client loses its session.
        simulated_on: targets of the verb that the simulator can strike.
        system: part that carries out the verb on a system under test.
        risk: publications at risk.
        aliases: other names that users type; they get a hint.
        already: word for a process that has such a fault; faults of such words exclude each other.
        past: the effect on a target in a report, in the past tense.
        label: the effect on a target in a figure; "" for the name of the verb.
        trials: faults of the self-test; a verb that ends a process is tried with a restart.
    """

    name: str
    on: tuple[TargetKind, ...]
    lasts: bool
    effect: str
    seen_by: str
    undone_by: str
    options: tuple[str, ...] = ()
    needs: str = "nothing more"
    needs_messages: bool = False
    backend: Backend = "broker"
    evidence: Evidence = ""
    signal: Literal["", "KILL", "TERM"] = ""
    number: NumberParameter | None = None
    parameters: tuple[str, ...] = ()
    severs: bool = False
    acts_on: Literal["traffic", "out", "in", "disk"] = "traffic"
    holds: bool = False
    limits: bool = False
    is_deaf: bool = False
    ends_session: bool = False
    simulated_on: tuple[SimulatedTarget, ...] = ()
    system: SystemPart = ""
    risk: Risk = ""
    aliases: tuple[str, ...] = ()
    already: str = ""
    past: str = ""
    label: str = ""
    trials: tuple[Trial, ...] = ()

    @property
    def option_names(self) -> tuple[str, ...]:
        """Keys of a step that the verb takes beside the common keys."""
        return tuple(option.rstrip("!") for option in self.options)

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(option.rstrip("!") for option in self.options if option.endswith("!"))

    @property
    def agent_parameters(self) -> tuple[str, ...]:
        """Parameters that the agent accepts."""
        number = () if self.number is None else (self.number.name,)
        return (*number, *self.parameters)


_LOAD: Final = "a load generator of `bench`; by schedule only"
_NFT: Final = "nothing more; with backend = nft: nft, and root or CAP_NET_ADMIN"
_MESSAGES: Final = "messages that pass meanwhile, as under `bench`; else it cannot be seen"
_BROKER: Final = "the broker, which also ends it by itself when the lease is over"
_BROKERS: Final = "the brokers, which also end it by themselves when the lease is over"
_LOAD_ENDS: Final = "the load generator also does that by itself when the lease is over"

VERB_TABLE: Final[Mapping[str, Verb]] = {
    verb.name: verb
    for verb in (
        Verb(
            "absorb",
            ("broker", "link"),
            True,
            "receives everything and sends nothing but heartbeats",
            "the broker's count of absorbed messages, without a forwarded one",
            "releasing the held messages in order; lost if the broker or session ends first",
            needs=_MESSAGES,
            needs_messages=True,
            evidence="absorbed",
            holds=True,
            is_deaf=True,
            simulated_on=("broker", "link"),
            risk="passing",
            aliases=("stall",),
            past="received everything and forwarded nothing",
            label="absorbs",
            trials=(Trial("1s", {}),),
        ),
        Verb(
            "send-omission",
            ("broker",),
            True,
            "receives, handles and logs everything, and sends nothing but heartbeats",
            "the broker's count of messages that it did not send",
            "sending the held messages in order; lost if the broker or session ends first",
            needs=_MESSAGES,
            needs_messages=True,
            evidence="absorbed",
            acts_on="out",
            holds=True,
            simulated_on=("broker",),
            risk="passing",
            aliases=("mute", "omission"),
            past="received everything, and sent nothing",
            label="sends nothing",
            trials=(Trial("1s", {}),),
        ),
        Verb(
            "receive-omission",
            ("broker",),
            True,
            "holds all messages that arrive, and continues to send",
            "the broker's count of messages that it did not handle",
            "handling the held messages in order; lost if the broker or session ends first",
            needs=_MESSAGES,
            needs_messages=True,
            evidence="absorbed",
            acts_on="in",
            holds=True,
            is_deaf=True,
            risk="passing",
            aliases=("deaf",),
            past="sent on, and handled nothing that arrived",
            label="handles nothing",
            trials=(Trial("1s", {}),),
        ),
        Verb(
            "blackhole",
            ("broker", "link"),
            True,
            "drops all traffic without an error to either end",
            "dropped frames or packets, closed sessions, or probes without an answer",
            f"{_BROKER}; with nft by deleting its table",
            ("backend",),
            _NFT,
            evidence="dropped",
            severs=True,
            is_deaf=True,
            simulated_on=("link", "direction"),
            system="relay",
            risk="passing",
            past="let nothing through, silently",
            label="black hole",
            trials=(Trial("4s", {}, is_one_way=True),),
        ),
        Verb(
            "cut",
            ("broker", "link"),
            True,
            "connections are closed, and new ones refused",
            "both ends without the session",
            f"{_BROKER}; with nft by deleting its table",
            ("backend",),
            _NFT,
            evidence="sessions",
            severs=True,
            is_deaf=True,
            simulated_on=("link", "direction"),
            system="relay",
            risk="passing",
            past="was cut",
            label="cut",
            trials=(Trial("2s", {}),),
        ),
        Verb(
            "freeze",
            ("broker",),
            True,
            "stops the process (SIGSTOP)",
            "every thread in state T",
            "SIGCONT, by the agent or a watchdog of its own",
            backend="stop",
            evidence="frozen",
            is_deaf=True,
            simulated_on=("broker",),
            system="process",
            risk="passing",
            aliases=("pause",),
            already="frozen",
            past="stood still",
            label="frozen",
            trials=(Trial("1s", {}),),
        ),
        Verb(
            "cpu-share",
            ("broker",),
            True,
            "limits the process to that share of the time (SIGSTOP and SIGCONT in turn)",
            "samples in which every thread is in state T, and others in which none is",
            "SIGCONT, by the agent or a watchdog of its own",
            ("share!",),
            backend="stop",
            evidence="share",
            number=NumberParameter("share_percent", 1, 99),
            limits=True,
            system="process",
            risk="passing",
            aliases=("cpu", "throttle"),
            already="slowed down",
            past="got little of its processor",
            trials=(Trial("2s", {"share": "25%"}),),
        ),
        Verb(
            "partition",
            ("sets",),
            True,
            "brokers of different sets do not reach each other",
            "probes between every two brokers, across and inside the sets",
            f"{_BROKERS}; with nft by deleting its tables",
            ("mode", "backend"),
            _NFT,
            evidence="matrix",
            parameters=("peers", "mode"),
            severs=True,
            risk="passing",
            aliases=("isolate",),
            past="no longer reached each other",
            trials=(Trial("6s", {"mode": "blackhole"}), Trial("3s", {"mode": "cut"})),
        ),
        Verb(
            "delay",
            ("broker", "link"),
            True,
            "delays everything by that time, in order",
            "the duration of a connection attempt",
            _BROKER,
            ("latency!",),
            evidence="slow links",
            number=NumberParameter("delay_ms", 1, 60_000),
            limits=True,
            system="relay",
            risk="passing",
            aliases=("latency", "slow"),
            past="was slowed down",
            trials=(Trial("2s", {"latency": "100ms"}, is_one_way=True),),
        ),
        Verb(
            "bandwidth",
            ("broker", "link"),
            True,
            "limits the bytes per second",
            "the broker's count of delayed messages",
            _BROKER,
            ("bytes_per_second!",),
            _MESSAGES,
            needs_messages=True,
            evidence="limited",
            number=NumberParameter("bytes_per_second", 1, 1 << 40),
            limits=True,
            system="relay",
            risk="passing",
            aliases=("rate",),
            past="was made narrow",
            trials=(Trial("2s", {"bytes_per_second": 100_000}),),
        ),
        Verb(
            "disk-full",
            ("broker",),
            True,
            "writes beyond a quota are refused with ENOSPC; the machine's disk stays as it is",
            "a write probe that is refused",
            _BROKER,
            ("free_bytes",),
            evidence="full disk",
            number=NumberParameter("free_bytes", 0, 1 << 40),
            limits=True,
            system="disk",
            acts_on="disk",
            risk="disk",
            aliases=("full",),
            past="had no room left on its disk",
            trials=(Trial("2s", {}),),
        ),
        Verb(
            "slow-fsync",
            ("broker",),
            True,
            "delays each fsync by that time",
            "the duration of a write probe",
            _BROKER,
            ("latency!",),
            evidence="slow disk",
            number=NumberParameter("delay_ms", 1, 60_000),
            limits=True,
            system="disk",
            acts_on="disk",
            risk="disk",
            aliases=("fsync-slow",),
            past="had a slow disk",
            trials=(Trial("2s", {"latency": "100ms"}),),
        ),
        Verb(
            "host-loss",
            ("machine",),
            True,
            "kills all brokers of a machine at once",
            "the exit of each broker",
            "starting them again, by the agent or its successor",
            backend="end",
            evidence="end",
            signal="KILL",
            system="process",
            risk="end",
            aliases=("machine-loss",),
            already="lost",
            past="was lost with all its brokers",
        ),
        Verb(
            "kill",
            ("broker",),
            False,
            "ends the process (SIGKILL, or signal)",
            "exit status",
            "restart, or the next deploy",
            ("signal",),
            backend="end",
            evidence="end",
            signal="KILL",
            parameters=("signal",),
            simulated_on=("broker",),
            system="process",
            risk="end",
            past="was killed",
            label="killed",
        ),
        Verb(
            "term",
            ("broker",),
            False,
            "stops the process in order (SIGTERM)",
            "exit status",
            "restart, or the next deploy",
            backend="end",
            evidence="end",
            signal="TERM",
            simulated_on=("broker",),
            system="process",
            risk="end",
            aliases=("stop",),
            past="received the stop request",
            label="stopped",
        ),
        Verb(
            "restart",
            ("broker",),
            False,
            "starts a stopped broker again",
            "new pid and start time, and the broker's own status",
            "",
            backend="start",
            evidence="start",
            simulated_on=("broker",),
            system="process",
            aliases=("start",),
            label="back",
        ),
        Verb(
            "corrupt",
            ("broker",),
            False,
            "flips a bit in a file of a stopped broker, or cuts off the file's tail",
            "the changed byte, read again",
            "",
            ("damage", "file"),
            "a broker that is stopped",
            backend="files",
            evidence="changed file",
            number=NumberParameter("draw", 0, MOST_DRAWN),
            parameters=("damage", "file"),
            system="process",
            aliases=("bit-flip", "truncate"),
            label="corrupt",
        ),
        Verb(
            "crash",
            ("broker",),
            False,
            "stands for absorb (stall), kill, restart (down)",
            "the evidence of these",
            "the ends of these",
            ("stall", "down"),
            f"nothing more; with stall: {_MESSAGES}",
            backend="steps",
        ),
        Verb(
            "client-disconnect",
            ("client",),
            True,
            "drops a client's connection without notice, and refuses new ones",
            "its session log: the session lost, and no other",
            f"letting it connect and resume; {_LOAD_ENDS}",
            needs=_LOAD,
            backend="load",
            evidence="client",
            ends_session=True,
            system="clients",
            risk="client",
            aliases=("disconnect",),
            past="lost its connection, and new ones were refused",
        ),
        Verb(
            "client-slow",
            ("subscriber",),
            True,
            "a subscriber stops reading, and so acknowledges nothing",
            "publications that arrived and wait",
            f"letting it take in what waits; {_LOAD_ENDS}",
            needs=_LOAD,
            backend="load",
            evidence="client",
            risk="client",
            past="accepted nothing",
        ),
        Verb(
            "client-roam",
            ("subscriber",),
            False,
            "a subscriber moves to another broker, with its subscription; a publisher too, where "
            "it is the same source there",
            "its session log: a session with the other broker",
            "",
            ("to!",),
            _LOAD,
            backend="load",
            evidence="client",
            ends_session=True,
            risk="client",
            aliases=("roam", "move"),
            past="moved to another broker, which it was busy with",
        ),
        Verb(
            "client-crash",
            ("own-process subscriber",),
            True,
            "kills a subscriber's process (SIGKILL) and starts it again, again and again: at each "
            "moment of its transactions, while it starts, at any time",
            "how the process ended",
            f"letting it live; {_LOAD_ENDS}",
            ("down",),
            "a load generator of `bench`, and `own_process = true` in the workload; by schedule "
            "only",
            backend="load",
            evidence="client",
            ends_session=True,
            risk="client",
            past="was killed and started again, again and again,",
        ),
    )
}


def _select(**wanted: object) -> tuple[str, ...]:
    """Return the verbs with these values in their columns, in the order of the table."""
    return tuple(
        verb.name
        for verb in VERB_TABLE.values()
        if all(getattr(verb, column) == value for column, value in wanted.items())
    )


VERBS: Final = tuple(VERB_TABLE)
LASTING_VERBS: Final = _select(lasts=True)
LIMITING_VERBS: Final = _select(limits=True)
"""Verbs that cause delays, and no failure."""
HOLDING_VERBS: Final = _select(holds=True)
"""Verbs that hold messages back. Held messages are released, or lost if the target is ended."""
SEVERING_VERBS: Final = _select(severs=True)
"""Verbs that end sessions between brokers; nftables can carry them out."""
DEAF_VERBS: Final = _select(is_deaf=True)
"""Verbs with a target that receives nothing."""
SIMULATED_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if verb.simulated_on)

BROKER_VERBS: Final = _select(backend="broker")
"""Verbs that a broker carries out on request; its own lease ends the fault."""
STOPPING_VERBS: Final = _select(backend="stop")
"""Verbs that stop a process from outside, exclusively."""
STANDING_VERBS: Final = _select(backend="stop", limits=False)
"""Verbs that stop a process without interruption."""
OFFLINE_VERBS: Final = tuple(
    verb.name for verb in VERB_TABLE.values() if verb.backend in ("start", "files")
)
"""Verbs for processes that have ended; they put no publications at risk by themselves."""
AGENT_VERBS: Final = tuple(
    verb.name for verb in VERB_TABLE.values() if verb.backend not in ("load", "steps")
)
CLIENT_VERBS: Final = _select(backend="load")
SESSION_ENDING_VERBS: Final = _select(ends_session=True)

LINK_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if "link" in verb.on)
SET_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if "sets" in verb.on)
MACHINE_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if "machine" in verb.on)

KILLING_VERBS: Final = _select(risk="end")
"""Verbs that end processes, lasting ones included."""
ENDING_VERBS: Final = _select(risk="end", lasts=False)
"""Verbs that end a process until the next restart."""
DISK_VERBS: Final = _select(risk="disk")
PASSING_VERBS: Final = _select(risk="passing")
"""Verbs with targets that stay on the path and do not pass all publications."""
FAILING_VERBS: Final = tuple(
    verb.name for verb in VERB_TABLE.values() if verb.risk in ("passing", "end") and not verb.limits
)
"""Verbs that count as the failure of a broker or link."""

RELAY_VERBS: Final = _select(system="relay")
SYSTEM_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if verb.system)
"""Verbs that can be carried out on a system under test."""
ALIASES: Final[Mapping[str, str]] = {
    alias: verb.name for verb in VERB_TABLE.values() for alias in verb.aliases
}


@cache
def takers(option: str) -> tuple[str, ...]:
    """Return the verbs that take an option."""
    return tuple(verb.name for verb in VERB_TABLE.values() if option in verb.option_names)
