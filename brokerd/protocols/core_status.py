"""The status of a core, for people and for JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, TypeVar

from brokerd.model.identity import BrokerNumber

Broker = TypeVar("Broker", BrokerNumber, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStatus(Generic[Broker]):
    """The status of a core. Brokers are numbers in its process, and names outside, in JSON.

    Attributes:
        state: `running`, or `recovering` while required state is missing.
        queued: number of publications that are not complete here.
        subscriptions: number of subscriptions that the core has.
        own_subscriptions: number of subscriptions of this broker's clients.
        wanted: brokers to which the core wants a session.
        ready: brokers to which the core has a usable session.
        idle_reasons: reasons why the core is not idle, for people; empty if it may stop.
        detail: JSON-ready, specific to the protocol; shared code only prints it.
        discrepancies: contradictions between the broker's view and its topology or log, for
            people.
    """

    state: str
    queued: int = 0
    subscriptions: int = 0
    own_subscriptions: int = 0
    wanted: tuple[Broker, ...] = ()
    ready: tuple[Broker, ...] = ()
    idle_reasons: tuple[str, ...] = ()
    detail: Mapping[str, Any] = field(default_factory=dict)
    discrepancies: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Broker, ...]:
        """Wanted brokers without a usable session."""
        return tuple(broker for broker in self.wanted if broker not in self.ready)

    def to_mapping(self, names: Mapping[Broker, str]) -> dict[str, Any]:
        """Return the status for JSON, with the names of brokers."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        for key in ("wanted", "ready"):
            found[key] = [names[broker] for broker in found[key]]
        lists = {key: list(found[key]) for key in ("idle_reasons", "discrepancies")}
        return {**found, **lists, "detail": dict(self.detail)}

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> "CoreStatus[str]":
        """Return the status in a JSON object with names of brokers; ignore unknown keys."""
        return CoreStatus(
            state=values["state"],
            queued=values["queued"],
            subscriptions=values["subscriptions"],
            own_subscriptions=values["own_subscriptions"],
            wanted=tuple(values["wanted"]),
            ready=tuple(values["ready"]),
            idle_reasons=tuple(values["idle_reasons"]),
            detail=values["detail"],
            discrepancies=tuple(values.get("discrepancies", ())),
        )
