"""The command `pubsubctl`: verbs, global options, and exit statuses.

A verb returns a Result or raises. An exception is reported in a sentence, unless the fault is ours:
then the traceback is saved to a file.
"""

import errno
import importlib.metadata
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.completion import get_completion_inspect_parameters

from brokerd.agent.host.private_files import write_private
from brokerd.errors import ConfigError, ControlError
from brokerd.overlay.topology import nearest
from pubsubctl.commands import (
    bench,
    bundle,
    certificate,
    check,
    claims,
    clock,
    compare,
    completion,
    config,
    decommission,
    demo,
    deploy,
    doctor,
    down,
    exec_,
    heal,
    help_topics,
    init,
    inject,
    inventory,
    lab,
    load,
    logs,
    names,
    plot,
    report,
    reproduce,
    results,
    simulate,
    spark,
    status,
    targets,
    topology,
)
from pubsubctl.console.console import ColorChoice, Console, NobodyReads, Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import (
    INTERNAL_ERROR,
    INTERRUPTED,
    TERMINATED,
    HostError,
    Interrupted,
    PreflightFailed,
    PubsubctlError,
    Terminated,
    Unreachable,
    UserError,
    combined_status,
)
from pubsubctl.project import xdg_folder

_FLAGS = {
    *("-n", "--dry-run", "-y", "--yes", "-v", "--verbose", "-q", "--quiet"),
    *("-j", "--json", "--no-progress", "--use-ssh-config"),
}
_WITH_VALUE = {"-i", "--inventory", "-l", "--limit", "-f", "--forks", "--color"}
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
_ANYWHERE = "Global options (pubsubctl --help) may stand here too."

app = typer.Typer(
    name="pubsubctl",
    help="Deploy, load, break and judge exactly-once publish/subscribe clusters.",
    epilog="Global options may stand before or after the verb. Exit statuses: "
    "`pubsubctl help exit-statuses`.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init", epilog=_ANYWHERE)(init.init)
app.command("doctor", epilog=_ANYWHERE)(doctor.doctor)
app.add_typer(inventory.app, name="inventory")
app.add_typer(topology.app, name="topology")
app.add_typer(lab.app, name="lab")
app.add_typer(bundle.app, name="bundle")
app.command("deploy", epilog=_ANYWHERE)(deploy.deploy)
app.command("decommission", epilog=_ANYWHERE)(decommission.decommission)
app.command("certificate", epilog=_ANYWHERE)(certificate.certificate)
app.command("status", epilog=_ANYWHERE)(status.status)
app.command("logs", epilog=_ANYWHERE)(logs.logs)
app.command("exec", epilog=_ANYWHERE)(exec_.execute)
app.command("bench", epilog=_ANYWHERE)(bench.bench)
app.command("targets", epilog=_ANYWHERE)(targets.targets)
app.command("inject", epilog=_ANYWHERE)(inject.inject)
app.command("heal", epilog=_ANYWHERE)(heal.heal)
app.add_typer(clock.app, name="clock")
app.command("load", epilog=_ANYWHERE)(load.load)
app.command("check", epilog=_ANYWHERE)(check.check)
app.command("plot", epilog=_ANYWHERE)(plot.plot)
app.command("compare", epilog=_ANYWHERE)(compare.compare)
app.command("report", epilog=_ANYWHERE)(report.report)
app.add_typer(results.app, name="results")
app.add_typer(spark.app, name="spark")
app.command("reproduce", epilog=_ANYWHERE)(reproduce.reproduce)
app.add_typer(claims.app, name="claims")
app.command("demo", epilog=_ANYWHERE)(demo.demo)
app.command("down", epilog=_ANYWHERE)(down.down)
app.command("simulate", epilog=_ANYWHERE)(simulate.simulate)
app.add_typer(config.app, name="config")
app.command("completion")(completion.completion)
app.command("help")(help_topics.help_topic)


def main() -> NoReturn:
    """Run the console script."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    signal.signal(signal.SIGHUP, _raise_terminated)
    try:
        status = run(sys.argv[1:])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done
        # Python remembers a Ctrl-C that ended an `exec`, also one that was caught since, and would
        # end by that signal in place of this status. The next text that is evaluated forgets it.
        eval("None")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the result closed standard output. Python must not flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141  # as a shell reports a process that SIGPIPE ended
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    arguments = global_options_first(arguments) or ["--help"]
    call = Invocation(console=_first_console(arguments), arguments=tuple(arguments))
    try:
        command = typer.main.get_command(app)
        if "_PUBSUBCTL_COMPLETE" in os.environ:  # a shell asks; it wants the classes that answer
            get_completion_inspect_parameters()
        returned = command.main(
            args=list(arguments), prog_name="pubsubctl", standalone_mode=False, obj=call
        )
        if isinstance(returned, Result):
            failed = [known for error in returned.failures for known in _told(call, error)]
            result = replace(returned, because=(*returned.because, *failed))
            for reason in result.because:
                for problem in reason.problems:
                    call.console.error(problem)
            call.console.result(result)
            return result.exit_status
        if isinstance(returned, int) and returned in (INTERRUPTED, TERMINATED):
            return _report(call.console, [_stopped_by_signal()])
        return returned if isinstance(returned, int) else 0
    except BrokenPipeError:
        raise
    except NobodyReads:
        raise BrokenPipeError from None
    except KeyboardInterrupt:
        return _report(call.console, [_stopped_by_signal()])
    except Exception as error:
        return _report(call.console, _told(call, error))
    # a signal that arrived while tasks were running in parallel
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt):
            return _report(call.console, [_stopped_by_signal()])
        raise


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pubsubctl {importlib.metadata.version('pubsubctl')}")
        raise typer.Exit


@app.callback()
def global_options(
    context: typer.Context,
    inventory_file: Annotated[
        str | None,
        typer.Option(
            "--inventory",
            "-i",
            metavar="INV",
            help="Inventory: a path or a bare name.",
            autocompletion=names.inventories,
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            "-l",
            metavar="SEL",
            help="Hosts: n01,n[03:08], groups, patterns, !not.",
            autocompletion=names.selectors,
        ),
    ] = None,
    forks: Annotated[
        int | None,
        typer.Option(
            "--forks", "-f", metavar="N", min=1, max=1024, help="How many hosts at a time."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Say what would be done; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, help="Say more; repeatable.")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", "-j", help="The result as one JSON document.")
    ] = False,
    color: Annotated[
        str, typer.Option("--color", metavar="auto|always|never", help="When to use colour.")
    ] = "auto",
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bars.")] = False,
    use_ssh_config: Annotated[
        bool,
        typer.Option("--use-ssh-config", help="Let ~/.ssh/config say what the inventory does not."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="The version."),
    ] = False,
) -> None:
    call: Invocation = context.obj
    if color not in ("auto", "always", "never"):
        raise UserError(f"--color = {color!r}; one of auto, always, never")
    chosen: ColorChoice = color  # type: ignore[assignment]  # checked above
    call.console = Console(
        as_json=as_json, quiet=quiet, verbose=verbose, color=chosen, progress=not no_progress
    )
    call.inventory_option = inventory_file
    call.limit = tuple(limit or ())
    call.forks_option = forks
    call.dry_run = dry_run
    call.yes = yes
    call.use_ssh_config = use_ssh_config


def global_options_first(arguments: Sequence[str]) -> list[str]:
    """Return the same command line with the global options moved before the verb."""
    moved: list[str] = []
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            kept += [argument, *rest]
            break
        name, equals, _ = argument.partition("=")
        if argument == "-f" and kept[:1] == ["logs"]:  # there it is --follow
            kept.append(argument)
        elif argument in _WITH_VALUE and rest:
            moved += [argument, rest.pop(0)]
        elif (
            argument in _FLAGS
            or (equals and name in _WITH_VALUE)
            or (len(argument) > 2 and argument[0] == "-" and set(argument[1:]) <= set("nyvqj"))
        ):
            moved.append(argument)
        else:
            kept.append(argument)
    return moved + kept


class TerminationSignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived."""


class _Internal(PubsubctlError):
    exit_status = INTERNAL_ERROR


_ended_by: list[int] = []
"""The signals that were to end this process."""


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    _ended_by.append(number)
    raise TerminationSignal


def _stopped_by_signal() -> PubsubctlError:
    """Return the error of an interruption, by the signal: all signals raise KeyboardInterrupt."""
    return Terminated("terminated") if _ended_by else Interrupted("interrupted")


def _first_console(arguments: Sequence[str]) -> Console:
    """Return a console for errors before the global options are parsed."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    short = "".join(flag[1:] for flag in flags if not flag.startswith("--"))
    return Console(as_json="--json" in flags or "j" in short, progress=False)


def _told(call: Invocation, error: Exception) -> list[PubsubctlError]:
    """Return the errors to report for an exception; for a bug, with the file of the traceback."""
    if _ended_by:  # an interrupted operation may fail in any way
        return [_stopped_by_signal()]
    told: list[PubsubctlError] = []
    for leaf in _leaves(error):
        known = _reportable(leaf)
        if known is None:
            return [_internal(call, error)]
        if str(known) not in [str(other) for other in told]:
            told.append(known)
    return told


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _reportable(error: BaseException) -> PubsubctlError | None:
    """Return the error as an error of ours, or None for a bug."""
    lines = str(error).splitlines() or [type(error).__name__]
    if isinstance(error, PubsubctlError):
        return error
    if isinstance(error, ConfigError):
        return UserError(*lines)
    if isinstance(error, ControlError):
        kinds: dict[str, type[PubsubctlError]] = {"user": UserError, "busy": PreflightFailed}
        kinds["closed"] = Unreachable
        return kinds.get(error.kind, HostError)(*lines)
    status = getattr(type(error), "exit_status", None)
    if isinstance(status, int):
        kind: type[PubsubctlError] = type(
            type(error).__name__, (PubsubctlError,), {"exit_status": status}
        )
        return kind(*lines)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # of the option parser
        return UserError(*_usage_lines(error))
    if isinstance(error, OSError) and error.filename is not None and error.errno in _UNUSABLE:
        return PreflightFailed(f"{error.filename}: {(error.strerror or '').lower()}")
    return None


def _usage_lines(error: Any) -> list[str]:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return [message]
    verbs = getattr(context.command, "commands", None)
    if verbs and (unknown := re.fullmatch(r"No such command '(.*)'", message)):
        message += nearest(unknown[1], list(verbs))
    return [message[:1].lower() + message[1:], f"see `{context.command_path} --help`"]


def _report(console: Console, errors: Sequence[PubsubctlError]) -> int:
    status = combined_status(error.exit_status for error in errors)
    for error in errors:
        console.error(str(error))
    if console.as_json:
        console.result(Result(document={"schema": "pubsubctl/error/1"}, because=tuple(errors)))
    return status


def _internal(call: Invocation, error: BaseException) -> PubsubctlError:
    """Save the traceback in a file that only this user can read, and report the path.

    The command line and the values in the traceback may be secrets.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    name = f"crash-{stamp}-{os.getpid()}.txt"
    text = f"pubsubctl {' '.join(call.arguments)}\n\n{''.join(traceback.format_exception(error))}"
    content = text.encode(errors="backslashreplace")
    path = xdg_folder("state") / "crashes" / name
    try:
        write_private(path, content)
    except (OSError, ControlError):
        path = Path(tempfile.mkdtemp(prefix="pubsubctl-")) / name
        write_private(path, content)
    leaf = next(_leaves(error))
    said = f"{type(leaf).__name__}: {leaf}".splitlines()[0]
    return _Internal(f"internal error: {said}", f"this is a bug in pubsubctl; see {path}")
