"""The command `pubsubctl`: verbs, global options, and exit statuses.

A verb returns a Result or raises. An exception is reported in a sentence, unless the fault is ours:
then the traceback is saved to a file.
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NamedTuple, NoReturn

import typer
from typer.completion import get_completion_inspect_parameters

from brokerd.interpreter import raise_descriptor_limit
from pubsubctl.commands import moved, project
from pubsubctl.commands.failures import errors_of, report_errors
from pubsubctl.commands.options.global_options import (
    GlobalOptions,
    global_options_first,
    split_global_options,
)
from pubsubctl.commands.options.grouping import GroupedVerbs, add_command, help_width, with_groups
from pubsubctl.console.console import Console, OutputClosed, Result, StandardOutput
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.outputs import create_folder
from pubsubctl.errors import INTERRUPTED, TERMINATED, Interrupted, PubsubctlError, Terminated

_PREPARE = "Prepare"
_OPERATE = "Operate brokers"
_MEASURE = "Measure"
_FAULTS = "Inject faults"
_JUDGE = "Judge"
_OTHER = "Help"


class Verb(NamedTuple):
    """A verb of the command.

    Attributes:
        place: the function or group of verbs, as "module:name" in this package.
        panel: its section of the help text.
    """

    name: str
    place: str
    panel: str


VERBS: Final = (
    Verb("init", "project:init", _PREPARE),
    Verb("doctor", "doctor:doctor", _PREPARE),
    Verb("inventory", "inventory:app", _PREPARE),
    Verb("topology", "topology:app", _PREPARE),
    Verb("workload", "workload:app", _PREPARE),
    Verb("schema", "project:schema", _PREPARE),
    Verb("lab", "lab:app", _PREPARE),
    Verb("bundle", "bundle:app", _PREPARE),
    Verb("deploy", "deployment:deploy", _OPERATE),
    Verb("status", "status:status", _OPERATE),
    Verb("logs", "processes:logs", _OPERATE),
    Verb("exec", "processes:execute", _OPERATE),
    Verb("publish", "publish:publish", _OPERATE),
    Verb("subscribe", "subscribe:subscribe", _OPERATE),
    Verb("subscriptions", "subscriptions:app", _OPERATE),
    Verb("retention", "retention:app", _OPERATE),
    Verb("replace", "deployment:replace_broker", _OPERATE),
    Verb("decommission", "deployment:decommission", _OPERATE),
    Verb("certificate", "certificate:certificate", _OPERATE),
    Verb("down", "deployment:down", _OPERATE),
    Verb("demo", "bench:demo", _MEASURE),
    Verb("bench", "bench:bench", _MEASURE),
    Verb("sweep", "bench:sweep", _MEASURE),
    Verb("compare", "compare:compare", _MEASURE),
    Verb("limit", "bench:limit", _MEASURE),
    Verb("experiment", "experiment:experiment", _MEASURE),
    Verb("targets", "bench:targets", _MEASURE),
    Verb("simulate", "simulate:app", _MEASURE),
    Verb("inject", "inject:inject", _FAULTS),
    Verb("heal", "heal:heal", _FAULTS),
    Verb("check", "reports:check", _JUDGE),
    Verb("plot", "reports:plot", _JUDGE),
    Verb("report", "reports:report", _JUDGE),
    Verb("why", "reports:why", _JUDGE),
    Verb("results", "results:app", _JUDGE),
    Verb("claims", "claims:app", _JUDGE),
    Verb("clock", "clock:app", _JUDGE),
    Verb("spark", "spark:app", _JUDGE),
    Verb("help", "app:help_topic", _OTHER),
    Verb("completion", "project:completion", _OTHER),
    Verb("config", "project:config", _OTHER),
)
"""All verbs, in the order of the help text; a module is imported when its verb is used."""

_HELP: Final = "Deploy, load and judge exactly-once publish/subscribe clusters under faults."
_EPILOG: Final = (
    "Global options may stand before or after the verb. Exit statuses: "
    "`pubsubctl help exit-statuses`."
)


def command_of(verb: str = "") -> Any:
    """Return the command with one verb; with all verbs if there is no verb of this name."""
    app = typer.Typer(
        name="pubsubctl",
        help=_HELP,
        epilog=_EPILOG,
        cls=GroupedVerbs,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": help_width()},
    )
    app.callback(help=_HELP)(with_groups(global_options))
    for each in [row for row in VERBS if row.name == verb] or VERBS:
        module, _, name = each.place.partition(":")
        found = getattr(import_module(f"pubsubctl.commands.{module}"), name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=each.name, rich_help_panel=each.panel)
        else:
            add_command(app, each.name, found, each.panel)
    return typer.main.get_command(app)


def help_topic(
    topic: project.Topic = None,
    man: Annotated[
        Path | None,
        typer.Option("--man", metavar="DIR", help="Write a page for `man` per verb into DIR/man1."),
    ] = None,
) -> Result:
    """Print a page of the manual."""
    if man is None and topic in {verb.name for verb in VERBS} - {*project.ALIASES}:
        return _describe_verb(topic)
    if man is None:
        return project.print_topic(topic)
    from pubsubctl.man_pages import write_man_pages

    create_folder(man)
    files = [str(path) for path in write_man_pages(command_of(), man)]
    text = f"{len(files)} pages in {man}/man1; `man -l {files[0]}` shows the first"
    return Result(document={"schema": "pubsubctl/man/1", "files": files}, text=text)


def _describe_verb(name: str) -> Result:
    """Return the help text of a verb."""
    program = command_of(name)
    above = program.make_context("pubsubctl", [], resilient_parsing=True)
    verb = program.get_command(above, name)
    text = verb.get_help(verb.make_context(name, [], parent=above, resilient_parsing=True))
    document = {"schema": "pubsubctl/help/1", "topic": name, "text": text}
    return Result(document=document, text=text)


def global_options(context: typer.Context, options: GlobalOptions) -> None:
    """Apply the global options."""
    options.apply(context.obj)


def main() -> NoReturn:
    """Run the console script."""
    raise_descriptor_limit()
    signal.signal(signal.SIGTERM, _raise_terminated)
    signal.signal(signal.SIGHUP, _raise_terminated)
    old = sys.stdout  # closed with its file if nothing refers to it
    sys.stdout = output = StandardOutput.replacing(old)
    try:
        status = run(sys.argv[1:])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
        # Python remembers a Ctrl-C that ended an `exec`, also one that was caught since, and would
        # end by that signal in place of this status. The next text that is evaluated forgets it.
        eval("None")
        output.flush_rest()
    except BrokenPipeError:
        # The reader of the result closed standard output.
        status = 141  # as a shell reports a process that SIGPIPE ended
    except OSError as error:
        console = _first_console(sys.argv[1:])
        status = report_errors(console, errors_of(Invocation(console=console), error))
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # for Python's own last flush
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    arguments = global_options_first(arguments) or ["--help"]
    call = Invocation(console=_first_console(arguments), arguments=tuple(arguments))
    try:
        if "_PUBSUBCTL_COMPLETE" in os.environ:  # a shell asks; it wants the classes that answer
            get_completion_inspect_parameters()
        else:
            moved.refuse_words(*split_global_options(arguments))
        returned = command_of(next(iter(_words(arguments)), "")).main(
            args=list(arguments), prog_name="pubsubctl", standalone_mode=False, obj=call
        )
        return _status_of(call, returned)
    except BrokenPipeError:
        raise
    except OutputClosed:
        raise BrokenPipeError from None
    except KeyboardInterrupt:
        return report_errors(call.console, [_make_interruption()])
    except Exception as error:
        if isinstance(error, BaseExceptionGroup) and error.subgroup(OutputClosed):
            raise BrokenPipeError from None
        return report_errors(call.console, _errors_of(call, error))
    # a signal that arrived while tasks were running in parallel
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):
            return report_errors(call.console, [_make_interruption()])
        raise


def _words(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line without global options, also while a shell completes."""
    if "_PUBSUBCTL_COMPLETE" in os.environ:
        place = os.environ.get("COMP_CWORD", "")
        typed = os.environ.get("COMP_WORDS", "").split()[1:]
        arguments = typed[: int(place) - 1] if place.isdecimal() and int(place) else []
    return split_global_options(arguments)[1]


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived."""


_ended_by: list[int] = []
"""The signals that were to end this process."""


def _status_of(call: Invocation, returned: object) -> int:
    """Print the result of a command, and return its exit status."""
    if isinstance(returned, Result):
        failed = [found for error in returned.failures for found in _errors_of(call, error)]
        result = replace(returned, because=(*returned.because, *failed))
        for reason in result.because:
            for problem in reason.problems:
                call.console.error(problem)
        call.console.result(result)
        return result.exit_status
    if isinstance(returned, int) and returned in (INTERRUPTED, TERMINATED):
        return report_errors(call.console, [_make_interruption()])
    return returned if isinstance(returned, int) else 0


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    """End the command as Ctrl-C does.

    An event loop postpones Ctrl-C while it handles its own state, and only Ctrl-C: an exception
    raised there would end the loop in disorder, with tracebacks.
    """
    _ended_by.append(number)
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)
    else:  # ignored, as in the background of a script
        raise TerminationSignal


def _errors_of(call: Invocation, error: Exception) -> list[PubsubctlError]:
    """Return the errors to report; after a signal the operation may fail in any way."""
    return [_make_interruption()] if _ended_by or _is_cleanup(error) else errors_of(call, error)


def _is_cleanup(error: BaseException) -> bool:
    """Return True if an error of a cleanup replaced the exception of Ctrl-C."""
    seen: list[BaseException] = []
    earlier: BaseException | None = error
    while earlier is not None and earlier not in seen:
        if isinstance(earlier, KeyboardInterrupt):
            return True
        seen.append(earlier)
        earlier = earlier.__cause__ or earlier.__context__
    return False


def _make_interruption() -> PubsubctlError:
    """Return the error of an interruption, by the signal: all signals raise KeyboardInterrupt."""
    return Terminated("terminated") if _ended_by else Interrupted("interrupted")


def _first_console(arguments: Sequence[str]) -> Console:
    """Return a console for errors before the global options are parsed."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    short = "".join(flag[1:] for flag in flags if not flag.startswith("--"))
    return Console(as_json="--json" in flags or "j" in short, progress=False)
