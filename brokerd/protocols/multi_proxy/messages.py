"""The messages between access brokers, proxies and servers of multi_proxy.

An access broker publishes and fetches for its own clients: a put has their publications, and a get
requests those of their subscriptions. A proxy forwards a request to `server`, an answer to `home`.

Paper: [MP22] §3.1 (put, get, subscribe, unsubscribe). Deviates: a put is a run, a get is of all
topics that an access broker follows at a server, and subscribe and unsubscribe are one request
with all of these, so that the order of two requests does not matter. Answers name the extent of the
server's log, and requests name the newest extent that their access broker has received: a `mark`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.model.message_kind import MessageKind, run_kind
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.parts.decommissioning import Signed
from brokerd.protocols.parts.log_marks import NO_MARK, LogMark

LOST: Final = "early release"
"""The reason of a gap in missed publications."""


@record
class Servers:
    """Proxy → access broker: the servers with a session; first message, and on change."""

    reached: tuple[BrokerNumber, ...]


@record
class Put:
    """Access broker → server: append a run to a topic, unless present.

    Attributes:
        previous: the previous publication of this source in the topic that is not acknowledged; 0
            for none. The server appends the run only after that.
        run: as numbered by the publisher.
    """

    server: BrokerNumber
    home: BrokerNumber
    topic: int
    previous: int
    run: PublicationRun
    mark: LogMark = NO_MARK


@record
class Stored:
    """Server → access broker: the number through which a source is durable in a topic."""

    server: BrokerNumber
    home: BrokerNumber
    topic: int
    source: SourceId
    through: int
    mark: LogMark = NO_MARK


@record
class Follow:
    """Access broker → server: all topics of the server that clients have subscribed to.

    Attributes:
        incarnation: of the access broker.
        number: of the request; a later request has a higher number.
    """

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int
    topics: tuple[int, ...]
    mark: LogMark = NO_MARK


class Followed(NamedTuple):
    """A topic that an access broker follows.

    Attributes:
        done: the acknowledged position; delivery continues after it.
        head: later publications have later positions.
        part: the server that has assigned these positions.
    """

    part: BrokerNumber
    topic: int
    done: int
    head: int


class Elsewhere(NamedTuple):
    """The last position of a server in a topic, as another server has received it.

    Attributes:
        through: the last position, with durable publications.
    """

    part: BrokerNumber
    topic: int
    through: int


@record
class Following:
    """Server → access broker: the answer to Follow, which is durable.

    Attributes:
        elsewhere: parts of these topics at other servers, with their last positions (`causal`
            only).
    """

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int
    topics: tuple[Followed, ...]
    elsewhere: tuple[Elsewhere, ...]
    mark: LogMark = NO_MARK


class Wanted(NamedTuple):
    """The request for one topic.

    Attributes:
        done: the acknowledged position, which will never be requested again.
        after: the position through which everything has arrived.
        most: the most publications in the answer.
        part: the server that has assigned these positions.
    """

    part: BrokerNumber
    topic: int
    done: int
    after: int
    most: int


@record
class Get:
    """Access broker → server: a request for new publications, answered at once or after a wait."""

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int
    wanted: tuple[Wanted, ...]
    mark: LogMark = NO_MARK


@record
class Messages:
    """Server → access broker: all publications of a topic from the first to the last position.

    Attributes:
        run: sequences are positions; the publishers are in the origins.
    """

    home: BrokerNumber
    topic: int
    run: PublicationRun


class LostRun(NamedTuple):
    """Consecutive publications of one source, at consecutive positions of a topic.

    Attributes:
        position: of the first.
    """

    position: int
    source: SourceId
    first: int
    last: int

    @property
    def end(self) -> int:
        """The position of the last publication."""
        return self.position + self.last - self.first

    def continues_in(self, run: "LostRun") -> bool:
        """Return True if a run continues this run."""
        continued = self._replace(position=self.end + 1, first=self.last + 1, last=run.last)
        return run == continued

    def after(self, position: int) -> "LostRun | None":
        """Return the part after a position."""
        if position >= self.end:
            return None
        skipped = max(0, position + 1 - self.position)
        return self._replace(position=self.position + skipped, first=self.first + skipped)


@record
class Lost:
    """Server → access broker: publications that were released without acknowledgement.

    Attributes:
        part: the server that has assigned these positions.
        runs: all of them from the first position to the last.
    """

    server: BrokerNumber
    home: BrokerNumber
    part: BrokerNumber
    topic: int
    runs: tuple[LostRun, ...]

    @property
    def first(self) -> int:
        return self.runs[0].position

    @property
    def last(self) -> int:
        return self.runs[-1].end


@record
class Answered:
    """Server → access broker: the end of the answer to a get."""

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int
    mark: LogMark = NO_MARK


class Owner(NamedTuple):
    """A topic, and its owner or candidate.

    Attributes:
        generation: of several owners the one with the highest generation has the topic
            (`arbiter`); 0: not from the arbiter.
    """

    topic: int
    server: BrokerNumber
    generation: int = 0


@record
class Owned:
    """Server → proxy → access broker: the owners of topics, until a higher generation."""

    owners: tuple[Owner, ...]


@record
class Locate:
    """Access broker → arbiter: a request for owners, which a proxy turns into a Claim."""

    server: BrokerNumber
    home: BrokerNumber
    topics: tuple[int, ...]
    mark: LogMark = NO_MARK


@record
class Claim:
    """Proxy → arbiter: an access broker's request for owners, with a candidate for each topic."""

    server: BrokerNumber
    home: BrokerNumber
    candidates: tuple[Owner, ...]
    mark: LogMark = NO_MARK


@record
class Located:
    """Arbiter → access broker: the answer to Locate, for topics that have an owner by now."""

    server: BrokerNumber
    home: BrokerNumber
    owners: tuple[Owner, ...]


class Generation(NamedTuple):
    """The number of an attempt to give a topic an owner; later attempts have higher numbers."""

    topic: int
    number: int


@record
class Assign:
    """Arbiter → server, over a proxy: an assignment of topics."""

    server: BrokerNumber
    arbiter: BrokerNumber
    generations: tuple[Generation, ...]


@record
class Assigned:
    """Server → arbiter, over a proxy: a confirmation of durable assignments."""

    server: BrokerNumber
    arbiter: BrokerNumber
    generations: tuple[Generation, ...]


@record
class Move:
    """Proxy → arbiter: a proposal to give topics to servers with the fewest (`arbiter`)."""

    server: BrokerNumber
    owners: tuple[Owner, ...]


@record
class Give:
    """Arbiter → a topic's server, over a proxy: a request to transfer the topic (`arbiter`).

    Attributes:
        generation: of the new owner.
    """

    server: BrokerNumber
    arbiter: BrokerNumber
    topic: int
    owner: BrokerNumber
    generation: int


@record
class Merge:
    """Proxy → server: a request to transfer topics that other servers own, too."""

    server: BrokerNumber
    owners: tuple[Owner, ...]


@record
class Merged:
    """Server → access broker: other owners of followed topics, to follow there."""

    home: BrokerNumber
    owners: tuple[Owner, ...]


@record
class Periodic:
    """Server → proxies → other servers: the topics in use, and the last positions.

    Attributes:
        number: increases within an incarnation of the server.
        topics: topics with requests at this server, without those that have moved away.
        known: last positions in topics, by this server and by others.
    """

    server: BrokerNumber
    incarnation: int
    number: int
    topics: tuple[int, ...]
    known: tuple[Elsewhere, ...]


@record
class Carry:
    """Server → server, over a proxy: publications of a topic that moves to the receiver.

    Attributes:
        released: positions through this one are not sent; a run that begins later follows another
            run.
        run: sequences are positions; the publishers are in the origins.
    """

    server: BrokerNumber
    giver: BrokerNumber
    topic: int
    released: int
    run: PublicationRun


class CarriedPart(NamedTuple):
    """The positions that one server has assigned in a topic.

    Attributes:
        released: no follower at the giver needs positions through this one.
        last: the last position.
        lost: runs after `released` that are not retained any more.
    """

    part: BrokerNumber
    released: int
    last: int
    lost: tuple[LostRun, ...]


class PutThrough(NamedTuple):
    """The last publication of a source in a topic."""

    source: SourceId
    through: int


class CarriedFollower(NamedTuple):
    """A follower of a topic.

    Attributes:
        done: the acknowledged position per part.
    """

    home: BrokerNumber
    done: tuple[Elsewhere, ...]


@record
class Transfer:
    """Server → server, over a proxy: the state of a topic beside its publications, to take over.

    Attributes:
        generation: of the new owner; 0: without an arbiter (`causal`).
    """

    server: BrokerNumber
    giver: BrokerNumber
    topic: int
    generation: int
    parts: tuple[CarriedPart, ...]
    sources: tuple[PutThrough, ...]
    followers: tuple[CarriedFollower, ...]


@record
class Transferred:
    """Server → giver, over a proxy: a confirmation that the topic is durable here.

    Attributes:
        owner: the present owner; another server if this one has given the topic away itself.
    """

    server: BrokerNumber
    giver: BrokerNumber
    topic: int
    owner: BrokerNumber


@record
class Decommissioned:
    """Brokers that the operator has decommissioned, with the authority's signatures.

    Brokers forward the message to their neighbours; a broker that is named ends.
    """

    decommissions: tuple[Signed, ...]


Request = Put | Follow | Get | Locate | Claim
Answer = Stored | Following | Messages | Lost | Answered | Located | Merged


def _halves(message: Put) -> Sequence[Put]:
    """Return both halves of a request; the second half names the first as previous."""
    run = message.run
    half = len(run) // 2
    if not half:
        return ()
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    return replace(message, run=first), replace(message, run=second, previous=first.last)


KINDS = (
    MessageKind(96, Servers),
    MessageKind(97, Put, None, _halves),
    MessageKind(98, Stored),
    MessageKind(99, Follow),
    MessageKind(100, Following),
    MessageKind(101, Get),
    run_kind(102, Messages, lambda message: (message.home, message.topic)),
    MessageKind(103, Answered),
    MessageKind(104, Owned),
    MessageKind(105, Locate),
    MessageKind(106, Claim),
    MessageKind(107, Located),
    MessageKind(108, Assign),
    MessageKind(109, Assigned),
    MessageKind(110, Merge),
    MessageKind(111, Merged),
    MessageKind(117, Lost),
    MessageKind(128, Periodic),
    run_kind(129, Carry, lambda message: (message.server, message.giver, message.topic)),
    MessageKind(130, Transfer),
    MessageKind(131, Transferred),
    MessageKind(132, Decommissioned),
    MessageKind(133, Move),
    MessageKind(134, Give),
)
"""With their numbers on the wire; 96 to 111 are multi_proxy's, 117, and 128 to 134."""
