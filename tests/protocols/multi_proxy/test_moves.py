"""Single steps of a topic's move on objects: each answer to a giver, and what a server takes."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy.messages import Transferred
from brokerd.protocols.multi_proxy.server import Server
from brokerd.protocols.multi_proxy.state import PARTS, Part
from brokerd.protocols.multi_proxy.transfer_server import TransferServer
from brokerd.protocols.multi_proxy.transfers import TopicTransfers

HERE, GIVER, THIRD, HOME, TOPIC = 1, 2, 3, 9, 5


def moves(**values: Any) -> Any:
    """Return the moves of a server that records its effects."""
    calls: list[Any] = []
    found = SimpleNamespace(
        calls=calls, moving={}, moved={}, _arriving={}, _broker=HERE,
        _answer=lambda peer, answer: calls.append((peer, answer)),
        _is_whole=lambda *_: [True, True],
        _store_topic=lambda *_: calls.append("taken"),
        _row=lambda number, owner, *, is_over: (number, owner, is_over),
        _send_topic=lambda number: calls.append(("sent", number)),
        _disk=SimpleNamespace(commit=lambda changes, then: calls.append((changes, then))),
        _log=SimpleNamespace(holds=lambda _: False, carry=lambda *all_: calls.append(all_)),
        _followers=SimpleNamespace(
            of=lambda _: [(HOME, {})], leave=lambda number: (("left", number),)
        ),
        release=lambda number: calls.append(("released", number)),
        notify_moved=lambda home, numbers: calls.append(("moved", home, numbers)),
    )  # fmt: skip
    found.is_away = partial(TopicTransfers.is_away, found)
    vars(found).update(values)
    return found


# ---------------------------------------------------------------- transfers


@pytest.mark.parametrize(
    "values, owner",
    [
        ({"moved": {TOPIC: THIRD}}, THIRD),
        ({"moving": {TOPIC: THIRD}}, THIRD),
        ({"moved": {TOPIC: THIRD}, "moving": {TOPIC: 4}}, THIRD),
        ({"_log": SimpleNamespace(holds=lambda part: part == Part(GIVER, TOPIC))}, HERE),
        ({"_log": SimpleNamespace(holds=lambda part: part == Part(THIRD, TOPIC))}, None),
        ({}, None),
        ({"moving": {TOPIC + 1: THIRD}}, None),
    ],
)
def test_a_repeated_transfer_is_answered_with_the_owner(
    values: dict[str, Any], owner: int | None
) -> None:
    server = moves(**values)
    message: Any = SimpleNamespace(topic=TOPIC, giver=GIVER, parts=())
    TopicTransfers.on_transfer(server, 7, message, (), lambda *_: None)
    answer = (7, Transferred(HERE, GIVER, TOPIC, owner)) if owner is not None else "taken"
    assert server.calls == [answer]


@pytest.mark.parametrize(
    "values", [{"_arriving": {TOPIC: GIVER}}, {"_is_whole": lambda *_: [True, False]}]
)
def test_a_transfer_that_is_incomplete_or_under_way_is_not_answered(values: dict[str, Any]) -> None:
    server = moves(**values)
    message: Any = SimpleNamespace(topic=TOPIC, giver=GIVER, parts=())
    TopicTransfers.on_transfer(server, 7, message, (), lambda *_: None)
    assert server.calls == []


def test_a_topic_goes_on_to_a_further_owner_once_that_is_durable() -> None:
    server = moves(moving={TOPIC: GIVER})
    gone: list[int] = []
    TopicTransfers.on_transferred(server, Transferred(GIVER, HERE, TOPIC, THIRD), gone.append)
    assert (server.moving, server.moved) == ({TOPIC: THIRD}, {})
    ((changes, then),) = server.calls
    assert changes == ((TOPIC, THIRD, False),)
    then()
    assert server.calls[1:] == [("sent", TOPIC)]
    assert gone == []


def test_a_topic_is_away_and_released_once_that_is_durable() -> None:
    server = moves(moving={TOPIC: GIVER})
    gone: list[int] = []
    TopicTransfers.on_transferred(server, Transferred(GIVER, HERE, TOPIC, GIVER), gone.append)
    assert (server.moving, server.moved, gone) == ({}, {TOPIC: GIVER}, [])
    ((changes, then),) = server.calls
    assert changes == ((TOPIC, GIVER, True), ("left", TOPIC))
    then()
    assert gone == [TOPIC]
    assert server.calls[1:] == [("released", TOPIC), ("moved", HOME, (TOPIC,))]


def carried(server: int, topic: int, *numbers: int) -> PublicationRun:
    stream = StreamId(server, topic, 0)
    return PublicationRun(stream, numbers, (b"a",), bytes(len(numbers)), 0, ())


@pytest.mark.parametrize(
    "values, is_taken",
    [
        ({}, True),
        ({"moved": {TOPIC: THIRD}}, False),
        ({"moving": {TOPIC: THIRD}}, False),
        ({"moving": {TOPIC + 1: THIRD}}, True),
    ],
)
def test_publications_are_carried_to_a_server_that_lacks_the_topic(
    values: dict[str, Any], is_taken: bool
) -> None:
    for holds in (False, True):
        server = moves(**values)
        server._log.holds = lambda _, holds=holds: holds
        run = carried(GIVER, TOPIC, 3, 4)
        message: Any = SimpleNamespace(run=run, topic=TOPIC, released=2)
        TopicTransfers.on_carry(server, 7, message)
        is_new = is_taken and not holds
        assert server.calls == ([(Part(GIVER, TOPIC), 2, run)] if is_new else [])


@pytest.mark.parametrize(
    "run",
    [carried(HERE, TOPIC, 3, 4), carried(GIVER, TOPIC + 1, 3, 4), carried(GIVER, TOPIC, 3, 5)],
)
def test_malformed_carried_publications_are_a_fault_of_the_peer(run: PublicationRun) -> None:
    server = moves()
    message: Any = SimpleNamespace(run=run, topic=TOPIC, released=2)
    with pytest.raises(RemoteProtocolError, match="carried here"):
        TopicTransfers.on_carry(server, 7, message)
    assert server.calls == []


def test_parts_of_earlier_owners_have_their_ages_in_memory_and_on_disk() -> None:
    found: dict[Part, Any] = {}

    def part(key: Part) -> Any:
        lost = SimpleNamespace(carry=lambda _: [])
        return found.setdefault(key, SimpleNamespace(age=0, lost=lost, is_here=False))

    durable: list[Any] = []
    topic = SimpleNamespace(on_durable=lambda *stored: durable.append(stored))
    log = SimpleNamespace(
        part=part, settle_at=lambda *_: [], put_through=lambda *_: (), topic=lambda _: topic
    )
    followers = SimpleNamespace(expect=lambda *_: None, take_positions=lambda *_: [])
    server = moves(_log=log, _followers=followers)
    parts = [SimpleNamespace(part=each, last=3, lost=()) for each in (GIVER, THIRD)]
    message: Any = SimpleNamespace(
        topic=TOPIC, giver=GIVER, parts=parts, sources=(("s", 4),), followers=(), generation=1
    )
    TopicTransfers._store_topic(server, 7, message, [], lambda *came: durable.append(came))
    assert {key.server: each.age for key, each in found.items()} == {GIVER: 1, THIRD: 2}
    ((rows, then),) = server.calls
    assert [(row.table, row.key, row.value) for row in rows] == [
        (PARTS, f"{TOPIC}.{GIVER}", [GIVER, 1]), (PARTS, f"{TOPIC}.{THIRD}", [GIVER, 2])
    ]  # fmt: skip
    assert server._arriving == {TOPIC: GIVER}
    assert not any(each.is_here for each in found.values())
    then()
    assert durable == [("s", 4), (TOPIC, 1)]
    assert all(each.is_here for each in found.values())
    assert server.calls[1:] == [(7, Transferred(HERE, GIVER, TOPIC, HERE))]


def test_a_topic_that_moves_takes_no_publish_requests_any_more() -> None:
    dropped: list[int] = []
    parts = [SimpleNamespace(is_frozen=False) for _ in range(2)]
    server = moves(
        _log=SimpleNamespace(parts=lambda number: parts if number == TOPIC else []),
        _server=SimpleNamespace(freeze=dropped.append),
    )
    TopicTransfers._freeze(server, TOPIC)
    assert (dropped, [part.is_frozen for part in parts]) == ([TOPIC], [True, True])


def test_a_topic_that_has_moved_away_occupies_no_log_any_more() -> None:
    """The log is truncated up to the first record of a topic that moves."""
    released: list[tuple[int, int, bool]] = []
    parts = [SimpleNamespace(part=at, is_frozen=True, durable=4 + at) for at in range(2)]
    log = SimpleNamespace(
        everything=lambda _: parts,
        release=lambda part, through: released.append((part.part, through, part.is_frozen)),
    )
    TopicTransfers.release(moves(_log=log), TOPIC)
    assert released == [(0, 4, False), (1, 5, False)]


def test_a_repeated_transfer_takes_another_proxy_and_none_without_a_session() -> None:
    sent: list[Any] = []
    sessions: dict[int, None] = {7: None, 8: None}
    part = SimpleNamespace(
        runs=(), put={}, part=Part(HERE, TOPIC), needed_position=0, durable=0,
        lost=SimpleNamespace(after=lambda _: ()),
    )  # fmt: skip
    server = moves(
        moving={TOPIC: GIVER}, generations={TOPIC: 3}, _turn=0, _retry_ns=5,
        _deadlines=SimpleNamespace(set=lambda *_: None),
        _sessions=SimpleNamespace(sessions=sessions),
        _disk=SimpleNamespace(
            machine=SimpleNamespace(now_ns=0, send=lambda *sending: sent.append(sending))
        ),
        _log=SimpleNamespace(parts=lambda _: [part]),
    )  # fmt: skip
    server._followers.of = lambda _: [(HOME, {})]
    for _ in range(3):
        TopicTransfers._send_topic(server, TOPIC)
    assert [(proxy, message.generation) for proxy, message in sent] == [(8, 3), (7, 3), (8, 3)]
    TopicTransfers._answer(server, 8, Transferred(HERE, GIVER, TOPIC, HERE))
    assert len(sent) == 4
    sessions.clear()
    TopicTransfers._answer(server, 8, Transferred(HERE, GIVER, TOPIC, HERE))
    TopicTransfers._send_topic(server, TOPIC)
    assert len(sent) == 4


# ---------------------------------------------------------------- followers


@pytest.mark.parametrize(
    "moving, follows, can",
    [([], [], True), ([TOPIC], [], False), ([TOPIC], [TOPIC], True), ([6], [], True)],
)
def test_a_moving_topic_takes_no_new_follower(
    moving: list[int], follows: list[int], can: bool
) -> None:
    follower = object()
    transfers: Any = SimpleNamespace(
        transfers=SimpleNamespace(
            moving=dict.fromkeys(moving, GIVER), notify_moved=lambda *_: False
        ),
        _server=SimpleNamespace(
            followers=SimpleNamespace(
                follows=lambda who, number: who is follower and number in follows
            )
        ),
    )
    assert TransferServer.can_follow(transfers, HOME, follower, (4, TOPIC)) == can  # type: ignore[arg-type]
    if TOPIC in moving:
        assert not TransferServer.can_follow(transfers, HOME, None, (4, TOPIC))
    transfers.transfers.notify_moved = lambda *_: True
    assert not TransferServer.can_follow(transfers, HOME, follower, (4, TOPIC))  # type: ignore[arg-type]


def test_a_get_of_an_unknown_follower_or_of_an_earlier_version_is_not_answered() -> None:
    """A server that lost its followers awaits their Follow; an old get changes nothing."""
    follower: Any = SimpleNamespace(got=(1, 5), version=SimpleNamespace(incarnation=1))
    for found, number in ((None, 7), (follower, 5), (follower, 4)):
        server: Any = SimpleNamespace(
            followers=SimpleNamespace(get=lambda _, found=found: found),
            _restatements=SimpleNamespace(is_awaited=lambda _: False),
        )
        message: Any = SimpleNamespace(home=HOME, incarnation=1, number=number, wanted=())
        Server._on_get(server, 7, message)
    assert vars(follower).keys() == {"got", "version"}
