"""Comparisons: one workload and fault schedule over brokers of ours and of others, from TOML."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.spec.spec import SpecError, read_toml, validated
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import definition_of

SCHEMA: Final = "pubsubctl/comparison/1"
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class Entry(BaseModel):
    """One side of a comparison: a protocol of ours, or a configuration of a system.

    Attributes:
        name: on the command line.
        title: in the report; the name without it.
        topology: of ours; without it the workload's.
        set: of ours: values of keys of workload and topology, in place of what the files say.
        system: such as `external/jetstream3`, or the file of a configuration.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(pattern=f"^{_NAME}$")]
    title: Annotated[str, Field(max_length=60)] = ""
    protocol: str | None = None
    topology: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    system: str | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "Entry":
        if (self.protocol is None) == (self.system is None):
            raise ValueError("needs either a protocol (of ours) or a system")
        if self.protocol is not None:
            _check_protocol(self.protocol)
        if self.system is not None and (self.topology is not None or self.set):
            key = "set" if self.topology is None else "topology"
            raise ValueError(f"a system says itself where it runs: {key} is for protocols of ours")
        return self


def _check_protocol(name: str) -> None:
    try:
        definition_of(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_: Annotated[Literal["pubsubctl/comparison/1"], Field(alias="schema")]
    title: Annotated[str, Field(min_length=1, max_length=120)]
    workload: str
    faults: str | None = None
    measure: str | None = None
    entry: Annotated[list[Entry], Field(min_length=2)]


@dataclass(frozen=True)
class Comparison:
    """What is put under the same load and faults.

    Attributes:
        title: of its report.
        faults: None for none.
        measure: how long, in the place of the workload's; None: as long as that says.
    """

    name: str
    title: str
    workload: str
    faults: str | None
    measure: str | None
    entries: tuple[Entry, ...]

    def only(self, names: list[str]) -> "Comparison":
        """The same with these entries, in their order there; all where none is named.

        Raises:
            SpecError: there is none of a name; says the nearest.
        """
        known = [entry.name for entry in self.entries]
        for name in names:
            if name not in known:
                raise SpecError(f"comparison {self.name}: no entry {name!r}{nearest(name, known)}")
        entries = tuple(entry for entry in self.entries if not names or entry.name in names)
        return replace(self, entries=entries)

    def also(self, systems: list[str]) -> "Comparison":
        """The same with configurations of systems besides, each called as its file."""
        more = tuple(Entry(name=Path(text).stem, system=text) for text in systems)
        return replace(self, entries=(*self.entries, *more))


def load_comparison(path: Path) -> Comparison:
    """The comparison in a file.

    Raises:
        SpecError: it cannot be; says file, key, value and what is valid.
    """
    document: dict[str, Any] = read_toml(path)
    file = validated(_File, document, str(path))
    names = [entry.name for entry in file.entry]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise SpecError(f"{path}: entry[{place}].name = {name!r}: is there twice")
    return Comparison(
        path.stem, file.title, file.workload, file.faults, file.measure, tuple(file.entry)
    )
