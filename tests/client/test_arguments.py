"""Tests of wrong arguments: the call refuses them, and the client keeps working."""

import enum
import math
from collections.abc import Callable
from typing import Any

import pytest
import trio

from brokerd.client.client import Client, ClientError, connect
from brokerd.errors import ConfigError
from brokerd.model.predicate import Constraint, Predicate, PredicateError
from brokerd.model.predicate_text import parse_predicate
from brokerd.wire.attributes import EncodedAttributes, encode_attributes
from tests.client.test_client import brokers, client_of, take
from tests.helpers.virtual_time import in_virtual_time

HALF = "\ud800"
OIL = encode_attributes({"topic": "oil"})
DEEP = "(" * 9 + "x = 1" + ")" * 9


class Three(enum.IntEnum):
    A = 3


class Text(str):
    """A text of an application's own type."""


REFUSED_PREDICATES: dict[str, Any] = {
    "half a character": f"x = '{HALF}'",
    "half a character in a list": f"x in (1, '{HALF}')",
    "half a character of a name": f"{HALF} = 1",
    "no predicate": None,
    "bytes": b"x = 1",
    "number": 5,
    "too deep": DEEP,
    "too large integer": f"x = {1 << 63}",
    "too long": "x = '" + "a" * 300 + "'",
}


@pytest.mark.parametrize("what", REFUSED_PREDICATES)
@in_virtual_time
async def test_a_predicate_that_cannot_be_sent_is_refused_at_the_call(what: str) -> None:
    async with brokers() as (b0,), client_of(b0, "s") as client:
        with pytest.raises(PredicateError):
            await client.subscribe(REFUSED_PREDICATES[what])
        with pytest.raises(PredicateError):
            client.subscribe_nowait(REFUSED_PREDICATES[what])
        await still_works(client)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constraint("x", "=", HALF),
        lambda: Constraint(HALF, "=", 1),
        lambda: Constraint("x", "prefix", HALF),
        lambda: Constraint("x", "in", ("a", HALF)),
        lambda: Constraint("x", "=", math.nan),
        lambda: Constraint("x", "=", 1 << 63),
        lambda: Constraint("x", "=", b"1"),
        lambda: Constraint("x", "=", None),
        lambda: Constraint(None, "=", 1),
        lambda: Constraint(5, "=", 1),
        lambda: Constraint("x", HALF, 1),
        lambda: Constraint("x", None, 1),
        lambda: Predicate([(Constraint("x", "=", 1),)]),
        lambda: Predicate(([Constraint("x", "=", 1)],)),
        lambda: Predicate((("x", "=", 1),)),
        lambda: Predicate(None),
        lambda: Predicate(((Constraint("x", "=", 1),) * 65,)),
    ],
)
def test_a_predicate_that_cannot_be_sent_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(PredicateError) as refused:
        make()
    assert str(refused.value).isprintable()


REFUSED_ATTRIBUTES: dict[str, Any] = {
    "none": None,
    "list": [("a", 1)],
    "text": "a",
    "half a character": {"a": HALF},
    "half a character of a name": {HALF: 1},
    "half a character of a long text": {"a": "b" * 100 + HALF},
    "bytes": {"a": b"x"},
    "no value": {"a": None},
    "map": {"a": {}},
    "list of values": {"a": [1]},
    "large integer": {"a": 1 << 63},
    "nan": {"a": math.nan},
    "no name": {"": 1},
    "name of another kind": {1: 1},
    "long name": {"a" * 257: 1},
    "long value": {"a": "b" * 257},
    "many": {f"a{n}": n for n in range(65)},
    "marker of a loss": {"$lost": True},
    "encoded marker of a loss": encode_attributes({"$lost": True}),
    "no encoded map": b"garbage",
    "nothing encoded": b"",
    "two encoded maps": OIL + OIL,
    "encoded list": b"\x80",
    "encoded bytes": b"\xa1\x61a\x41x",
    "array of bytes": bytearray(OIL),
}


@pytest.mark.parametrize("what", REFUSED_ATTRIBUTES)
@in_virtual_time
async def test_attributes_that_cannot_be_sent_are_refused_at_the_call(what: str) -> None:
    async with brokers() as (b0,), client_of(b0, "s", publishes=True) as client:
        attributes = REFUSED_ATTRIBUTES[what]
        refused = ""
        try:
            await client.publish(attributes, b"lost")
        except ValueError as error:
            refused = str(error)
        assert refused, f"{what} was taken"
        assert refused.isprintable()
        if isinstance(attributes, bytes):
            with pytest.raises(ValueError, match="attribute"):
                client.publish_many_nowait([OIL, attributes], b"\0", 1, b"x")
        assert client.outstanding == 0
        await still_works(client)


@pytest.mark.parametrize("payload", ["text", None, 5, [1], memoryview(b"abcd")[::2]])
@in_virtual_time
async def test_a_payload_that_is_no_bytes_is_refused_at_the_call(payload: Any) -> None:
    async with brokers() as (b0,), client_of(b0, "s", publishes=True) as client:
        with pytest.raises(ValueError, match="a payload is bytes"):
            await client.publish({"topic": "oil"}, payload)
        with pytest.raises(ValueError, match="a payload is bytes"):
            client.publish_many_nowait([OIL], b"\0", 1, payload)
        await still_works(client)


@in_virtual_time
async def test_a_payload_that_changes_afterwards_is_as_it_was() -> None:
    async with brokers() as (b0,), client_of(b0, "s", publishes=True) as client:
        await client.subscribe("topic = 'oil'")
        changing = bytearray(b"before")
        await client.publish(OIL, changing)
        changing[:] = b"behind"
        assert (await anext(client.publications())).payload == b"before"
        await client.publish(OIL, memoryview(b"\1\0\2\0").cast("H"))
        assert (await anext(client.publications())).payload == b"\1\0\2\0"


@pytest.mark.parametrize(
    "parts, why",
    [
        (([], b"\0", 1, b"x"), "at least one"),
        ((["a"], b"\0", 1, b"x"), "bytes only"),
        (([OIL], b"", 1, b""), "publish at least one publication"),
        ((None, b"\0", 1, b"x"), "is a sequence"),
        (([OIL], b"\1", 1, b"x"), "not into a table of 1"),
        (([OIL], [-1], 1, b"x"), "not into a table of 1"),
        (([OIL], [0.0], 1, b"x"), "not into a table of 1"),
        (([OIL], b"\0", -1, b"x"), "-1 bytes together"),
        (([OIL], b"\0", 2, b"x"), "1 payloads of 2 bytes together, and 1 are given"),
        (([OIL], b"\0\0", (2,), b"xx"), "1 payload lengths of 2 publications"),
        (([OIL], b"\0\0", (-1, 3), b"xx"), "2 payloads of 2 bytes"),
        (([OIL], b"\0\0", (1.0, 1.0), b"xx"), "payload_lengths"),
        (([OIL], b"\0", "1", b"x"), "payload_lengths"),
        (([OIL], b"\0", 1 << 20, bytes(1 << 20)), "a publication of"),
    ],
)
@in_virtual_time
async def test_publications_with_inconsistent_parts_are_refused_at_the_call(
    parts: tuple[Any, ...], why: str
) -> None:
    async with brokers() as (b0,), client_of(b0, "s", publishes=True) as client:
        with pytest.raises(ValueError, match=why):
            client.publish_many_nowait(*parts)
        assert (client.outstanding, client.next_sequence) == (0, 1)
        await still_works(client)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"name": ""}, "client name = ''"),
        ({"name": HALF}, r"client name = '\\ud800'"),
        ({"name": "a\nb"}, "client name"),
        ({"name": "a" * 101}, "from 1 to 100 printable characters"),
        ({"name": None}, "client name = None"),
        ({"name": b"s"}, "client name = b's'"),
        ({"deployment_id": HALF}, "deployment_id"),
        ({"deployment_id": "d" * 1_025}, "deployment_id"),
        ({"deployment_id": 7}, "deployment_id = 7"),
        ({"incarnation": -1}, "incarnation = -1"),
        ({"publishes": True, "pubend": -1}, "pubend = -1"),
        ({"publishes": True, "pubend": "0"}, "pubend = '0'"),
        ({"pubend": 0}, "pubend = 0 of a client that does not publish"),
        ({"incarnation": 1 << 63}, "incarnation"),
        ({"incarnation": "1"}, "incarnation = '1'"),
        ({"incarnation": True}, "incarnation = True"),
        ({"incarnation": 1 << 49}, "incarnation = 562949953421312"),
        ({"unreachable_after_s": -1}, "unreachable_after_s = -1"),
        ({"unreachable_after_s": math.nan}, "unreachable_after_s = nan"),
        ({"unreachable_after_s": "1"}, "unreachable_after_s = '1'"),
        ({"window": 0}, "window = 0"),
        ({"window": 1.5}, "window = 1.5"),
        ({"address": []}, "address"),
        ({"address": ""}, "address = ''"),
        ({"address": "localhost"}, "address = 'localhost'; \"host:port\""),
        ({"address": "localhost:"}, "address"),
        ({"address": "localhost:0"}, "address"),
        ({"address": "localhost:70000"}, "address"),
        ({"address": "localhost:1.5"}, "address"),
        ({"address": f"{HALF}:1"}, "address"),
        ({"address": ["127.0.0.1:1", None]}, "address = None"),
        ({"address": None}, 'address = None; "host:port", or several'),
        ({"address": 5}, "address = 5"),
        ({"address": b"127.0.0.1:1"}, "address = b'127.0.0.1:1'"),
        ({"elsewhere": ["nowhere"]}, "address = 'nowhere'"),
        ({"elsewhere": "nowhere"}, "address = 'nowhere'"),
        ({"elsewhere": 5}, "elsewhere = 5"),
    ],
)
@in_virtual_time
async def test_a_client_with_invalid_settings_is_not_created(
    changes: dict[str, Any], why: str
) -> None:
    values = {"address": "127.0.0.1:1", "name": "s", **changes}
    with pytest.raises(ConfigError, match=why) as refused:
        async with connect(**values):
            pytest.fail("it was made")
    assert str(refused.value).isprintable()


@in_virtual_time
async def test_every_encodable_attribute_arrives_unchanged() -> None:
    """Values are numbers and texts of an application's own types, infinity, and odd characters."""
    attributes = {
        "a": Three.A,
        "b": Text("x"),
        "c": math.inf,
        "d": "\0\n",
        "é": "𝄞",
        "f": -(1 << 63),
    }
    async with brokers() as (b0,), client_of(b0, "s", publishes=True) as client:
        await client.subscribe("a = 3 and f < 0")
        await client.subscribe(Predicate(((Constraint("a", "=", Three.A),),)))
        await client.subscribe(Predicate(((Constraint("b", "=", Text("x")),),)))
        await client.publish(attributes, b"")
        await client.publish_many(EncodedAttributes([encode_attributes(attributes)]), b"\0", 0, b"")
        publications = client.publications()
        for _ in range(2):
            assert (await anext(publications)).attributes == attributes


@in_virtual_time
async def test_an_address_to_move_to_is_one() -> None:
    async with connect("127.0.0.1:1", "s") as client:
        with pytest.raises(ConfigError, match="address = 'nowhere'"):
            await client.move("nowhere")


@pytest.mark.parametrize("text", [f"x = '{HALF}'", DEEP, f"x prefix '{HALF}'"])
def test_a_text_that_cannot_be_read_is_refused_in_words_that_can(text: str) -> None:
    with pytest.raises(PredicateError) as refused:
        parse_predicate(text)
    assert str(refused.value).isprintable()


async def still_works(client: Client) -> None:
    """Check that a client works after a refusal."""
    number = await client.subscribe("true")
    if client.next_sequence == 1 and client.source is not None:
        await client.publish(OIL, b"kept")
        (delivered,) = await client.receive(1)
        assert (delivered.run.source, delivered.subscriptions) == (client.source, (number,))


@in_virtual_time
async def test_others_do_not_notice() -> None:
    async with (
        brokers() as (b0,),
        client_of(b0, "p", publishes=True) as publisher,
        client_of(b0, "s") as subscriber,
    ):
        await subscriber.subscribe("true")
        for attributes in REFUSED_ATTRIBUTES.values():
            with pytest.raises(ValueError, match="attribute"):
                await publisher.publish(attributes, b"")
            await publisher.publish(OIL, b"x")
        with trio.fail_after(5):
            received = await take(subscriber, len(REFUSED_ATTRIBUTES))
        assert received == [*range(1, len(REFUSED_ATTRIBUTES) + 1)]


CALLS: dict[str, Callable[[Client], Any]] = {
    "publish": lambda client: client.publish({}, b""),
    "publish_many": lambda client: client.publish_many((OIL,), b"\0", 0, b""),
    "subscribe": lambda client: client.subscribe("true"),
    "unsubscribe": lambda client: client.unsubscribe(1),
    "receive": lambda client: client.receive(),
    "next": lambda client: anext(client),
    "flush": lambda client: client.flush(),
    "detach": lambda client: client.detach(),
    "move": lambda client: client.move("b1"),
    "wait_attached": lambda client: client.wait_attached(),
    "wait_started": lambda client: client.wait_started(2),
}


async def refusal_of(call: Callable[..., Any], *arguments: Any) -> str:
    """Return the text of a refusal; "" if the call returns or waits for a minute."""
    with trio.move_on_after(60):
        try:
            await call(*arguments)
        except (ClientError, ConfigError) as refused:
            return str(refused)
    return ""


@in_virtual_time
async def test_a_closed_client_refuses_each_call_with_the_reason() -> None:
    """`receive` waited for ever, and `publish` accepted what nobody would send."""
    async with brokers() as (b0,):
        async with client_of(b0, "c", publishes=True) as client:
            await client.subscribe("true")
            client.subscribe_nowait("true")
        for call in CALLS.values():
            assert "client c: is closed" in await refusal_of(call, client)


@in_virtual_time
async def test_a_start_that_cannot_come_is_not_awaited() -> None:
    async with brokers() as (b0,), client_of(b0, "c") as client:
        assert "no subscription 9" in await refusal_of(client.wait_started, 9)
        number = client.subscribe_nowait("true")
        client.unsubscribe_nowait(number)
        assert "no subscription 1" in await refusal_of(client.wait_started, number)


@pytest.mark.parametrize("number", [0, -1, "1", None, True, 1.0, [1]])
@in_virtual_time
async def test_a_number_of_another_kind_is_refused_at_the_call(number: Any) -> None:
    async with brokers() as (b0,), client_of(b0, "c") as client:
        await client.subscribe("true")
        for call in (client.wait_started, client.unsubscribe, client.receive):
            assert "an integer from 1" in await refusal_of(call, number)
        assert 1 in client.subscriptions
        await still_works(client)


@in_virtual_time
async def test_a_flush_that_waits_for_its_own_client_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A publication is acknowledged once its subscribers have received it."""
    async with brokers() as (b0,), client_of(b0, "c", publishes=True) as client:
        await client.subscribe("true")
        await client.publish({}, b"")
        assert not await refusal_of(client.flush)
        assert [line.getMessage() for line in caplog.records] == [
            "client c: 1 publication without an acknowledgement after 30 s: a subscriber has not "
            "received or not committed them; this client must receive, too, if it has subscriptions"
        ]
        await client.receive()
        with trio.move_on_after(1):
            await client.receive()
        assert not await refusal_of(client.flush)
        assert not client.outstanding
