"""Parameters of delta_tree, its switches, and the profiles that choose them.

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
"""What a profile of delta_tree chooses between."""

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
"""The profiles of delta_tree: what each of its switches is unless it is set on its own."""

NEEDED_SWITCHES = (
    ("accept", "late", "cut", "full"),
    ("dedupe", "vector", "legitimacy", "hold"),
)
"""With the first switch so, the second has to be so: without, publications are lost or come
twice within delta failures. Simulations show it (PROTOCOL.md §7, §8); brokers do not run it.
"""

VECTOR_WARNING = (
    "duplicates are told by sequence vectors (profile paper): a broker that crashes may cause "
    'duplicates, disorder or loss; not so with dedupe = "source", as in profile robust '
    "(brokerd/protocols/delta_tree/PROTOCOL.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTreeParameters:
    """Parameters of delta_tree.

    Attributes:
        delta: failures to tolerate at once; the neighbourhood radius is delta + 1. Raising it
            costs sessions (the ball grows with fan-out ** (delta + 1)).
        retry_first_ns, retry_limit_ns: wait before an unreachable broker is tried again; doubles
            up to the limit.
        queue_limit: publications a broker holds before it says so in its event log. Nothing is
            dropped or refused: what a publisher may have unacknowledged bounds the queue.
        persist_routing: whether a subscription is on disk at every broker that has confirmed
            it. Without, a broker that restarts knows its own clients' subscriptions only, and
            the promise holds for crashes only while its neighbours are reachable.
        client_window: publications a client may have unacknowledged before deliveries wait.
        client_subscriptions: how many subscriptions a client may have; more are refused.
        client_linger_ns: how long a vanished subscriber's subscriptions stay (its deliveries
            are held, unconfirmed, meanwhile).
        audit_interval_ns: how often a broker asks again about the parts of the tree that its
            subscriptions do not hear, in case the answer was lost in two crashes.
        cold_start_after_ns: how long a component in which every broker is recovering waits for
            one that is not before it goes on alone.
        publication_log: whether a publication is on disk at its publisher's broker before it is
            acknowledged, and acknowledged then. Without, it is acknowledged once everybody has
            it, and until then the publisher itself has to keep it. With it, at most
            `queue_limit` publications of one source are acknowledged and not yet done.
        profile: "robust", or "paper" for [DFT11] as it is written but for its errors; fills in
            the switches below that are left "".
        accept: whether a broker routes by a subscription on arrival ("early"), or when all
            behind it have confirmed ("late").
        tag_eval: whether a home broker looks for the source of a publication behind a partition
            on the publication's path ("path"), or in what brokers near the partition stamped
            on it from their partition tables ("pt").
        cut: whose word on where a source is goes into a start cut: that of its own broker
            ("src"), or of every broker on the way too ("full", needed with "late").
        dedupe: how a broker tells a first copy from another one. "source": by the publisher's
            own numbers; right whatever restarts. "vector": by the stamps of the 2δ + 1 brokers
            before it; goes wrong when one of them restarts between two copies. "both": decides
            by source, and counts where the vectors would have decided otherwise.
        legitimacy: what happens to a publication that would have gone past more than δ of 2δ + 1
            consecutive brokers. "observe": it goes on, and is counted where it carries a vector.
            "hold": it waits, and everything for the same hop behind it, until there is a way.
        switch: what happens to unconfirmed publications when the next hop of their destination
            changes while the old one is alive. "resend": all go to the new hop, at once.
            "drain": they stay where they are, and newer ones wait until those are confirmed;
            fewer duplicates, a longer pause.
        assist: "on": two live brokers whose link is down have a session that a third one relays,
            so that up to delta failures of links stall nothing. "off": what lies between them
            waits for the link.

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
        """The same, with everything that a profile chooses chosen by this one."""
        return replace(
            self, profile=profile, accept="", tag_eval="", cut="", dedupe="", legitimacy=""
        )

    def check(self, where: str) -> None:
        """Make sure that the switches together bear what one of them is for.

        Raises:
            ConfigError: they do not; says which one has to be what, in `where`.
        """
        for switch, value, other, needed in NEEDED_SWITCHES:
            now = getattr(self, other)
            if getattr(self, switch) == value and now != needed:
                raise ConfigError(
                    f"{where}: {switch} = {value!r} with {other} = {now!r} loses or repeats "
                    f"publications when a link fails; it needs {other} = {needed!r}"
                )

    def warnings(self) -> tuple[str, ...]:
        """What duplicate detection by vectors does not promise."""
        return (VECTOR_WARNING,) if self.dedupe == "vector" else ()

    @property
    def carries_vectors(self) -> bool:
        """Whether publications carry a sequence vector."""
        return self.dedupe != "source" or self.legitimacy == "hold"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """The parameters in `values`, with the defaults for what is not there.

        Raises:
            ConfigError: an unknown key or a value of the wrong type; says which, in `where`.
        """
        parameters: Self = read_section(cls, dict(values), where)
        return parameters
