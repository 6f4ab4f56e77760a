"""Overrides: values of the command line that replace values of a workload file."""

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
    """Overrides of a workload file; None for a value that is not overridden.

    Values are texts as in the file ("50/s", "10s"). `rate`, `size` and `publishers` apply to every
    [[publishers]] entry, `subscribers` to every [[subscribers]] entry. If `churn` is False, no
    subscriber is disconnected, and a workload with churn becomes calm. `keys` are values by dotted
    key, and no other override changes the same value; see `bench.spec.keys`.
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
        """Return the dotted keys of all overrides, with duplicates."""
        return [
            *(_KEYS[name] for name in self.as_mapping() if name in _KEYS), *(self.keys or {}),
        ]  # fmt: skip

    def as_mapping(self) -> dict[str, Any]:
        """Return only the overridden values."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None}


def with_overrides(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return a workload file's values with the overrides in place.

    Values of a wrong shape are left for the validation.

    Raises:
        ConfigError: a key leads nowhere, or two overrides set the same value.
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
