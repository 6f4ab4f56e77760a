"""Tests of the stored state of a client: the file, its bytes, and invalid contents."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import cbor2
import pytest

from brokerd.client import state_encoding
from brokerd.client.core import ClientCore
from brokerd.client.restart import restart, state_of
from brokerd.client.state import ClientState, KeptSubscription
from brokerd.client.state_encoding import home_of, read_kept, write_kept
from brokerd.client.store import FileStore
from brokerd.errors import ConfigError, ResumeTokenRefused, StorageCorrupt
from brokerd.model.identity import SourceId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.resume_token import ResumeToken, read_resume_token
from brokerd.protocols.parts.records import pack_positions, unpack_positions
from brokerd.sessions.messages import SEAL_BYTES, START_BYTES, StateMark

OURS = SourceId(0, 3, 2)
THEIRS = SourceId(1, 0, 1)
STATE = ClientState(
    name="c",
    publishes=True,
    incarnation=2,
    next_sequence=9,
    home=home_of("b0", "d1", "delta_tree"),
    source=OURS,
    runs=(
        PublicationRun(OURS, (4, 6), (b"a", b"b"), b"\0\1", (1, 2), (b"xyz",)),
        PublicationRun(OURS, range(7, 9), (b"a",), b"\0\0", 0, ()),
    ),
    last_number=4,
    subscriptions=(
        KeptSubscription(2, parse_predicate("price > 3"), True, ((THEIRS, 5),), ((THEIRS, 8),)),
        KeptSubscription(4, parse_predicate("true"), False, (), ()),
    ),
    ending=(3,),
    witnessed=StateMark(0, 2, bytes(START_BYTES), 7, 9, bytes(SEAL_BYTES)),
)
KEPT = write_kept(STATE)


def read(content: bytes, *, name: str = "c", deployment: str = "", publishes: bool = True) -> Any:
    return read_kept(content, "kept", name, deployment, publishes=publishes)


# ---------------------------------------------------------------- tokens


def test_a_resume_token_is_read_where_it_is_of_use() -> None:
    token = ResumeToken("delta_tree", "d1", b"content")
    assert read_resume_token(token.to_bytes(), protocol="delta_tree", deployment="d1") == token


@pytest.mark.parametrize(
    "protocol, deployment, said",
    [
        ("best_effort", "d1", "protocol 'delta_tree', not 'best_effort'"),
        ("delta_tree", "d2", "deployment 'd1', not 'd2'"),
    ],
)
def test_a_resume_token_with_another_owner_is_refused(
    protocol: str, deployment: str, said: str
) -> None:
    data = ResumeToken("delta_tree", "d1", b"content").to_bytes()
    with pytest.raises(ResumeTokenRefused, match=said):
        read_resume_token(data, protocol=protocol, deployment=deployment)


def test_a_damaged_resume_token_is_refused_wherever_it_is_damaged() -> None:
    data = ResumeToken("delta_tree", "d1", b"content").to_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        for wrong in (bytes(damaged), data[:place], data + b"x", data[place + 1 :]):
            with pytest.raises(ResumeTokenRefused):
                read_resume_token(wrong, protocol="delta_tree", deployment="d1")


@pytest.mark.parametrize("seed", range(20))
def test_positions_are_unpacked_in_order(seed: int) -> None:
    random = Random(seed)
    sources = [SourceId(random.randrange(3), n, random.randrange(3)) for n in range(seed)]
    positions = [(source, random.randrange(1 << 40)) for source in sources]
    packed = pack_positions(random.sample(positions, len(positions)))
    assert unpack_positions(packed) == tuple(sorted(positions))


@pytest.mark.parametrize(
    "content",
    [
        b"short",
        pack_positions([(OURS, 1)]) * 2,
        pack_positions([(THEIRS, 1)]) + pack_positions([(OURS, 1)]),
    ],
)
def test_invalid_positions_are_refused(content: bytes) -> None:
    with pytest.raises(ResumeTokenRefused):
        unpack_positions(content)


# ---------------------------------------------------------------- stored state


def test_saved_client_state_reads_back_unchanged() -> None:
    kept = read(KEPT, deployment="d1")
    assert replace(kept, runs=()) == replace(STATE, runs=())
    told = [(run.source, list(run.publications())) for run in kept.runs]
    assert told == [(run.source, list(run.publications())) for run in STATE.runs]


def test_client_state_of_a_release_without_state_marks_is_read() -> None:
    content = cbor2.loads(KEPT[len(state_encoding._MAGIC) : -state_encoding._CHECKSUM_BYTES])
    body = state_encoding._MAGIC + cbor2.dumps(content[:-1])
    older = read(body + state_encoding._checksum(body))
    assert replace(older, runs=()) == replace(STATE, runs=(), witnessed=None)


def test_a_client_that_never_attached_keeps_its_publications_and_subscriptions() -> None:
    core = ClientCore("c", publishes=True, keeps_state=True)
    core.outgoing.publish(b"a", b"x")
    core.subscribe(parse_predicate("true"))
    kept = read(write_kept(state_of(core)), deployment="any")
    assert (kept.home, kept.source, kept.next_sequence) == (None, None, 2)
    again = restart(kept)
    assert (len(again.outgoing), [*again.subscriptions], again.can_leave) == (1, [1], True)


def test_damaged_or_truncated_client_state_is_refused_at_every_byte() -> None:
    for place in range(len(KEPT)):
        damaged = bytearray(KEPT)
        damaged[place] ^= 1
        for wrong in (bytes(damaged), KEPT[:place]):
            with pytest.raises(StorageCorrupt, match="kept: "):
                read(wrong)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"name": "other"}, "is of client 'c', not 'other'"),
        ({"deployment": "d2"}, "is of deployment 'd1', not 'd2'"),
        ({"publishes": False}, "publishes = False, and was True"),
    ],
)
def test_client_state_of_another_owner_is_refused(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"kept: {said}"):
        read(KEPT, **options)


def test_a_kept_token_of_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another(home: Any, positions: Any) -> bytes:
        return ResumeToken("best_effort", "d1", b"").to_bytes()

    monkeypatch.setattr("brokerd.client.state_encoding.write_token", of_another)
    with pytest.raises(ResumeTokenRefused, match=r"kept: .*'best_effort', not 'delta_tree'"):
        read(write_kept(STATE))


# ---------------------------------------------------------------- the file


def test_a_file_holds_the_last_save_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "client"
    store = FileStore(path)
    assert store.load() is None
    (tmp_path / ".client.new").write_bytes(b"what a crash has left, for all to read")
    for content in (b"one", b"", b"three" * 100_000):
        store.save(content)
        assert FileStore(path).load() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["client"]


@contextmanager
def failing(call: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the disk fail at one step of a save; the second fsync is the folder's."""
    counts = {"fsync": 0}
    real = os.fsync

    def fsync(descriptor: int) -> None:
        counts["fsync"] += 1
        if call == ("fsync" if counts["fsync"] == 1 else "fsync of the folder"):
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    def replace_file(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        if call == "rename":
            patched.setattr(os, "replace", replace_file)
        yield


@pytest.mark.parametrize("call", ["fsync", "rename", "fsync of the folder"])
def test_a_disk_that_fails_once_is_not_trusted_again(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "client"
    store = FileStore(path)
    store.save(b"before")
    with failing(call, monkeypatch), pytest.raises(OSError, match=str(path)) as told:
        store.save(b"after")
    assert told.value.errno == errno.EIO, "a full disk that may be waited for is another matter"
    with pytest.raises(OSError, match="nothing is saved after"):
        store.save(b"later")
    assert FileStore(path).load() in (b"before", b"after")
