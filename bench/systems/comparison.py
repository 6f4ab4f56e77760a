"""Comparisons: one workload and fault schedule for several systems, defined in TOML."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from bench.spec.named_files import resolve_name
from bench.spec.spec import read_toml
from bench.spec.validation import SpecError, validate
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.protocols.registry import definition_of
from brokerd.units import parse_duration_ns

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class Entry(BaseModel):
    """A side of a comparison: a protocol of this project, or a configuration of a system.

    Attributes:
        name: name on the command line.
        title: title in the report; the name by default.
        topology: topology of the protocol; the topology of the workload by default.
        set: for a protocol, values by key that replace values of workload and topology.
        system: a configuration such as `external/jetstream3`, or the file of a configuration.
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
            raise ValueError(
                f"an external system places its own servers: use {key} with our protocols only"
            )
        return self


def _check_protocol(name: str) -> None:
    try:
        definition_of(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _check_duration(text: str) -> str:
    parse_duration_ns(text)
    return text


class ComparisonFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_: Annotated[Literal["pubsubctl/comparison/1"], Field(alias="schema")]
    title: Annotated[str, Field(min_length=1, max_length=120)]
    workload: str
    faults: str | None = None
    measure: Annotated[str, AfterValidator(_check_duration)] | None = None
    entry: Annotated[list[Entry], Field(min_length=2)]


@dataclass(frozen=True)
class Comparison:
    """A comparison under the same load and faults.

    Attributes:
        title: title of the report.
        faults: fault schedule; None for none.
        measure: length of the measurement; None for the length in the workload.
    """

    name: str
    title: str
    workload: str
    faults: str | None
    measure: str | None
    entries: tuple[Entry, ...]

    def select(self, names: list[str]) -> "Comparison":
        """Return the comparison with these entries only, in file order; all entries without names.

        Raises:
            SpecError: a name is unknown; names the nearest name.
        """
        known = [entry.name for entry in self.entries]
        for name in names:
            if name not in known:
                raise SpecError(f"comparison {self.name}: no entry {name!r}{nearest(name, known)}")
        entries = tuple(entry for entry in self.entries if not names or entry.name in names)
        return replace(self, entries=entries)

    def with_systems(self, systems: list[str]) -> "Comparison":
        """Return the comparison with further configurations of systems, named by their files."""
        more = tuple(Entry(name=Path(text).stem, system=text) for text in systems)
        return replace(self, entries=(*self.entries, *more))


def load_comparison(path: Path) -> Comparison:
    """Return the comparison in a file.

    Raises:
        SpecError: the comparison cannot be used; names file, key, value and valid values.
    """
    document: dict[str, Any] = read_toml(path)
    file = validate(ComparisonFile, document, str(path))
    names = [entry.name for entry in file.entry]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise SpecError(f"{path}: entry[{place}].name = {name!r}: is there twice")
    workload = resolve_name(file.workload, path)
    faults = None if file.faults is None else resolve_name(file.faults, path)
    entries = tuple(
        entry
        if entry.topology is None
        else entry.model_copy(update={"topology": resolve_name(entry.topology, path)})
        for entry in file.entry
    )
    return Comparison(path.stem, file.title, workload, faults, file.measure, entries)
