"""The command `pubsubctl`: verbs, global options, and exit statuses.

A verb returns a Result or raises. An exception is reported in a sentence, unless the fault is ours:
then the traceback is saved to a file.
"""

import copy
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from typer.completion import get_completion_inspect_parameters

from pubsubctl.commands import (
    bench,
    bundle,
    certificate,
    claims,
    clock,
    compare,
    deployment,
    doctor,
    experiment,
    heal,
    inject,
    inventory,
    lab,
    moved,
    processes,
    project,
    publish,
    reports,
    results,
    simulate,
    spark,
    status,
    subscribe,
    sweep,
    topology,
    workload,
)
from pubsubctl.commands.failures import errors_of, report_errors
from pubsubctl.commands.options.global_options import (
    GlobalOptions,
    global_options_first,
    split_global_options,
)
from pubsubctl.commands.options.grouping import GroupedVerbs, add_command, with_groups
from pubsubctl.console.console import Console, NobodyReads, Result, StandardOutput
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.outputs import create_folder
from pubsubctl.errors import (
    INTERRUPTED,
    TERMINATED,
    Interrupted,
    PubsubctlError,
    Terminated,
)

_PREPARE = "Prepare"
_OPERATE = "Operate brokers"
_MEASURE = "Measure"
_FAULTS = "Inject faults"
_JUDGE = "Judge"
_OTHER = "Help"

app = typer.Typer(
    name="pubsubctl",
    help="Deploy, load and judge exactly-once publish/subscribe clusters under faults.",
    epilog="Global options may stand before or after the verb. Exit statuses: "
    "`pubsubctl help exit-statuses`.",
    cls=GroupedVerbs,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def help_topic(
    topic: project.Topic = None,
    man: Annotated[
        Path | None,
        typer.Option("--man", metavar="DIR", help="Write a page for `man` per verb into DIR/man1."),
    ] = None,
) -> Result:
    """Print a page of the manual."""
    if man is None:
        return project.print_topic(topic)
    from pubsubctl.man_pages import write_man_pages

    create_folder(man)
    files = [str(path) for path in write_man_pages(typer.main.get_command(app), man)]
    text = f"{len(files)} pages in {man}/man1; `man -l {files[0]}` shows the first"
    return Result(document={"schema": "pubsubctl/man/1", "files": files}, text=text)


def global_options(context: typer.Context, options: GlobalOptions) -> None:
    """Apply the global options."""
    options.apply(context.obj)


app.callback(help=app.info.help)(with_groups(global_options))
add_command(app, "init", project.init, _PREPARE)
add_command(app, "doctor", doctor.doctor, _PREPARE)
app.add_typer(inventory.app, name="inventory", rich_help_panel=_PREPARE)
app.add_typer(topology.app, name="topology", rich_help_panel=_PREPARE)
app.add_typer(workload.app, name="workload", rich_help_panel=_PREPARE)
add_command(app, "schema", project.schema, _PREPARE)
app.add_typer(lab.app, name="lab", rich_help_panel=_PREPARE)
app.add_typer(bundle.app, name="bundle", rich_help_panel=_PREPARE)
add_command(app, "deploy", deployment.deploy, _OPERATE)
add_command(app, "status", status.status, _OPERATE)
add_command(app, "logs", processes.logs, _OPERATE)
add_command(app, "exec", processes.execute, _OPERATE)
add_command(app, "publish", publish.publish, _OPERATE)
add_command(app, "subscribe", subscribe.subscribe, _OPERATE)
add_command(app, "decommission", deployment.decommission, _OPERATE)
add_command(app, "certificate", certificate.certificate, _OPERATE)
add_command(app, "down", deployment.down, _OPERATE)
add_command(app, "demo", bench.demo, _MEASURE)
add_command(app, "bench", bench.bench, _MEASURE)
add_command(app, "sweep", sweep.sweep, _MEASURE)
add_command(app, "compare", compare.compare, _MEASURE)
add_command(app, "limit", sweep.limit, _MEASURE)
add_command(app, "experiment", experiment.experiment, _MEASURE)
add_command(app, "targets", bench.targets, _MEASURE)
app.add_typer(simulate.app, name="simulate", rich_help_panel=_MEASURE)
add_command(app, "inject", inject.inject, _FAULTS)
add_command(app, "heal", heal.heal, _FAULTS)
add_command(app, "check", reports.check, _JUDGE)
add_command(app, "plot", reports.plot, _JUDGE)
add_command(app, "report", reports.report, _JUDGE)
app.add_typer(results.app, name="results", rich_help_panel=_JUDGE)
app.add_typer(claims.app, name="claims", rich_help_panel=_JUDGE)
app.add_typer(clock.app, name="clock", rich_help_panel=_JUDGE)
app.add_typer(spark.app, name="spark", rich_help_panel=_JUDGE)
add_command(app, "help", help_topic, _OTHER)
add_command(app, "completion", project.completion, _OTHER)
app.add_typer(project.config, name="config", rich_help_panel=_OTHER)


def main() -> NoReturn:
    """Run the console script."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    signal.signal(signal.SIGHUP, _raise_terminated)
    old = sys.stdout
    sys.stdout = StandardOutput(
        old.buffer, old.encoding, old.errors, None, bool(old.line_buffering)
    )
    try:
        status = run(sys.argv[1:])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
        # Python remembers a Ctrl-C that ended an `exec`, also one that was caught since, and would
        # end by that signal in place of this status. The next text that is evaluated forgets it.
        eval("None")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the result closed standard output.
        status = 141  # as a shell reports a process that SIGPIPE ended
    except OSError as error:
        console = _first_console(sys.argv[1:])
        status = report_errors(console, errors_of(Invocation(console=console), error))
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own last flush
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
        command = typer.main.get_command(_with_verb(_words(arguments)))
        returned = command.main(
            args=list(arguments), prog_name="pubsubctl", standalone_mode=False, obj=call
        )
        return _status_of(call, returned)
    except BrokenPipeError:
        raise
    except NobodyReads:
        raise BrokenPipeError from None
    except KeyboardInterrupt:
        return report_errors(call.console, [_make_interruption()])
    except Exception as error:
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


def _with_verb(words: Sequence[str]) -> typer.Typer:
    """Return the command with the first word's verb only, if there is one: others cost time."""
    name = words[0] if words else ""
    chosen = copy.copy(app)
    chosen.registered_groups = [each for each in app.registered_groups if each.name == name]
    chosen.registered_commands = [each for each in app.registered_commands if each.name == name]
    return chosen if chosen.registered_groups or chosen.registered_commands else app


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
    _ended_by.append(number)
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
