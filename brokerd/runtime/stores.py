"""The stored state of a broker at its start, even on a disk that is full at that moment."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.config import BrokerConfig, LossAcceptance
from brokerd.errors import DiskFailed, ForeignState, LogDamaged, StateLost, StorageCorrupt
from brokerd.model.losses import LAST_LINEAGE
from brokerd.model.operator_acts import ACCEPT_LOSS
from brokerd.protocols.interface import Change, Commit, CoreStatus, LogEnds
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.control import ControlServer
from brokerd.runtime.disk import ROOM_RETRY_S, Disk
from brokerd.runtime.program import read_own_program
from brokerd.runtime.state_folder import (
    MOST_CAUSE,
    RecordedLoss,
    check_kinds,
    forget_loss,
    loss_text,
    read_loss,
    read_recorded_loss,
    record_loss,
)
from brokerd.sessions.messages import START_BYTES, StateMark
from brokerd.sessions.state_marks import STARTS_KEPT, StateLedger, StateStart, StateWitness
from brokerd.storage.files import describe_failure, is_no_room
from brokerd.storage.log_volume import LogVolume
from brokerd.storage.meta_store import VOUCHED, WITNESSED, Beginning, MetaStore, NewMarks
from brokerd.storage.sqlite_store import SqliteMetaStore
from brokerd.text import counted
from brokerd.units import SECOND_NS

NO_ROOM_STATE: Final = "no room on its disk"
"""The state of a broker that has not begun yet, because its disk is full."""
KEY_BYTES: Final = 32
LINEAGE_STEP: Final = 4_096
"""The advance of the incarnation on acceptance of a loss.

Beyond all that any neighbour may have recorded, and less than neighbours refuse
(`protocols.parts.leaps`).
"""
_OLD_LOG: Final = "publications"

WRITE_EVERY_NS: Final = 5 * SECOND_NS


class Stores:
    """The durable files of one broker, in its state folder.

    Args:
        logs: the names of its logs.
        keeps_loss, restores: see ProtocolDefinition.

    Attributes:
        volume: volume of the logs, once begun; None without logs.
        ends: ends of the logs at the start.
        ledger: ledger of the folder, once begun.
        accepted_loss: the loss that this start accepts, for the event log; None if no loss is.
        proved_loss: cause of a loss that a client has proved before, and that no act accepts; "" if
            there is none.
        lost: the cause of the loss that this start has to make good from other brokers; "": none.
    """

    def __init__(
        self,
        config: BrokerConfig,
        folder: Path,
        logs: tuple[str, ...],
        keeps_loss: str = "",
        *,
        restores: bool = False,
    ) -> None:
        self._config = config
        self._logs = logs
        self.keeps_loss = keeps_loss
        self._folder = folder
        self._meta: MetaStore | None = None
        self.volume: LogVolume | None = None
        self.ends: Mapping[str, LogEnds] = {}
        self.ledger: StateLedger
        self.accepted_loss: Mapping[str, Any] | None = None
        self.proved_loss = ""
        self.restores = restores
        self.lost = ""

    @property
    def meta(self) -> MetaStore:
        """The meta store, once begun."""
        assert self._meta is not None, "not begun"
        return self._meta

    def begin(self) -> Beginning:
        """Open all files, for a new incarnation.

        Raises:
            OSError: the disk had no room; there is no new incarnation, and the call may be
                repeated.
            DiskFailed: reading or writing failed for another cause.
            StorageCorrupt: the stored data cannot be a broker's own.
            ForeignState: the folder is of another deployment, broker or protocol, and unchanged.
            StateLost: durable state is missing, and the loss is not accepted; or `accept_loss` is
                set, and there is no recorded loss, or the act is not signed for it.
        """
        try:
            return self._begin()
        except OSError as error:
            if is_no_room(error):
                raise
            raise DiskFailed(describe_failure(error)) from error

    def _begin(self) -> Beginning:
        config, folder = self._config, self._folder
        check_kinds(folder)
        if self._meta is None:
            path = folder / "meta.sqlite3"
            self._meta = SqliteMetaStore(
                path, fsync=config.fsync, owner=config.broker, protocol=config.protocol
            )
        # Before any file is removed: a refused folder stays unchanged.
        self._meta.check_owner(config.deployment_id)
        recovering = self._meta.has_deployment(config.deployment_id)
        if self._logs and self.volume is None:
            self.volume = LogVolume(folder / "logs", fsync=config.fsync)
        if self.volume is not None:
            if not recovering and not self.volume.is_empty:
                raise ForeignState(
                    f"{folder}: has logs and no rows ({folder / 'meta.sqlite3'}), so it is the "
                    "rest of a state folder. Nothing was removed: put the whole folder back, or "
                    "remove it"
                )
            try:
                found = self.volume.begin(self._logs, recovering=recovering)
            except LogDamaged as damage:
                self._check_damage(damage)
                found = self.volume.begin(self._logs, recovering=recovering, drops_damage=True)
            self.ends = {log: LogEnds(*ends) for log, ends in found.items()}
        if recovering and (folder / _OLD_LOG).is_dir():
            raise StorageCorrupt(f"{folder / _OLD_LOG}: written by an earlier version of brokerd")
        groups = self.volume.groups if self.volume is not None else 0
        new = NewMarks(os.urandom(KEY_BYTES), os.urandom(START_BYTES), groups, STARTS_KEPT)
        accepted = self._check_loss(recovering=recovering)
        lineage = 0
        if accepted is not None:
            lineage = max(self._meta.marks().lineage + 1, int(time.time()))
            _check_lineage(config.broker, lineage)
            new = replace(new, lineage=lineage, step=LINEAGE_STEP, witnessed=accepted.incarnation)
        beginning = self._meta.begin(config.deployment_id, new)
        marks = self._meta.marks()
        starts = [StateStart(*each) for each in marks.starts]
        self.ledger = StateLedger.from_starts(marks.key, marks.lineage, starts, marks.vouched)
        if lineage:
            if self.volume is not None:
                self.volume.accept_end()
            if not self.lost:
                forget_loss(folder)
        return beginning

    def _check_damage(self, damage: LogDamaged) -> None:
        """Check that a damaged log may lose everything from the damage on.

        The recorded loss stays if its damage is at the same place: a crash while the damage was
        being removed may have changed the reason, and the act that accepts the loss stays valid.

        Raises:
            StateLost: the loss is not accepted; nothing was changed but the record of the loss.
        """
        config, folder = self._config, self._folder
        numbers = [start for _, start, _, _ in self.meta.marks().starts] or [b""]
        cause = read_recorded_loss(folder, numbers).cause
        if not damage.is_named_by(cause):
            cause = str(damage)[:MOST_CAUSE]
            record_loss(folder, numbers[-1], cause)
        if config.accept_loss is None and self.restores:
            return  # other brokers have copies
        if config.accept_loss is None or self.keeps_loss:
            raise StateLost(loss_text(config, cause, self.keeps_loss))
        self._check_acceptance(config.accept_loss, read_loss(folder))

    def _check_loss(self, *, recovering: bool) -> RecordedLoss | None:
        """Return the loss that the start accepts; None if nothing is lost.

        Raises:
            StateLost: a loss is not accepted; or an act accepts a loss that does not exist.
        """
        config, folder = self._config, self._folder
        starts = self.meta.marks().starts if recovering else ()
        numbers = [start for _, start, _, _ in starts]
        found = read_recorded_loss(folder, numbers) if numbers else RecordedLoss()
        if not found.must_end and (cause := self._missing_writes(starts, recovering=recovering)):
            # With a number, so that an operator can accept this loss.
            record_loss(folder, starts[-1][1] if starts else b"", cause)
            found = read_loss(folder)
        if config.accept_loss is None:
            if found.must_end and self.restores:
                # Valid for every later start, until the state is restored.
                record_loss(folder, b"", found.cause, found.incarnation)
                self.lost = found.cause
                return found
            if found.must_end:
                raise StateLost(loss_text(config, found.cause, self.keeps_loss))
            self.proved_loss = found.cause
            return None
        if found.cause and self.keeps_loss:
            raise StateLost(loss_text(config, found.cause, self.keeps_loss))
        if not found.cause:
            raise StateLost(
                f"{config.broker}: accept_loss, but no loss of its state is known; "
                "start it without: a loss that a neighbour or a client can prove ends it"
            )
        self._check_acceptance(config.accept_loss, found)
        self.accepted_loss = {
            "cause": found.cause,
            "loss": found.number,
            "signature": config.accept_loss.signature,
        }
        return found

    def _missing_writes(
        self, starts: Sequence[tuple[int, bytes, int, int]], *, recovering: bool
    ) -> str:
        """Return the durable writes that the files do not have, in words; "" if none is missing."""
        if transactions := self.meta.missing(self._config.deployment_id):
            lost = counted(transactions, "transaction")
            return f"the end of meta.sqlite3 was durable, and is missing ({lost})"
        if not recovering or self.volume is None:
            return ""
        durable = starts[-1][3] if starts else 0
        groups = max(self.volume.lost_groups, durable - self.volume.groups)
        if groups <= 0:
            return ""
        return f"{groups} groups at the end of its log were durable, and are missing"

    def _check_acceptance(self, act: LossAcceptance, loss: RecordedLoss) -> None:
        """Check that the deployment's authority accepts a loss.

        Raises:
            StateLost: the loss is not accepted; nothing was changed.
        """
        broker, authority = self._config.broker, self._config.authority
        if not authority.public_key:
            why = "this broker was started without the authority's key (operator_key)"
        elif not act.signature:
            why = "the act is not signed by the deployment's authority"
        elif act.loss != loss.number:
            why = f"the act is for loss {act.loss}, and this one is {loss.number}"
        elif not authority.has_signed(ACCEPT_LOSS, broker, act.loss, bytes.fromhex(act.signature)):
            why = "the signature is not of the authority of this deployment"
        else:
            return
        raise StateLost(
            f"{broker}: the loss of its state ({loss.cause}) is not accepted: {why}. Use "
            f"`pubsubctl deploy TOPOLOGY --accept-loss {broker}` from the account that deployed"
        )

    def end_restoration(self) -> None:
        """Forget the loss that other brokers have made good."""
        self.lost = ""
        forget_loss(self._folder)

    def count_writes(self) -> None:
        """Update the ledger to the present durable writes."""
        groups = self.volume.groups if self.volume is not None else 0
        self.ledger.advance(self.meta.commits, groups)

    def close(self) -> None:
        """Close the open files."""
        if self._meta is not None:
            self._meta.close()
        if self.volume is not None:
            self.volume.close()


def _check_lineage(broker: str, lineage: int) -> None:
    """Check that a lineage leaves room for the positions behind a loss.

    Raises:
        StateLost: the machine's clock shows a year after 2105; nothing was changed.
    """
    if lineage > LAST_LINEAGE:
        raise StateLost(
            f"{broker}: the loss of its state cannot be accepted: this machine's clock shows the "
            "year 2106 or a later one. Set the clock right, and repeat the command"
        )


async def begin_with_room(
    stores: Stores, config: BrokerConfig, digest: str
) -> tuple[Beginning, int]:
    """Return `stores.begin()`, repeated while the disk is full; and the time waited in ns.

    Meanwhile the broker answers on its control socket with this state, and nothing else. A signal
    that ends the broker takes effect as usual.
    """
    try:
        return await trio.to_thread.run_sync(stores.begin), 0
    except OSError as error:
        if not is_no_room(error):
            raise
        log_wait(config, f"no room in {config.state_folder} ({error.strerror}); waiting for it")
    full_ns = clock_ns()
    status = _describe_wait(config, digest)

    async def answer(_: Mapping[str, Any]) -> dict[str, Any]:
        return status

    async with trio.open_nursery() as nursery:
        await nursery.start(ControlServer({"status": answer}).serve, config.control_socket)
        while True:
            await trio.sleep(ROOM_RETRY_S)
            try:
                beginning = await trio.to_thread.run_sync(stores.begin)
                break
            except OSError as error:
                if not is_no_room(error):
                    raise
        nursery.cancel_scope.cancel()
    log_wait(config, "there is room")
    return beginning, clock_ns() - full_ns


def log_wait(config: BrokerConfig, text: str) -> None:
    """Write a line to the standard error of this process."""
    print(f"broker {config.broker}: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _describe_wait(config: BrokerConfig, digest: str) -> dict[str, Any]:
    """Return the status of a broker that waits for its disk."""
    core: CoreStatus[str] = CoreStatus(state=NO_ROOM_STATE)
    return {
        **core.to_mapping({}),
        "name": config.broker,
        "pid": os.getpid(),
        "incarnation": 0,
        "program": read_own_program().to_mapping(),
        "protocol": config.protocol,
        "deployment_id": config.deployment_id,
        "topology_digest": digest,
        "sessions": [],
        "faults": [],
        "clients": 0,
        "probed": False,
        "unprobed": {},
        "obstacles": {},
        "run_id": "",
        "loss": "",
        "written": [0, 0],
        "witnessed": {},
    }


class WitnessRows:
    """The marks of `witness` as rows of this broker, written lazily and rarely.

    One row has the neighbours that have vouched for the state folder of this broker.
    """

    def __init__(self, witness: StateWitness, ledger: StateLedger, disk: Disk) -> None:
        self._witness = witness
        self._ledger = ledger
        self._vouched: Any = []
        self._disk = disk
        self._due_ns = 0

    def recover(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the marks that an earlier incarnation has written."""
        for key, row in rows.get(WITNESSED, {}).items():
            if key == VOUCHED:
                self._vouched = row
            else:
                self._witness.marks[int(key)] = StateMark(*row)

    def write_all(self) -> None:
        """Write the marks that have changed, before an orderly end."""
        self._due_ns = 0
        self.write_changed()

    def write_changed(self) -> None:
        """Write the marks that have changed, unless the last write was a moment ago."""
        changed, now_ns = self._witness.changed, clock_ns()
        vouched = [*self._ledger.vouched]
        is_new = vouched != self._vouched
        if not is_new and (not changed or now_ns < self._due_ns):
            return
        self._due_ns = now_ns + WRITE_EVERY_NS
        marks = self._witness.marks
        rows = [Change(WITNESSED, str(peer), [*marks[peer]]) for peer in changed]
        if is_new:
            self._vouched = vouched
            rows.append(Change(WITNESSED, VOUCHED, vouched))
        self._witness.changed.clear()
        self._disk.commit(Commit(tuple(rows), None))
