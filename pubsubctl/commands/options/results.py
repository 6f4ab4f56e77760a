"""Options that select runs, and places for results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError

_option = options_in("Results")
_OF_RUNS = ("brokers", "history")
"""Labels of runs without processes, by which verdicts tell them from others."""

ARCHIVES: Final = Path("results", "samples", "figures")
"""The folder of the archived runs behind figures of papers, in a source checkout."""

RUNS_HELP = "Folders, run ids, or `latest`."

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A folder, a run id, or `latest`.", autocompletion=names.runs
    ),
]
Runs = Annotated[
    list[str], typer.Argument(metavar="RUN...", help=RUNS_HELP, autocompletion=names.runs)
]
RunsFolder = Annotated[
    Path | None,
    _option("--output-dir", "-o", metavar="DIR", help="Use this folder of runs, not results/runs."),
]
Master = Annotated[
    str | None, _option("--master", metavar="URL", help="Run Spark there, not here.")
]
Labels = Annotated[
    list[str] | None,
    _option("--label", metavar="K=V", help="Write a label into the manifest. Repeatable."),
]
Check = Annotated[bool, _option("--check/--no-check", help="Judge the run with Spark.")]
KeepHosts = Annotated[bool, typer.Option("--keep-hosts", help="Keep the names of hosts and users.")]

Author = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Name an author for archives. Repeatable.")
]
Publisher = Annotated[str, typer.Option(metavar="NAME", help="Name the publisher for archives.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFiles:
    """Files with a case per run, for CI and papers."""

    junit: Annotated[
        Path | None,
        _option("--junit", metavar="FILE", help="Write a JUnit file, for CI. UNKNOWN is an error."),
    ] = None
    markdown: Annotated[
        Path | None, _option("--markdown", metavar="FILE", help="Write a Markdown table.")
    ] = None
    latex: Annotated[
        Path | None, _option("--latex", metavar="FILE", help="Write a LaTeX table.")
    ] = None

    def _chosen(self) -> dict[str, Path]:
        files = {"junit": self.junit, "markdown": self.markdown, "latex": self.latex}
        return {form: path for form, path in files.items() if path is not None}

    def begin(self, call: Invocation, verb: str) -> None:
        """Write the files of a command that has not finished, and so find what cannot be written.

        Raises:
            PreflightFailed: a file cannot be written; names it.
            UserError: --dry-run was given, which has no results.
        """
        if not (files := self._chosen()):
            return
        from pubsubctl.runs.case_files import unfinished, write_cases

        if call.dry_run:
            raise UserError(f"--{next(iter(files))} and --dry-run: there are no results to write")
        write_cases(files, verb, unfinished(verb))

    def end(self, verb: str, result: Result) -> Result:
        """Write the files of a result, and return the result."""
        if files := self._chosen():
            from pubsubctl.runs.case_files import cases_of, write_cases

            write_cases(files, verb, cases_of(result))
        return result


LABELS_OF_SERIES: Final = ("experiment", "point")
"""Labels that series, and experiments of figures, set themselves."""


def labels_of(
    texts: list[str] | None, *, taken: Sequence[str] = (), by: str = "a series"
) -> dict[str, str]:
    """Return the labels of --label.

    Args:
        taken: labels that the command sets itself.
        by: the command, for the message about such a label.

    Raises:
        UserError: a text is not KEY=VALUE, or a run or the command itself sets the label.
    """
    labels: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"--label {text}: write KEY=VALUE")
        if key in _OF_RUNS:
            raise UserError(f"--label {text}: a run itself sets the label {key!r}; choose another")
        if key in taken:
            raise UserError(f"--label {text}: {by} sets this label itself")
        labels[key] = value
    return labels
