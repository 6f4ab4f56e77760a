"""The topics of publications and predicates, and hashed owners.

Topics are numbers: 0 is for publications without the topic attribute, and each value of the
attribute has one of the others, shared with other values. So any predicate can be followed, a
predicate without a value in all topics, and other publications of a topic are filtered at the
access broker.

Paper: [MP22] §3 (topics, servers). Deviates: the owner is the highest of a
hash over the servers that the topology names, so that all proxies agree without messages; the
paper's proxies choose the least loaded server by themselves, by which two servers may own a topic
(§4).
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.model.predicate import Attributes, DecodeAttributes, Predicate, Scalar
from brokerd.model.publication import PublicationRun
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.parts.selection import RunSelection, places_by_result

NO_TOPIC: Final = 0
"""The topic of publications without the topic attribute."""

_REMEMBERED: Final = 65_536


class Topics:
    """Topics of publications and predicates."""

    def __init__(self, parameters: MultiProxyParameters, decode: DecodeAttributes) -> None:
        self._attribute = parameters.topic_attribute
        self._apart_attribute = parameters.apart_attribute
        self._count = parameters.topics
        self._decode = decode
        self._hashes: dict[bytes, int] = {}

    @property
    def every(self) -> range:
        return range(self._count + 1)

    def topic_of_value(self, value: Scalar) -> int:
        """Return the topic of publications with this value of the topic attribute."""
        return 1 + _hash(_canonical(value)) % self._count

    def topics_of_predicate(self, predicate: Predicate) -> tuple[int, ...]:
        """Return the topics in which a predicate may hold, ascending."""
        found: dict[int, None] = {}
        for conjunction in predicate.any_of:
            values: tuple[Scalar, ...] | None = None
            is_apart = False
            for test in conjunction:
                if test.attribute == self._apart_attribute and test.operator != "not exists":
                    is_apart = True
                elif test.attribute == self._attribute and test.operator in ("=", "in"):
                    assert test.value is not None, f"{test} compares with nothing"
                    values = test.value if isinstance(test.value, tuple) else (test.value,)
            if is_apart:
                found[NO_TOPIC] = None
            elif values is not None:
                found.update(dict.fromkeys(map(self.topic_of_value, values)))
            else:
                return tuple(self.every)
        return tuple(sorted(found))

    def parts(self, run: PublicationRun, peer: Peer) -> Iterator[tuple[int, PublicationRun]]:
        """Return a run by topics, each in order.

        Raises:
            RemoteProtocolError: malformed attributes, or both the topic attribute and the
                attribute that excludes it; the fault of the sending peer.
        """
        blobs = run.attribute_table
        new = [blob for blob in dict.fromkeys(blobs) if blob not in self._hashes]
        topics = dict(zip(new, self._topics_of(new, peer), strict=True)) if new else {}
        by_place = [topics[blob] if blob in topics else self._hashes[blob] for blob in blobs]
        if len(self._hashes) + len(topics) > _REMEMBERED:
            self._hashes.clear()
        self._hashes.update(topics)
        selection = RunSelection(run)
        return iter(
            [
                (topic, selection.select(places))
                for topic, places in places_by_result(by_place).items()
            ]
        )

    def _topics_of(self, blobs: Sequence[bytes], peer: Peer) -> list[int]:
        try:
            read = self._decode(blobs)
        except ValueError as error:
            raise RemoteProtocolError(peer, f"malformed attributes: {error}") from None
        return [self._topic_of(attributes, peer) for attributes in read]

    def _topic_of(self, attributes: Attributes, peer: Peer) -> int:
        value = attributes.get(self._attribute)
        if value is None:
            return NO_TOPIC
        if self._apart_attribute in attributes:
            reason = f"a publication has both {self._attribute!r} and {self._apart_attribute!r}"
            raise RemoteProtocolError(peer, reason)
        return self.topic_of_value(value)


def owners(topics: int, servers: Sequence[tuple[BrokerNumber, str]]) -> tuple[BrokerNumber, ...]:
    """Return the hashed owner of each topic, from 0 to `topics`: the same at all brokers.

    Args:
        servers: number and name; the order does not matter.

    Paper: none (rendezvous hashing).
    """
    return tuple(
        max(servers, key=lambda server: (_hash(f"{topic} {server[1]}"), server[1]))[0]
        for topic in range(topics + 1)
    )


def _canonical(value: Scalar) -> str:
    """Return the same text for values that compare as equal, and for no others."""
    if isinstance(value, bool):
        return f"bool {value}"
    if isinstance(value, str):
        return f"text {value}"
    if isinstance(value, float) and not value.is_integer():
        return f"number {value!r}"
    return f"number {int(value)}"


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=8).digest(), "big")
