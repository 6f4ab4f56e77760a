"""Fault verbs: effect, targets, requirements, observation and end of each verb."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

TargetKind = Literal[
    "broker", "link", "machine", "sets", "client", "subscriber", "own-process subscriber"
]


@dataclass(frozen=True, slots=True)
class Verb:
    """A kind of fault.

    Attributes:
        on: kinds of targets.
        lasts: True if the fault lasts until it is undone, and so needs a `for`.
        options: further keys of a step that the verb takes; "!" marks a required key.
        needs: requirements on the machine, beyond the broker and its agent.
        effect: the effect in a few words.
        seen_by: the evidence of the effect.
        undone_by: the action that ends the fault, alike for schedule, `heal`, Ctrl-C and lease; ""
            if there is nothing to undo.
        needs_messages: True if only messages show the effect, so that idle brokers show none.
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

    @property
    def option_names(self) -> tuple[str, ...]:
        """Keys of a step that the verb takes beside the common keys."""
        return tuple(option.rstrip("!") for option in self.options)

    @property
    def required(self) -> tuple[str, ...]:
        """Keys that the verb requires."""
        return tuple(option.rstrip("!") for option in self.options if option.endswith("!"))


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
            "takes everything in and lets nothing but heartbeats out",
            "the broker's count of absorbed messages, and none forwarded",
            "releasing what it holds, in order; that is lost when its broker or session ends first",
            needs=_MESSAGES,
            needs_messages=True,
        ),
        Verb(
            "send-omission",
            ("broker",),
            True,
            "takes everything in, handles and logs it, and lets nothing but heartbeats out",
            "the broker's count of messages that it did not send",
            "sending what it holds, in order; that is lost when its broker or session ends first",
            needs=_MESSAGES,
            needs_messages=True,
        ),
        Verb(
            "blackhole",
            ("broker", "link"),
            True,
            "nothing passes, and nobody is told",
            "frames or packets that were dropped, or sessions given up",
            f"{_BROKER}; with nft by deleting its table",
            ("backend",),
            _NFT,
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
        ),
        Verb(
            "freeze",
            ("broker",),
            True,
            "stops the process (SIGSTOP)",
            "every thread in state T",
            "SIGCONT, by the agent or a watchdog of its own",
        ),
        Verb(
            "cpu-share",
            ("broker",),
            True,
            "lets the process run for that share of the time only (SIGSTOP, SIGCONT, in turn)",
            "samples in which every thread is in state T, and others in which none is",
            "SIGCONT, by the agent or a watchdog of its own",
            ("share!",),
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
        ),
        Verb(
            "delay",
            ("broker", "link"),
            True,
            "everything arrives that much later, in order",
            "how long connecting takes",
            _BROKER,
            ("latency!",),
        ),
        Verb(
            "bandwidth",
            ("broker", "link"),
            True,
            "no more bytes than that pass in a second",
            "the broker's count of messages it held back",
            _BROKER,
            ("bytes_per_second!",),
            _MESSAGES,
            needs_messages=True,
        ),
        Verb(
            "disk-full",
            ("broker",),
            True,
            "writes beyond a quota are refused with ENOSPC; the machine's disk stays as it is",
            "a write probe that is refused",
            _BROKER,
            ("free_bytes",),
        ),
        Verb(
            "slow-fsync",
            ("broker",),
            True,
            "what is durable is called so that much later",
            "a write probe that takes as long",
            _BROKER,
            ("latency!",),
        ),
        Verb(
            "host-loss",
            ("machine",),
            True,
            "kills all brokers of a machine at once",
            "how each of them ended",
            "starting them again, by the agent or its successor",
        ),
        Verb(
            "kill",
            ("broker",),
            False,
            "ends the process (SIGKILL, or signal)",
            "exit status",
            "restart, or the next deploy",
            ("signal",),
        ),
        Verb(
            "term",
            ("broker",),
            False,
            "lets the process end in order (SIGTERM)",
            "exit status",
            "restart, or the next deploy",
        ),
        Verb(
            "restart",
            ("broker",),
            False,
            "starts a broker that has ended",
            "new pid and start time, and the broker's own status",
            "",
        ),
        Verb(
            "crash",
            ("broker",),
            False,
            "short for absorb (stall), kill, restart (down)",
            "what shows these",
            "what undoes these",
            ("stall", "down"),
            f"nothing more; with stall: {_MESSAGES}",
        ),
        Verb(
            "client-disconnect",
            ("client",),
            True,
            "drops a client's connection without a word, and keeps it away",
            "its session log: the session lost, and no other",
            f"letting it connect and resume; {_LOAD_ENDS}",
            needs=_LOAD,
        ),
        Verb(
            "client-slow",
            ("subscriber",),
            True,
            "a subscriber takes in nothing more, and so acknowledges nothing",
            "publications that have come to it and wait",
            f"letting it take in what waits; {_LOAD_ENDS}",
            needs=_LOAD,
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
        ),
    )
}

VERBS: Final = tuple(VERB_TABLE)
HOLDING_VERBS: Final = ("absorb", "send-omission")
"""Verbs that hold messages back. Held messages are released, or lost if the target is ended."""
LASTING_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if verb.lasts)
ENDING_VERBS: Final = ("kill", "term")
LIMITING_VERBS: Final = ("delay", "bandwidth", "disk-full", "slow-fsync", "cpu-share")
"""Verbs that cause delays, and no failure."""
CLIENT_VERBS: Final = tuple(
    verb.name for verb in VERB_TABLE.values() if verb.name.startswith("client-")
)
FAILING_VERBS: Final = tuple(
    name for name in VERB_TABLE if name not in (*LIMITING_VERBS, *CLIENT_VERBS, "restart", "crash")
)
"""Verbs that count as the failure of a broker or link."""
LINK_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if "link" in verb.on)
SET_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if "sets" in verb.on)
MACHINE_VERBS: Final = tuple(verb.name for verb in VERB_TABLE.values() if "machine" in verb.on)


@cache
def takers(option: str) -> tuple[str, ...]:
    """Return the verbs that take an option."""
    return tuple(verb.name for verb in VERB_TABLE.values() if option in verb.option_names)
