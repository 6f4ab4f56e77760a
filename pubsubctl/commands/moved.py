"""Forms of commands that have moved, each with the new form.

A form is recognised by its options, by its word after `simulate`, or by the kind of its name. The
command that a user typed is refused with one sentence that has the new command line.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pubsubctl.commands.options.global_options import split_global_options
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.project import Project, is_plan_file

NameKind = Literal["sweep", "experiment", "workload", "file", ""]


@dataclass(frozen=True, slots=True)
class MovedForm:
    """A form of a command that has moved.

    Attributes:
        old: the first words of the old form.
        new: the words in place of these.
        option: the option that marks the old form; "" for none.
        renamed: the new words for options of the old form; () removes an option without value.
        of_name: the kind of name that marks the old form; "" for none.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    option: str = ""
    renamed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_name: NameKind = ""

    def describe(self) -> str:
        """Return the old form, for the sentence."""
        return " ".join([*self.old, *([self.option] if self.option else [])])

    def new_line(self, words: Sequence[str], globals_: Sequence[str]) -> str:
        """Return the new command line for the words that a user typed."""
        line = ["pubsubctl", *globals_, *self.new]
        for word in words[len(self.old) :]:
            name, equals, value = word.partition("=")
            if name in self.renamed:
                line += [*self.renamed[name], *([value] if equals else [])]
            else:
                line.append(word)
        return shlex.join(line)


_SEARCH: Final = {"--find-max": ()}
_POINTS: Final = {"--sweep": ("--over",)}

MOVED: Final = (
    *(
        MovedForm(("bench",), ("limit",), option, _SEARCH)
        for option in ("--find-max", "--p99", "--from-rate", "--to-rate")
    ),
    MovedForm(("bench",), ("compare",), "--against"),
    *(
        MovedForm(("bench",), ("sweep",), option, _POINTS)
        for option in ("--sweep", "--budget", "--bound")
    ),
    MovedForm(("bench",), ("sweep",), of_name="sweep"),
    MovedForm(("bench",), ("experiment",), of_name="experiment"),
    MovedForm(("compare",), ("compare",), "--all", {"--all": ("--comparison", "all")}),
    MovedForm(("simulate", "dedupe"), ("experiment", "dft11.dedupe")),
    MovedForm(("simulate", "stalls"), ("experiment", "dft11.stalls")),
    MovedForm(("simulate", "speed"), ("experiment", "dft11.speed")),
    MovedForm(("simulate", "routing"), ("experiment", "ges.routing")),
    MovedForm(("simulate",), ("experiment",), of_name="experiment"),
    MovedForm(("simulate",), ("simulate", "run"), of_name="workload"),
    MovedForm(("simulate",), ("simulate", "run"), of_name="file"),
    MovedForm(("reproduce",), ("results", "reproduce")),
    MovedForm(("load",), ("results", "tables")),
)
"""All forms that have moved; the first that matches counts."""

_FIRST_SEEDS: Final = MovedForm(("simulate",), ("simulate", "swarm"))
"""`simulate` without a word, which ran the first seeds of the swarm."""


def refuse_words(globals_: Sequence[str], words: Sequence[str]) -> None:
    """Refuse a command line that has moved, by its options and its first words.

    Args:
        globals_: the global options.
        words: the verb, with all further words.

    Raises:
        UserError: the command line has moved; names the new one.
    """
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    if not words or options & {"--help"} or "-h" in words:
        return
    for form in MOVED:
        if tuple(words[: len(form.old)]) != form.old or form.of_name:
            continue
        if not form.option or form.option in options:
            raise _error(form, globals_, words)
    if words[0] == "simulate":
        _refuse_simulation(globals_, words)


def _refuse_simulation(globals_: Sequence[str], words: Sequence[str]) -> None:
    from pubsubctl.commands.simulate import VERBS

    word = words[1] if len(words) > 1 else "--seeds"
    if word in VERBS:
        return
    if word.startswith("-"):
        raise _error(_FIRST_SEEDS, globals_, words)
    kind = kind_of(Project(Path.cwd()), word)
    for form in MOVED:
        if form.old == ("simulate",) and form.of_name == kind:
            raise _error(form, globals_, words)


def refuse_name(call: Invocation, verb: str, name: str) -> None:
    """Refuse a name of another verb.

    Raises:
        UserError: the name has moved to another verb; names the new command line.
    """
    kind = kind_of(call.project, name)
    for form in MOVED:
        if kind and form.old == (verb,) and form.of_name == kind:
            raise _error(form, *split_global_options(call.arguments))


def is_no_workload(project: Project, name: str) -> bool:
    """Return True if a name is a sweep or an experiment, and not a workload."""
    return kind_of(project, name) in ("sweep", "experiment")


def kind_of(project: Project, name: str) -> NameKind:
    """Return the kind of a name on the command line; "" if there is no such name."""
    from bench.spec.sweep import is_sweep
    from pubsubctl.runs.paper_experiments import is_experiment

    path = Path(name)
    if path.suffix == ".toml" and is_plan_file(path):
        return "file"
    is_bare = "/" not in name and path.suffix != ".toml"
    if is_experiment(name):
        return "experiment"
    if name in project.names("sweep") if is_bare else is_sweep(path):
        return "sweep"
    if is_bare and name in project.names("workload"):
        return "workload"
    return "file" if path.is_file() else ""


def _error(form: MovedForm, globals_: Sequence[str], words: Sequence[str]) -> UserError:
    return UserError(f"`{form.describe()}` has moved: `{form.new_line(words, globals_)}`")
