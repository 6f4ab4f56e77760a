"""Failures of a command: the error to report for an exception, and the file of a traceback."""

import errno
import os
import re
import resource
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from brokerd.agent.host.private_files import write_private
from brokerd.errors import ConfigError, ControlError
from brokerd.interpreter import NO_PROCESS, NO_PROCESS_ADVICE, has_met_process_limit
from brokerd.text import nearest, shown
from pubsubctl.console.console import OUTPUT, Console, Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import (
    INTERNAL_ERROR,
    HostError,
    PreflightFailed,
    PubsubctlError,
    Unreachable,
    UserError,
    combine_statuses,
)
from pubsubctl.project import xdg_folder

_FULL_BYTES = 1 << 20
_UNUSABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.ENOTDIR, errno.ELOOP),
)


_NO_MEMORY: Final = "failed to map segment"
"""Part of the text of the dynamic linker's error for a library without memory."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUR_FOLDERS: Final[tuple[Literal["config", "state", "cache"], ...]] = (
    "config", "state", "cache",
)  # fmt: skip


class _Internal(PubsubctlError):
    exit_status = INTERNAL_ERROR


def errors_of(call: Invocation, error: Exception) -> list[PubsubctlError]:
    """Return the errors to report for an exception; for a bug, with the file of the traceback."""
    reported: list[PubsubctlError] = []
    for leaf in _leaves(error):
        found = _reportable(leaf) or _full_disk(call, leaf)
        if found is None:
            return [_internal(call, error)]
        if str(found) not in [str(other) for other in reported]:
            reported.append(found)
    return reported


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _text_of(error: BaseException) -> str:
    """Return the text of an exception; "" if it fails, as Spark's do after the end of Java."""
    try:
        return str(error)
    except Exception:
        return ""


def _reportable(error: BaseException) -> PubsubctlError | None:
    """Return the error as an error of ours, or None for a bug."""
    lines = _text_of(error).splitlines() or [type(error).__name__]
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
    if isinstance(error, MemoryError) or (
        isinstance(error, ImportError) and _NO_MEMORY in str(error)
    ):
        return PreflightFailed(
            "not enough memory for this process",
            "raise the limit (`ulimit -v`), or end other processes",
        )
    if has_met_process_limit(error):
        return PreflightFailed(NO_PROCESS, NO_PROCESS_ADVICE)
    if isinstance(error, OSError) and error.filename == OUTPUT:
        return PreflightFailed(f"{OUTPUT}: {(error.strerror or str(error)).lower()}")
    if isinstance(error, OSError):
        return _out_of_descriptors(error) or _unusable_file(error)
    return None


def _out_of_descriptors(error: OSError) -> PubsubctlError | None:
    """Return the error for a file or connection beyond the limit of this process or machine."""
    if error.errno == errno.ENFILE:
        return PreflightFailed("this machine has no more open files (`sysctl fs.file-max`)")
    if error.errno != errno.EMFILE:
        return None
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return PreflightFailed(
        f"this process may have no more than {hard} files and connections open",
        "raise the limit with `ulimit -Hn` and in /etc/security/limits.conf, or use fewer hosts",
    )


def _unusable_file(error: OSError) -> PubsubctlError | None:
    """Return the error for a file or folder that the user has to choose or to mend."""
    if error.filename is None:
        is_gone = error.errno == errno.ENOENT and not _is_here()
        return PreflightFailed("the current folder was removed; cd to another") if is_gone else None
    text = f"{error.filename}: {(error.strerror or '').lower()}"
    if error.errno == errno.ENAMETOOLONG:
        return UserError(f"{shown(str(error.filename))}: {(error.strerror or '').lower()}")
    setting = _explain_our_folder(error.filename)
    if error.errno in _UNUSABLE or (error.errno == errno.ENOENT and setting):
        return PreflightFailed(text + setting)
    return None


def _is_here() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _explain_our_folder(name: object) -> str:
    """Return the setting that moves one of our folders of XDG; "" for another file."""
    path = Path(str(name))
    for kind in _OUR_FOLDERS:
        folder = xdg_folder(kind)
        if path.is_relative_to(folder) or (path != Path("/") and folder.is_relative_to(path)):
            return f"; set XDG_{kind.upper()}_HOME to a folder that can be written"
    return ""


def _full_disk(call: Invocation, error: BaseException) -> PubsubctlError | None:
    """Return the error for a write without a file name that failed for lack of space."""
    if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
        return None
    if error.errno == errno.EFBIG:
        return PreflightFailed("a file is larger than this account may write (`ulimit -f`)")
    named = [Path(word) for word in call.arguments if "/" in word]
    usual = [call.project.results_folder(None), xdg_folder("state"), xdg_folder("cache")]
    folders = [*(path.absolute() for path in (*named, *usual)), Path(tempfile.gettempdir())]
    full = dict.fromkeys(str(folder) for folder in map(_existing, folders) if _is_full(folder))
    where = ", ".join(full) or f"{usual[0]}, or of another folder in use"
    return PreflightFailed(f"no space left on the disk of {where}; what was written stays there")


def _existing(path: Path) -> Path:
    """Return the nearest existing folder of a path."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _FULL_BYTES
    except OSError:
        return False


def _usage_lines(error: Any) -> list[str]:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return [message[:1].lower() + message[1:]]
    verbs = getattr(context.command, "commands", None)
    if verbs and message.startswith("Usage: "):
        wanted = "name one of" if len(verbs) > 1 else "add"
        message = f"{context.command_path}: {wanted} {', '.join(verbs)}"
    elif verbs and (unknown := re.match(r"No such command '(.*?)'", message)):
        message = f"no such command {unknown[1]!r}{_nearest_verb(unknown[1], list(verbs))}"
    elif getattr(error, "option_name", "") in ("-o", "--output") and not verbs:
        message += "; --json prints the result as JSON"
    elif extra := re.match(r"Got unexpected extra argument\(?s?\)? \((.*)\)", message):
        message = f"unexpected argument {extra[1]!r}"
    return [message[:1].lower() + message[1:], f"see `{context.command_path} --help`"]


_USUAL_WORDS: Final = {
    "run": "bench", "test": "bench", "benchmark": "bench", "load": "bench", "measure": "bench",
    "start": "deploy", "up": "deploy", "launch": "deploy", "create": "init", "new": "init",
    "stop": "down", "destroy": "down", "teardown": "down", "kill": "inject", "fault": "inject",
    "crash": "inject", "ps": "status", "top": "status", "watch": "status", "runs": "results",
    "ls": "results", "judge": "check", "verify": "check", "draw": "plot", "figure": "plot",
    "get": "status", "describe": "status", "apply": "deploy", "delete": "down",
    "diff": "compare", "trace": "why", "tail": "logs", "ssh": "exec", "hosts": "inventory",
    "settings": "config", "version": "--version", "man": "help", "lint": "workload",
    "import": "inventory import", "trust": "inventory trust", "gen": "topology gen",
    "generate": "topology gen", "place": "topology place", "index": "results index",
    "list": "results list", "show": "results show", "label": "results label",
    "collect": "results collect", "capsule": "results capsule", "archive": "results archive",
    "reproduce": "results reproduce", "swarm": "simulate swarm", "shrink": "simulate shrink",
}  # fmt: skip
"""Verbs by words that other programs have for the same job."""


def _nearest_verb(word: str, verbs: Sequence[str]) -> str:
    """Return the hint for an unknown verb: the verb for the same job, or a similar word."""
    usual = _USUAL_WORDS.get(word.lower(), "")
    if usual.partition(" ")[0] in verbs or (usual == "--version" and "bench" in verbs):
        return f"; did you mean {usual!r}?"
    hint = nearest(word, verbs)
    # The letters of short words agree by chance: `mine` is no misspelt `inject`.
    guess = re.fullmatch(r"; did you mean '(.*)'\?", hint)
    if guess is None and "bench" in verbs:
        return ""  # the help text, which the next line names, has all verbs with their jobs
    is_chance = guess and len(word) < 6 and guess[1][0] != word[:1].lower()
    return "" if is_chance else hint


def report_errors(console: Console, errors: Sequence[PubsubctlError]) -> int:
    status = combine_statuses(error.exit_status for error in errors)
    for error in errors:
        console.error(str(error))
    if console.as_json:
        try:
            console.result(Result(document={"schema": "pubsubctl/error/1"}, because=tuple(errors)))
        except OSError:
            pass  # the errors are on standard error
    return status


def _internal(call: Invocation, error: BaseException) -> PubsubctlError:
    """Save the traceback in a file that only this user can read, and report the path.

    The command line and the values in the traceback may be secrets.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    name = f"crash-{stamp}-{os.getpid()}.txt"
    text = f"pubsubctl {' '.join(call.arguments)}\n\n{''.join(traceback.format_exception(error))}"
    content = text.encode(errors="backslashreplace")
    path = _save_report(name, content)
    leaf = next(_leaves(error))
    text = f"{type(leaf).__name__}: {_text_of(leaf)}".splitlines()[0]
    if path is None:
        return _Internal(
            f"internal error: {text}", "this is a bug in pubsubctl; no report of it can be written"
        )
    return _Internal(f"internal error: {text}", f"this is a bug in pubsubctl; see {path}")


def _save_report(name: str, content: bytes) -> Path | None:
    """Write the report of a bug; return None if the disk is full."""
    usual = xdg_folder("state") / "crashes" / name
    with suppress(OSError, ControlError):
        write_private(usual, content)
        return usual
    with suppress(OSError, ControlError):
        other = Path(tempfile.mkdtemp(prefix="pubsubctl-")) / name
        write_private(other, content)
        return other
    return None
