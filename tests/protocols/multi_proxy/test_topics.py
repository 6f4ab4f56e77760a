"""Topics of publications and predicates: every possible match is in a followed topic."""

from random import Random

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import SourceId
from brokerd.model.predicate import EVERYTHING, NOTHING
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.topics import NO_TOPIC, Topics, owners
from brokerd.wire.attributes import decode_attribute_table, encode_attributes

TOPICS = Topics(MultiProxyParameters(topics=8), decode_attribute_table)


def run_of(*attributes: dict) -> PublicationRun:
    """Return a run with a publication per attribute set; payloads are the numbers from 1."""
    blobs = [encode_attributes(each) for each in attributes]
    table = tuple(dict.fromkeys(blobs))
    index = bytes(map(table.index, blobs))
    payload = (b"".join(b"%d" % number for number in range(1, len(blobs) + 1)),)
    return PublicationRun(SourceId(1, 0, 1), range(1, len(blobs) + 1), table, index, 1, payload)


def test_a_run_is_put_by_topics_each_in_order() -> None:
    run = run_of({"symbol": "a"}, {"price": 3}, {"symbol": "b"}, {"symbol": "a"}, {"fence": "f"})
    parts = dict(TOPICS.parts(run, "p"))
    assert list(parts[NO_TOPIC].sequences) == [2, 5]
    found = {number: bytes(payload) for number, _, payload in parts[NO_TOPIC].publications()}
    assert found == {2: b"2", 5: b"5"}
    assert sum(map(len, parts.values())) == 5


def test_values_that_compare_as_equal_have_one_topic() -> None:
    many = Topics(MultiProxyParameters(topics=1_000_000), decode_attribute_table)
    assert many.topic_of_value(3) == many.topic_of_value(3.0)
    assert many.topic_of_value(1 << 60) == many.topic_of_value(float(1 << 60))
    assert len({many.topic_of_value(value) for value in (1, True, "1", 1.5)}) == 4


@pytest.mark.parametrize(
    "text, count",
    [
        ("symbol = 'a'", 1),
        ("symbol = 'a' and price > 3 or fence = 'f'", 2),
        ("price > 3", 9),
        ("symbol > 'a'", 9),
        ("not fence exists", 9),
    ],
)
def test_how_many_topics_a_predicate_needs(text: str, count: int) -> None:
    assert len(TOPICS.topics_of_predicate(parse_predicate(text))) == count


def test_whatever_a_predicate_holds_for_is_in_its_topics() -> None:
    random = Random(7)
    tests = ("symbol = 'a'", "symbol in ('b', 3)", "price >= 2", "fence = 'f'", "symbol != 'c'")
    tests += ("not symbol exists", "symbol = 3.0", "fence != 'g'", "not fence exists")
    for _ in range(300):
        conjunctions = [
            " and ".join(random.sample(tests, random.randrange(1, 3))) for _ in range(2)
        ]
        predicate = parse_predicate(" or ".join(conjunctions))
        topics = TOPICS.topics_of_predicate(predicate)
        attributes = {"price": random.randrange(4)}
        if random.random() < 0.6:
            attributes["symbol"] = random.choice(("a", "b", "c", 3, 3.0, True))
        elif random.random() < 0.5:
            attributes["fence"] = random.choice("fg")
        if predicate.matches(attributes):
            ((topic, _),) = TOPICS.parts(run_of(attributes), "p")
            assert topic in topics, (predicate, attributes)


def test_a_predicate_that_matches_all_or_none_follows_every_topic() -> None:
    assert (
        TOPICS.topics_of_predicate(EVERYTHING)
        == TOPICS.topics_of_predicate(NOTHING)
        == tuple(range(9))
    )


def test_a_fence_publication_with_a_topic_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="both 'symbol' and 'fence'"):
        TOPICS.parts(run_of({"symbol": "a", "fence": "f"}), "p")


def test_attributes_that_cannot_be_read_are_the_publishers_fault() -> None:
    run = PublicationRun(SourceId(1, 0, 1), range(1, 2), (b"\xff",), b"\0", 0, ())
    with pytest.raises(RemoteProtocolError, match="malformed"):
        TOPICS.parts(run, "p")


def test_servers_agree_on_topic_owners_and_each_owns_topics() -> None:
    servers = [(4, "v1"), (7, "v2"), (2, "v3")]
    assert owners(99, servers) == owners(99, servers[::-1])
    shares = [owners(99, servers).count(number) for number, _ in servers]
    assert min(shares) > 20


def test_an_additional_server_acquires_topics_and_moves_no_others() -> None:
    before = owners(99, [(4, "v1"), (7, "v2")])
    after = owners(99, [(4, "v1"), (7, "v2"), (2, "v3")])
    assert all(now in (then, 2) for then, now in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "values, complaint",
    [
        ({"topics": 0}, "topics = 0; at least 1"),
        ({"timeout_ns": 0}, "timeout_ns = 0; at least 1"),
        ({"topic_attribute": ""}, "topic_attribute is empty"),
        ({"topic_attribute": "fence"}, "apart_attribute = 'fence' is the topic attribute"),
    ],
)
def test_parameters_that_cannot_be_are_named(values: dict, complaint: str) -> None:
    parameters = MultiProxyParameters.from_mapping(values, "file")
    with pytest.raises(ConfigError, match=complaint):
        parameters.check("file")
