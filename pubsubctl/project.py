"""Locations: project folder, settings by precedence, files by bare name.

A project is a folder with a pubsubctl.toml (this repository is one, `pubsubctl init` makes
another). Each setting is looked up as flag, then PUBSUBCTL_* variable, then project file, then the
user's own file, then default. A file of a kind is named by path, or by its bare name if the file is
in the project's folder for that kind, or is part of this program.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from bench.spec.named_files import PROJECT_FILE
from brokerd.text import first_word, nearest
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import TomlFile, check_schema, load_toml, shown, validate

SCHEMA = "pubsubctl/project/1"
DEFAULTS: Mapping[str, str] = {
    "inventory": "local",
    "results": "results/runs",
    "forks": "16",
    "master": "local[*]",
}
"""Every setting with its default."""
_FLAGS: Mapping[str, str] = {"results": "--output-dir"}
"""Options with another name than their setting."""

Kind = Literal[
    "inventory", "topology", "workload", "schedule", "claims", "comparison", "sweep", "targets"
]
_FOLDERS: Mapping[Kind, str] = {
    "inventory": "inventories",
    "topology": "bench/topologies",
    "workload": "bench/workloads",
    "schedule": "fault_injection",
    "claims": "bench/claims",
    "comparison": "bench/comparisons",
    "sweep": "bench/sweeps",
    "targets": "bench/targets",
}
_PACKAGED: Mapping[Kind, tuple[str, str]] = {
    "inventory": ("pubsubctl", "scaffold/inventories"),
    "topology": ("bench", "topologies"),
    "workload": ("bench", "workloads"),
    "schedule": ("fault_injection", ""),
    "claims": ("bench", "claims"),
    "comparison": ("bench", "comparisons"),
    "sweep": ("bench", "sweeps"),
    "targets": ("bench", "targets"),
}


def _settings_in(file: TomlFile) -> Mapping[str, Any]:
    """Return the settings of a project's or a user's file.

    Each command reads these files, so a valid file is read without pydantic, which imports slowly.

    Raises:
        UserError: with every problem, one line per problem.
    """
    check_schema(file, SCHEMA)
    return file.values if _is_plain(file.values) else _validated(file)


def _is_plain(values: Mapping[str, Any]) -> bool:
    forks, master = values.get("forks", 1), values.get("master", "none")
    return (
        values.keys() <= {"schema", *DEFAULTS}
        and all(isinstance(value, str) for key, value in values.items() if key != "forks")
        and type(forks) is int
        and 1 <= forks <= 1024
        and master != ""
    )


def _validated(file: TomlFile) -> Mapping[str, Any]:
    from pydantic import BaseModel, ConfigDict, Field

    class ProjectFile(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        schema_: Literal["pubsubctl/project/1"] = Field(alias="schema")
        inventory: str | None = None
        results: str | None = None
        forks: Annotated[int, Field(ge=1, le=1024)] | None = None
        master: Annotated[str, Field(min_length=1)] | None = None

    return validate(ProjectFile, file).model_dump(exclude_none=True)


@dataclass(frozen=True)
class Setting:
    """A setting's value with its origin."""

    value: str
    origin: str
    base: Path
    """The base folder of a relative path in `value`."""


def number_of_forks(text: str, origin: str) -> int:
    """Return a number of hosts that are operated on at the same time.

    Raises:
        UserError: the text is not a number from 1 to 1024.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= 1024):
        raise UserError(f"{origin}: forks = {shown(text)}; a number from 1 to 1024")
    return int(text)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return an error for each PUBSUBCTL_* variable that is no setting, with the nearest."""
    known = [f"PUBSUBCTL_{name.upper()}" for name in DEFAULTS]
    return [
        f"{name}: no such variable{nearest(name, known)}"
        for name in sorted(environment)
        if name.startswith("PUBSUBCTL_") and name not in known
    ]


class Project:
    """The project around a folder, with the settings that hold there.

    Args:
        folder: where the search for pubsubctl.toml begins, upwards.
        environment: the PUBSUBCTL_* and XDG_* variables.

    Raises:
        UserError: pubsubctl.toml or the user's file cannot be used.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._here = folder
        found = [
            parent for parent in (folder, *folder.parents) if (parent / PROJECT_FILE).is_file()
        ]
        self.folder = found[0] if found else folder
        self._layers: list[tuple[Path, Mapping[str, Any]]] = []
        user_file = xdg_folder("config", self._environment) / "config.toml"
        for path in ([found[0] / PROJECT_FILE] if found else []) + [user_file]:
            if path.is_file():
                file = load_toml(_short(path, folder))
                self._layers.append((path, _settings_in(file)))

    def find_setting(self, name: str, flag: Any = None) -> Setting:
        """Return a setting of DEFAULTS: flag, PUBSUBCTL_<NAME>, project, user, default."""
        if flag is not None:
            return Setting(str(flag), _FLAGS.get(name, f"--{name}"), self._here)
        variable = f"PUBSUBCTL_{name.upper()}"
        if value := self._environment.get(variable):
            return Setting(value, variable, self._here)
        for path, content in self._layers:
            if (value := content.get(name)) is not None:
                return Setting(str(value), str(path), path.parent)
        return Setting(DEFAULTS[name], "default", self.folder)

    def inventory_file(self, flag: str | None) -> Path:
        """Return the inventory file in force.

        Raises:
            UserError: the file does not exist; names the nearest, and the origin of the name.
        """
        setting = self.find_setting("inventory", flag)
        return self.find("inventory", setting.value, base=setting.base, origin=setting.origin)

    def results_folder(self, flag: Path | None) -> Path:
        """Return the folder of runs: <this>/<experiment>/<run id>.

        Raises:
            UserError: a file has its name; names the origin.
        """
        setting = self.find_setting("results", flag)
        folder = setting.base / Path(setting.value).expanduser()
        if folder.exists() and not folder.is_dir():
            raise UserError(
                f"{setting.origin}: results = {shown(setting.value)}: a file, no folder"
            )
        if _is_circle(folder):
            why = _explain_no_file(folder)
            raise UserError(f"{setting.origin}: results = {shown(setting.value)}: {why}")
        return _short(folder, self._here)

    def forks(self, flag: int | None) -> int:
        """Return the number of hosts that are operated on at the same time.

        Raises:
            UserError: PUBSUBCTL_FORKS is not a number from 1 to 1024.
        """
        setting = self.find_setting("forks", flag)
        return number_of_forks(setting.value, setting.origin)

    def find(self, kind: Kind, name: str, *, base: Path | None = None, origin: str = "") -> Path:
        """Return the file of a path or bare name.

        Raises:
            UserError: there is none; names the nearest.
        """
        base = base or self._here
        named = base / Path(name).expanduser()
        if named.is_file():
            return _short(named, self._here)
        folders = self._folders(kind)
        if "/" not in name and not name.startswith("."):
            for folder in folders:
                for candidate in (folder / f"{name}.toml", folder / name):
                    if candidate.suffix == ".toml" and candidate.is_file():
                        return _short(candidate, self._here)
            if kind == "inventory" and (lab := self._labs() / name / "inventory.toml").is_file():
                return _short(lab, self._here)
        by = f" (from {origin})" if origin and not origin.startswith("--") else ""
        if not name.strip():
            raise UserError(f"{kind} {shown(name)}{by}: the name is empty")
        own = [folder / f"{name.removesuffix('.toml')}.toml" for folder in folders]
        for path in (named, *own):
            if explanation := _explain_no_file(path):
                place = "this" if path == named else os.path.relpath(path, self._here)
                raise UserError(f"{kind} {shown(name)}{by}: {place} is {explanation}")
        if "/" in name:
            hint = _nearest_file(named)
            raise UserError(f"{kind} {shown(name)}{by}: there is no such file{hint}")
        hint = nearest(Path(name).stem, self.names(kind))
        if other := self.kind_of_name(name):
            hint = f"; {shown(name)} names a file of kind {other}"
        suffix = Path(name).suffix
        if suffix and (suffix != ".toml" or "did you mean" not in hint):
            raise UserError(f"{kind} {shown(name)}{by}: there is no such file")
        raise UserError(f"{kind} {shown(name)}{by}: no such file, nor {kind} of that name{hint}")

    def kind_of_name(self, name: str) -> Kind | None:
        """Return the kind of the file with this bare name; None without one."""
        return next((kind for kind in _FOLDERS if name in self.names(kind)), None)

    def names(self, kind: Kind) -> list[str]:
        """Return the bare names of all files of a kind, project files first."""
        names: list[str] = []
        for folder in self._folders(kind):
            names += sorted(path.stem for path in folder.glob("*.toml") if path.is_file())
        if kind == "inventory":
            names += sorted(path.parent.name for path in self._labs().glob("*/inventory.toml"))
        return [*dict.fromkeys(names)]

    def _labs(self) -> Path:
        return labs_folder(self._environment)

    def _folders(self, kind: Kind) -> list[Path]:
        package, inside = _PACKAGED[kind]
        packaged = Path(str(resources.files(package))) / inside
        own = self.folder / _FOLDERS[kind]
        return [own] if own.resolve() == packaged.resolve() else [own, packaged]


def _nearest_file(path: Path) -> str:
    """Return a hint at a file of a similar name in the same folder; "" without one."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    except OSError:
        return ""
    hint = nearest(path.name, names)
    return hint if "did you mean" in hint else ""


def _explain_no_file(path: Path) -> str:
    """Return the kind of an entry that is no file; "" if there is no entry."""
    if path.is_dir():
        return "a folder, and no file"
    if path.is_symlink() and not path.exists():
        if _is_circle(path):
            return "a link that leads in a circle"
        return "a link to nothing"
    return "no regular file" if path.exists() else ""


def _is_circle(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def is_plan_file(path: Path) -> bool:
    """Return True if a path is a file with a plan of a simulation, which is read elsewhere."""
    try:
        return first_word(path.read_text(encoding="utf-8")) == "simulation"
    except (OSError, UnicodeDecodeError):
        return False


def folder_names() -> list[str]:
    """Return the folders of a project, one for each kind of file."""
    return [*_FOLDERS.values(), "bench/experiments"]


def xdg_folder(
    kind: Literal["config", "state", "cache"], environment: Mapping[str, str] | None = None
) -> Path:
    """Return our folder under $XDG_CONFIG_HOME, $XDG_STATE_HOME or $XDG_CACHE_HOME."""
    environment = os.environ if environment is None else environment
    usual = {"config": ".config", "state": ".local/state", "cache": ".cache"}[kind]
    value = environment.get(f"XDG_{kind.upper()}_HOME", "")
    base = Path(value) if value.startswith("/") else Path.home() / usual  # relative: ignored
    return base / "pubsubctl"


def authority_folder(inventory: str) -> Path:
    """Return the folder of an inventory's certificate authority.

    Its key never leaves the folder.
    """
    return xdg_folder("state") / "authorities" / inventory


def labs_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of `pubsubctl lab up`, with a subfolder per lab."""
    return xdg_folder("state", environment) / "labs"


def _short(path: Path, here: Path) -> Path:
    """Return a path in the shortest notation from here."""
    try:
        relative = path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
    return relative if here == Path.cwd() else path
