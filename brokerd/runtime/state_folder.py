"""The state folder of a broker: held by one process, watched, and marked after a loss of state.

A folder that was deleted or replaced under a running broker takes no writes that a restart would
find. So the broker checks after each durable write that the folder at the path still is its own,
and ends before acknowledging any later data.

A loss that a neighbour has proved is recorded in the folder. The broker refuses to start until the
loss is accepted, even if that neighbour is unreachable.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from brokerd.config import BrokerConfig
from brokerd.errors import BrokerError, BrokerMustEnd, StorageCorrupt
from brokerd.files import sync_folder
from brokerd.storage.files import find_identity, is_no_room

LOSS: Final = "loss.json"
_LOCK: Final = "lock"
_WATCHED: Final = (_LOCK, "meta.sqlite3", "meta.sqlite3-wal", "meta.sqlite3.synced", "logs")
_PID_WIDTH: Final = 10
_BESIDE_ROWS: Final = ("meta.sqlite3-wal", "meta.sqlite3-shm", "meta.sqlite3.synced")


class PreflightError(BrokerError):
    """An obstacle that existed before this broker: a port, a lock."""


def describe_obstacle(folder: Path, error: OSError) -> str:
    """Return the file of a folder that cannot be made or opened, and the reason."""
    if isinstance(error, FileExistsError):
        return f"{folder}: cannot be used: it is a file, or a link to a folder that does not exist"
    why = (error.strerror or str(error)).lower()
    return f"{error.filename or folder}: cannot be used: {why}"


class StateFolder:
    """The state folder of one broker, for as long as `held` holds it.

    Attributes:
        path: path of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own: dict[str, tuple[int, int]] = {}

    def remember(self) -> None:
        """Record the present folder at the path as the broker's own."""
        self._own = {name: find_identity(self.path / name) for name in ("", *_WATCHED)}

    def check(self) -> None:
        """Check that the folder at the path is the folder that the broker began with.

        Raises:
            BrokerMustEnd: the folder was deleted or replaced; data written now are lost with it.
        """
        for name, own in self._own.items():
            if find_identity(self.path / name) != own:
                raise BrokerMustEnd(
                    f"{self.path / name} was deleted or replaced while this broker was running; "
                    "nothing was acknowledged since. Put the folder back and start the broker; "
                    "if it is gone, start the broker without it: its neighbours prove the loss, "
                    "and the broker ends with the command that accepts it"
                )


def check_kinds(folder: Path) -> None:
    """Check that the files of a state folder are files, and its folder of logs is a folder.

    Raises:
        StorageCorrupt: the folder cannot be a broker's own.
    """
    logs, rows = folder / "logs", "meta.sqlite3"
    is_fit = {logs: logs.is_dir()}
    for path in (*folder.glob(f"{rows}*"), logs / "synced", *logs.glob("*.log")):
        if path.suffix == ".log" or path.name in ("synced", rows, *_BESIDE_ROWS):
            is_fit[path] = path.is_file()
    for path, fits in is_fit.items():
        if not fits and os.path.lexists(path):
            kind = "folder" if path == logs else "file"
            raise StorageCorrupt(
                f"{path}: is no {kind}, so the state folder is not as a broker left it. Put the "
                f"newest copy of {folder} back"
            )


@contextmanager
def held(config: BrokerConfig) -> Iterator[StateFolder]:
    """Hold the state folder of a broker for this process alone.

    Raises:
        PreflightError: another process has it, it cannot be written, or there is no room for a new
            one.
    """
    folder = Path(config.state_folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PreflightError(describe_obstacle(folder, error)) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 20).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise PreflightError(f"{folder}: in use by the process {holder}") from None
    try:
        try:
            os.pwrite(lock, f"{os.getpid():<{_PID_WIDTH}}\n".encode(), 0)
        except OSError as error:
            if not is_no_room(error):
                raise  # without room, others report the holder "unknown"
        yield StateFolder(folder)
    finally:
        os.close(lock)


# ---------------------------------------------------------------- losses


class RecordedLoss(NamedTuple):
    """A loss that is recorded in a state folder.

    Attributes:
        cause: "" if none is recorded.
        must_end: True if the broker must not start before the loss is accepted.
        incarnation: the highest incarnation of the broker that a neighbour has proved.
        start: random number of the start that found the loss, in hexadecimal digits.
    """

    cause: str = ""
    must_end: bool = False
    incarnation: int = 0
    start: str = ""

    @property
    def number(self) -> int:
        """The number by which an operator's act names this loss and no other loss."""
        content = json.dumps([self.start, self.incarnation, self.cause]).encode()
        return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


_UNKNOWN_LOSS: Final = RecordedLoss("unknown", True)
_MOST_LOSS: Final = 16_384
MOST_CAUSE: Final = 600
"""Longest text of a cause."""


def read_recorded_loss(folder: Path, starts: Sequence[bytes]) -> RecordedLoss:
    """Return the loss that is recorded in a state folder, and not resolved.

    A record of a start that the folder does not have belongs to a copy that was replaced since, and
    is ignored. A broker does not start again on a folder with a loss that must end it, so such a
    record is of the last start.

    Args:
        starts: random numbers of the starts on the folder, the last one last; at least one.
    """
    found = read_loss(folder)
    possible = starts[-1:] if found.must_end else starts
    is_current = not found.start or found.start in [start.hex() for start in possible]
    return found if is_current else RecordedLoss()


def read_loss(folder: Path) -> RecordedLoss:
    """Return the loss that a state folder's file records, of any start."""
    try:
        with (folder / LOSS).open(encoding="utf-8") as file:
            text = file.read(_MOST_LOSS)
    except FileNotFoundError:
        return RecordedLoss()
    except (OSError, UnicodeDecodeError):
        return _UNKNOWN_LOSS
    try:
        found = json.loads(text)
        cause, incarnation = str(found["cause"])[:MOST_CAUSE], int(found["incarnation"])
        return RecordedLoss(cause, bool(found["must_end"]), incarnation, str(found["start"])[:64])
    except (ValueError, KeyError, TypeError, RecursionError):
        return _UNKNOWN_LOSS  # a crash cut the file off; the loss stays one


def record_loss(
    folder: Path, start: bytes, cause: str, incarnation: int = 0, *, must_end: bool = True
) -> None:
    """Record a loss in a state folder, as of a start; durable when this returns.

    Args:
        incarnation, must_end: see RecordedLoss.
    """
    descriptor = os.open(folder / LOSS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(
            descriptor,
            json.dumps(
                {
                    "start": start.hex(),
                    "must_end": must_end,
                    "incarnation": incarnation,
                    "cause": cause,
                }
            ).encode(),
        )
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_folder(folder)


def forget_loss(folder: Path) -> None:
    """Remove the record of an accepted loss."""
    (folder / LOSS).unlink(missing_ok=True)
    sync_folder(folder)


def loss_text(config: BrokerConfig, cause: str, keeps_loss: str) -> str:
    """Return the cause of a loss, and the remedies for the operator.

    Args:
        keeps_loss: see ProtocolDefinition.
    """
    if keeps_loss:
        remedy = (
            f"or start the deployment anew with `pubsubctl down` and `pubsubctl deploy`: "
            f"the loss cannot be accepted, because {keeps_loss}"
        )
    else:
        remedy = (
            f"or accept the loss with `pubsubctl deploy TOPOLOGY --accept-loss {config.broker}`"
        )
    return (
        f"{config.broker} lost state that was durable: {cause}. Put the newest copy of "
        f"{config.state_folder} back; {remedy} (see `pubsubctl help restore`)"
    )
