"""What was typed in place of what a workload file says."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench.spec.keys import check_keys, of_workload, with_keys

_KEYS: Final = {
    "protocol": "protocol", "topology": "topology", "seed": "seed",
    "rate": "publishers.rate", "size": "publishers.size", "publishers": "publishers.count",
    "subscribers": "subscribers.count", "warmup": "phases.warmup", "measure": "phases.measure",
    "drain": "phases.drain", "churn": "churn", "records": "load.records",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What was typed in place of what the workload file says; None where nothing was.

    Values are texts as in the file ("50/s", "10s"). `rate`, `size` and `publishers` hold for
    every [[publishers]] entry, `subscribers` for every [[subscribers]] entry. Without `churn`
    nobody is disconnected, and a workload that has some is calm. `keys` are values by dotted key,
    which nothing else that was typed changes any more: see `bench.spec.keys`.
    """

    protocol: str | None = None
    topology: str | None = None
    seed: int | None = None
    rate: str | None = None
    size: str | None = None
    publishers: int | None = None
    subscribers: int | None = None
    warmup: str | None = None
    measure: str | None = None
    drain: str | None = None
    churn: bool | None = None
    records: str | None = None
    keys: Mapping[str, Any] | None = None

    def dotted(self) -> list[str]:
        """The keys that were typed, each once for every way in which it was."""
        return [
            *(_KEYS[name] for name in self.as_mapping() if name in _KEYS), *(self.keys or {}),
        ]  # fmt: skip

    def as_mapping(self) -> dict[str, Any]:
        """Only what was typed."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


def with_overrides(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """A workload file's values with what was typed in their place.

    Wrong shapes are left to whoever checks the values.

    Raises:
        ConfigError: a key leads nowhere, or two values were typed for one.
    """
    check_keys(overrides.dotted())
    typed = overrides.as_mapping()
    changed: dict[str, Any] = dict(values)
    for key in ("protocol", "topology", "seed"):
        if key in typed:
            changed[key] = typed[key]
    phases = {key: typed[key] for key in ("warmup", "measure", "drain") if key in typed}
    if phases:
        changed["phases"] = {**_table(changed.get("phases")), **phases}
    if typed.get("churn") is False and changed.pop("churn", None) is not None:
        changed["calm"] = True
    if "records" in typed:
        changed["load"] = {**_table(changed.get("load")), "records": typed["records"]}
    _override_entries(
        changed, "publishers", typed, {"rate": "rate", "size": "size", "publishers": "count"}
    )
    _override_entries(changed, "subscribers", typed, {"subscribers": "count"})
    return with_keys(changed, of_workload(overrides.keys or {}))


def _override_entries(
    values: dict[str, Any], key: str, typed: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    changes = {names[name]: value for name, value in typed.items() if name in names}
    entries = values.get(key)
    if changes and isinstance(entries, list):
        values[key] = [{**_table(entry), **changes} for entry in entries]


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
