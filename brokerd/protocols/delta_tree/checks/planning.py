"""The parameters that simulated seeds draw for delta_tree."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from brokerd.protocols.delta_tree.parameters import PROFILES, DeltaTreeParameters
from brokerd.simulator.checks.marks import JOINED_FAILED
from brokerd.simulator.checks.planning import ProtocolPlanning
from brokerd.simulator.world.clock import NEVER_NS
from brokerd.units import SECOND_NS

_NEEDED: dict[str, dict[str, Any]] = {
    "M19": {"dedupe": "vector", "legitimacy": "hold"},
    "hold-out-of-order": {"legitimacy": "hold", "assist": "off"},
    "drain-compares-peers": {"switch": "drain"},
}
"""Bugs in features that are off by default. These may wait for a link, so no link stays broken."""

PAPER_LITERAL = frozenset(
    (
        "no-cut",
        "no-last-in-cut",
        "tags-may-grow",
        "every-partition-tagged",
        "gone-early",
    )
)
"""Named bugs: what [DFT11] says where profile "paper" does not follow it.

With that profile, the paper to the letter. It loses publications: see PROTOCOL.md.
"""

LITERAL = "paper-literal"
"""The paper with its errors: the repairs of profile "paper" are disabled as bugs."""


class DeltaTreePlanning(ProtocolPlanning):
    """See ProtocolPlanning."""

    profiles: ClassVar[Mapping[str, frozenset[str]]] = {
        **dict.fromkeys(PROFILES, frozenset()),
        LITERAL: PAPER_LITERAL,
    }
    kept: ClassVar[tuple[str, ...]] = (
        "client_linger_ns",
        "cold_start_after_ns",
        "persist_routing",
        "assist",
    )
    rare: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    compounds: ClassVar[Mapping[str, int]] = {
        JOINED_FAILED: 150,
    }
    draws_restored: ClassVar[bool] = True
    waits_for_publishers: ClassVar[bool] = True
    fixed: ClassVar[Mapping[str, str]] = {
        "profile": "a name for the values of other parameters",
        "persist_routing": "without, the promise needs reachable neighbours; the campaign draws it",
    }

    def options(
        self, seed: int, parameters: DeltaTreeParameters, *, long: bool, simple: bool
    ) -> DeltaTreeParameters:
        parameters = _draw_timers(Random(f"timers {seed}"), parameters, long)
        parameters = _draw_limits(Random(f"limits {seed}"), parameters)
        return _draw_options(Random(f"options {seed}"), parameters, simple)

    def rare_options(
        self, seed: int, parameters: DeltaTreeParameters, *, timed: bool = True
    ) -> DeltaTreeParameters:
        """See ProtocolPlanning: switches of profile "paper" with the same promises as ours."""
        chosen: DeltaTreeParameters = super().rare_options(seed, parameters, timed=timed)
        draw = Random(f"rare switches {seed}").random()
        if draw < 0.1:
            return replace(chosen, accept="late", cut="full")
        if draw < 0.2:
            return replace(chosen, cut="full")
        return replace(chosen, tag_eval="pt") if draw < 0.3 else chosen

    def wait_options(self, seed: int, parameters: DeltaTreeParameters) -> DeltaTreeParameters:
        """Return parameters with which publications may wait for a link, even forever.

        Vectors beside sources detect the same duplicates only if propagation is legitimate.
        """
        random = Random(f"waiting {seed}")
        if random.random() < 0.25:
            parameters = replace(parameters, dedupe="both", legitimacy="hold")
        if random.random() < 0.15:
            parameters = replace(parameters, switch="drain")
        return parameters

    def trial(self, random: Random, values: Mapping[str, Any], delta: int) -> Any:
        logged = random.random() < 0.2
        return self.parameters(delta, {**values, "publication_log": logged})

    def required_parameters(self, bugs: Iterable[str]) -> Mapping[str, Any]:
        return {key: value for bug in sorted(bugs) for key, value in _NEEDED.get(bug, {}).items()}

    def can_wait_for_links(self, parameters: DeltaTreeParameters) -> bool:
        return parameters.legitimacy == "hold" or parameters.switch == "drain"

    def in_profile(self, parameters: DeltaTreeParameters, profile: str) -> Any:
        if profile not in self.profiles:
            return super().in_profile(parameters, profile)
        return parameters.in_profile("paper" if profile == LITERAL else profile)

    def counters(self, parameters: DeltaTreeParameters) -> Mapping[str, int]:
        return {"seeds_telling_duplicates_both_ways": int(parameters.dedupe == "both")}


def _draw_timers(
    random: Random, parameters: DeltaTreeParameters, long: bool
) -> DeltaTreeParameters:
    """Draw the times after which a broker acts alone, long after its peers should have caused it.

    A third of the seeds has no audit: it would repair the omissions of others. In another
    third a departed client is never evicted.
    """
    lingers = (10, 60) if long else (1, 3)
    without_audit = random.random() < 1 / 3
    return replace(
        parameters,
        audit_interval_ns=NEVER_NS if without_audit else parameters.audit_interval_ns,
        cold_start_after_ns=random.choice((1, 4, 30)) * SECOND_NS,
        client_linger_ns=random.choice((NEVER_NS, *(length * SECOND_NS for length in lingers))),
    )


def _draw_limits(random: Random, parameters: DeltaTreeParameters) -> DeltaTreeParameters:
    """Draw the limits at which a broker writes to its event log, or refuses more."""
    if random.random() < 0.3:
        parameters = replace(parameters, queue_limit=random.choice((3, 20)))
    if random.random() < 0.2:
        parameters = replace(parameters, client_subscriptions=random.choice((1, 2, 3)))
    return parameters


def _draw_options(
    random: Random, parameters: DeltaTreeParameters, simple: bool
) -> DeltaTreeParameters:
    """Draw optional parts of the protocol; these leave the rest of the plan as it is.

    A simple plan has no relayed sessions.
    """
    return replace(
        parameters,
        publication_log=random.random() < 0.2,
        assist="off" if simple or random.random() < 0.1 else "on",
    )
