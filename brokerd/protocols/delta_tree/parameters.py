"""Parameters of delta_tree, with switches and the profiles that set switches.

Paper: [DFT11] §IV-VII.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from brokerd.config import read_section
from brokerd.errors import ConfigError
from brokerd.units import MILLISECOND_NS, SECOND_NS

SWITCHES: dict[str, tuple[str, ...]] = {
    "accept": ("early", "late"),
    "tag_eval": ("path", "pt"),
    "cut": ("src", "full"),
    "dedupe": ("source", "vector", "both"),
    "legitimacy": ("observe", "hold"),
}
"""The switches that a profile of delta_tree sets, with their choices."""

PROFILES: dict[str, dict[str, str]] = {
    "robust": {
        "accept": "early",
        "tag_eval": "path",
        "cut": "src",
        "dedupe": "source",
        "legitimacy": "observe",
    },
    "paper": {
        "accept": "late",
        "tag_eval": "pt",
        "cut": "full",
        "dedupe": "vector",
        "legitimacy": "hold",
    },
}
"""The profiles of delta_tree: the default of every switch."""

NEEDED_SWITCHES = (
    ("accept", "late", "cut", "full"),
    ("dedupe", "vector", "legitimacy", "hold"),
)
"""Choices of a first switch that require the choice of a second switch.

Otherwise publications are lost or duplicated within delta failures. Simulations show it
(PROTOCOL.md, Profiles); brokers refuse the combination.
"""

VECTOR_WARNING = (
    "duplicates are detected by sequence vectors (profile paper): a crashed broker may cause "
    'duplicates, disorder or loss; not so with dedupe = "source", as in profile robust '
    "(brokerd/protocols/delta_tree/PROTOCOL.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTreeParameters:
    """Parameters of delta_tree.

    Attributes:
        delta: failures to tolerate at once; the neighbourhood radius is delta + 1. A higher delta
            costs sessions (the ball grows with fan-out ** (delta + 1)).
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is dialled again; doubles
            up to the limit.
        queue_limit: publications in a broker's queue at which the broker writes to the event log.
            Nothing is dropped or refused: the publishers' windows bound the queue.
        persist_routing: whether a subscription is on disk at every broker that has confirmed the
            subscription. Without, a broker that restarts has only subscriptions of the broker's own
            clients, and the promise holds for crashes only while the neighbours are reachable.
        client_window: number of unacknowledged publications of a client at which deliveries wait.
        client_subscriptions: greatest number of subscriptions of a client; further ones are
            refused.
        client_linger_ns: duration for which subscriptions of a disconnected subscriber are kept
            (and deliveries held, unconfirmed).
        audit_interval_ns: interval between a broker's requests about tagged parts of the tree, in
            case the answer was lost in two crashes.
        cold_start_after_ns: wait of a component of recovering brokers for a broker that is not
            recovering, before the component continues alone.
        publication_log: whether a publication is on disk at the publisher's broker before the
            acknowledgement, and acknowledged then. Without, a publication is acknowledged once the
            audience has confirmed, and until then the publisher itself has to keep the publication.
            With the log, at most `queue_limit` publications of a source are acknowledged and not
            yet confirmed.
        profile: "robust", or "paper" for [DFT11] as written except for errors; sets the
            switches below that are left "".
        accept: whether a broker routes by a subscription on arrival ("early"), or after the
            confirmations of all brokers behind ("late").
        tag_eval: whether a home broker looks for the source of a publication behind a partition
            on the publication's path ("path"), or in the publication's tags, which brokers near the
            partition add from the partition table ("pt").
        cut: whether a start cut contains the sequence numbers of a source's own broker only
            ("src"), or of every broker on the way too ("full", needed with "late").
        dedupe: the detection of duplicates. "source": by the publisher's own numbers; correct
            after any restart. "vector": by the stamps of the 2δ + 1 brokers before; wrong if a
            broker among them restarts between two copies. "both": decides by source, and counts
            disagreements of the vectors.
        legitimacy: the handling of a publication that would bypass more than δ of 2δ + 1
            consecutive brokers. "observe": the publication is forwarded, and counted if a vector is
            present. "hold": the publication waits, and everything for the same hop behind, until a
            path exists.
        switch: the handling of unconfirmed publications when the next hop of a destination
            changes while the old hop is alive. "resend": all go to the new hop, at once.
            "drain": all stay at the old hop, and newer publications wait for the confirmations;
            fewer duplicates, a longer pause.
        assist: "on": two live brokers with a broken link have a session that a third broker relays,
            so that up to delta failures of links stall nothing. "off": publications between the two
            wait for the link.

    Paper: [DFT11] §IV-VII.
    """

    delta: int = 1
    retry_first_ns: int = 500 * MILLISECOND_NS
    retry_limit_ns: int = 2 * SECOND_NS
    queue_limit: int = 100_000
    persist_routing: bool = True
    client_window: int = 16_384
    client_subscriptions: int = 1_000
    client_linger_ns: int = 60 * SECOND_NS
    audit_interval_ns: int = 10 * SECOND_NS
    cold_start_after_ns: int = 30 * SECOND_NS
    publication_log: bool = False
    assist: str = "on"
    profile: str = "robust"
    accept: str = ""
    tag_eval: str = ""
    cut: str = ""
    dedupe: str = ""
    legitimacy: str = ""
    switch: str = "resend"

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise ValueError(f"profile = {self.profile!r}; one of {', '.join(PROFILES)}")
        for switch, choices in SWITCHES.items():
            chosen = getattr(self, switch) or PROFILES[self.profile][switch]
            if chosen not in choices:
                raise ValueError(f"{switch} = {chosen!r}; one of {', '.join(choices)}")
            object.__setattr__(self, switch, chosen)
        if self.switch not in ("resend", "drain"):
            raise ValueError(f"switch = {self.switch!r}; one of resend, drain")
        if self.assist not in ("off", "on"):
            raise ValueError(f"assist = {self.assist!r}; one of off, on")

    def in_profile(self, profile: str) -> Self:
        """Return the parameters with all switches of another profile."""
        return replace(
            self, profile=profile, accept="", tag_eval="", cut="", dedupe="", legitimacy=""
        )

    def check(self, where: str) -> None:
        """Check that the switches fit together.

        Raises:
            ConfigError: a switch needs another value; names it in `where`.
        """
        for switch, value, other, needed in NEEDED_SWITCHES:
            now = getattr(self, other)
            if getattr(self, switch) == value and now != needed:
                raise ConfigError(
                    f"{where}: {switch} = {value!r} with {other} = {now!r} loses or repeats "
                    f"publications when a link fails; it needs {other} = {needed!r}"
                )

    def warnings(self) -> tuple[str, ...]:
        """Return the weaker promises of duplicate detection by vectors."""
        return (VECTOR_WARNING,) if self.dedupe == "vector" else ()

    @property
    def carries_vectors(self) -> bool:
        """True if publications carry a sequence vector."""
        return self.dedupe != "source" or self.legitimacy == "hold"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Return the parameters in `values`, with defaults for missing keys.

        Raises:
            ConfigError: an unknown key or a value of the wrong type; names the key in `where`.
        """
        parameters: Self = read_section(cls, dict(values), where)
        return parameters
