"""What homes, proxies and servers of multi_proxy say to each other.

A home is a broker in what it does for its own clients: it puts what they publish, and gets what
they have subscribed to. A proxy passes a request on to `server`, an answer to `home`.

Paper: [MP22] §3.1 (put, get, subscribe, unsubscribe). Deviates: a put is a run, a get is of all
topics that a home follows at a server, and subscribe and unsubscribe are one request with all of
these, so that nothing depends on which of two comes first.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.model.message_kind import MessageKind, of_run
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.parts.decommissioning import Signed

LOST: Final = "early release"
"""Why a subscriber does not get what it has missed."""


@record
class Servers:
    """Proxy → home: the servers with which it has a session; first message, and on change."""

    reached: tuple[BrokerNumber, ...]


@record
class Put:
    """Home → server: append these to a topic, unless it has them.

    Attributes:
        previous: the last publication of this source in the topic that was put before and that
            the home does not know to be stored; 0 for none. Without it these are not appended.
        run: as its publisher has numbered it.
    """

    server: BrokerNumber
    home: BrokerNumber
    topic: int
    previous: int
    run: PublicationRun


@record
class Stored:
    """Server → home: what this source has published in a topic is on disk up to here."""

    server: BrokerNumber
    home: BrokerNumber
    topic: int
    source: SourceId
    through: int


@record
class Follow:
    """Home → server: my clients have subscribed to these topics of yours, and to no others.

    Attributes:
        incarnation: of the home.
        number: of the request; a later one has a higher number.
    """

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int
    topics: tuple[int, ...]


class Followed(NamedTuple):
    """A topic as a home follows it.

    Attributes:
        done: the home was done with it up to here; it goes on behind this.
        head: what is put after this was known comes behind this position.
        part: the server that has given these positions.
    """

    part: BrokerNumber
    topic: int
    done: int
    head: int


class Elsewhere(NamedTuple):
    """What a server knows of positions that it or another one has given in a topic.

    Attributes:
        through: up to here they were given, and what they stand for is on disk.
    """

    part: BrokerNumber
    topic: int
    through: int


@record
class Following:
    """Server → home: the answer to Follow, which is on disk.

    Attributes:
        elsewhere: of these topics, what others may hold, and what of it was there before
            (`causal` only).
    """

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int
    topics: tuple[Followed, ...]
    elsewhere: tuple[Elsewhere, ...]


class Wanted(NamedTuple):
    """What a home asks for of one topic.

    Attributes:
        done: it will never ask for what is up to here.
        after: it has what is up to here.
        most: how many publications it takes now.
        part: the server that has given these positions.
    """

    part: BrokerNumber
    topic: int
    done: int
    after: int
    most: int


@record
class Get:
    """Home → server: what is new in these topics? Answered when there is something, or in time."""

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int
    wanted: tuple[Wanted, ...]


@record
class Messages:
    """Server → home: publications of a topic, all of them from the first to the last position.

    Attributes:
        run: its sequences are positions; who published them stands in its origins.
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
        """The position of the last."""
        return self.position + self.last - self.first

    def continues_in(self, run: "LostRun") -> bool:
        """Whether both are one."""
        goes_on = self._replace(position=self.end + 1, first=self.last + 1, last=run.last)
        return run == goes_on

    def after(self, position: int) -> "LostRun | None":
        """What of it lies behind a position."""
        if position >= self.end:
            return None
        skipped = max(0, position + 1 - self.position)
        return self._replace(position=self.position + skipped, first=self.first + skipped)


@record
class Lost:
    """Server → home: these of a topic are kept no more, though the home was not done with them.

    Attributes:
        part: the server that has given these positions.
        runs: all of them from the first position to the last.
    """

    server: BrokerNumber
    home: BrokerNumber
    part: BrokerNumber
    topic: int
    runs: tuple[LostRun, ...]

    @property
    def first(self) -> int:
        """The first position."""
        return self.runs[0].position

    @property
    def last(self) -> int:
        """The last position."""
        return self.runs[-1].end


@record
class Answered:
    """Server → home: a get is answered; what there was came before this."""

    server: BrokerNumber
    home: BrokerNumber
    incarnation: int
    number: int


class Owner(NamedTuple):
    """A topic, and a server that owns it or may be told to.

    Attributes:
        generation: of several owners the one with the highest has the topic (`arbiter`); 0: its
            arbiter has not said it.
    """

    topic: int
    server: BrokerNumber
    generation: int = 0


@record
class Owned:
    """Server → proxy → home: who owns these topics, until another one is told in a higher
    generation."""

    owners: tuple[Owner, ...]


@record
class Locate:
    """Home → the topics' arbiter: who owns them? A proxy makes a Claim of it."""

    server: BrokerNumber
    home: BrokerNumber
    topics: tuple[int, ...]


@record
class Claim:
    """Proxy → arbiter: a home asks who owns these topics; those that nobody owns, these might."""

    server: BrokerNumber
    home: BrokerNumber
    candidates: tuple[Owner, ...]


@record
class Located:
    """Arbiter → home: the answer to Locate, of as many topics as have an owner by now."""

    server: BrokerNumber
    home: BrokerNumber
    owners: tuple[Owner, ...]


class Generation(NamedTuple):
    """Which attempt to give a topic an owner; a later one has a higher number."""

    topic: int
    number: int


@record
class Assign:
    """Arbiter → server, over a proxy: own these topics."""

    server: BrokerNumber
    arbiter: BrokerNumber
    generations: tuple[Generation, ...]


@record
class Assigned:
    """Server → arbiter, over a proxy: that these are mine is on disk."""

    server: BrokerNumber
    arbiter: BrokerNumber
    generations: tuple[Generation, ...]


@record
class Move:
    """Proxy → arbiter: these servers have fewest topics, so let them have these (`arbiter`)."""

    server: BrokerNumber
    owners: tuple[Owner, ...]


@record
class Give:
    """Arbiter → a topic's server, over a proxy: give it to another one (`arbiter`).

    Attributes:
        generation: in which that one has it.
    """

    server: BrokerNumber
    arbiter: BrokerNumber
    topic: int
    owner: BrokerNumber
    generation: int


@record
class Merge:
    """Proxy → server: these servers own topics of yours too; let them have these."""

    server: BrokerNumber
    owners: tuple[Owner, ...]


@record
class Merged:
    """Server → home: what you follow here, these servers own; follow it there."""

    home: BrokerNumber
    owners: tuple[Owner, ...]


@record
class Periodic:
    """Server → proxies, and on to the other servers: what it is asked for, and what it knows.

    Attributes:
        number: a later one has a higher one, within an incarnation of the server.
        topics: that somebody has put or followed here, and that are not another server's now.
        known: how far positions were given, by it and by others, each time in this topic.
    """

    server: BrokerNumber
    incarnation: int
    number: int
    topics: tuple[int, ...]
    known: tuple[Elsewhere, ...]


@record
class Carry:
    """Server → server, over a proxy: publications of a topic that is to be the other's.

    Attributes:
        released: what is up to here is not sent; what begins further on follows something else.
        run: its sequences are positions; who published them stands in its origins.
    """

    server: BrokerNumber
    giver: BrokerNumber
    topic: int
    released: int
    run: PublicationRun


class CarriedPart(NamedTuple):
    """Positions that one server has given in a topic.

    Attributes:
        released: nobody who follows the topic at the giver needs what is up to here.
        last: the last one.
        lost: of what is behind `released`, what is not kept any more.
    """

    part: BrokerNumber
    released: int
    last: int
    lost: tuple[LostRun, ...]


class PutThrough(NamedTuple):
    """How far a source has put to a topic."""

    source: SourceId
    through: int


class CarriedFollower(NamedTuple):
    """A home that follows a topic.

    Attributes:
        done: per part, up to where it needs nothing.
    """

    home: BrokerNumber
    done: tuple[Elsewhere, ...]


@record
class Transfer:
    """Server → server, over a proxy: all that I have of a topic, beside what it carries; own it.

    Attributes:
        generation: in which the other one owns it; 0: no arbiter has said so (`causal`).
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
    """Server → giver, over a proxy: that is on disk, and the topic mine.

    Attributes:
        owner: who has it; another one than the server where that has given it away itself.
    """

    server: BrokerNumber
    giver: BrokerNumber
    topic: int
    owner: BrokerNumber


@record
class Decommissioned:
    """Brokers that the operator has decommissioned, each with the authority's signature.

    Each broker passes it on to its neighbours; a broker that is among them ends.
    """

    decommissions: tuple[Signed, ...]


Request = Put | Follow | Get | Locate | Claim
Answer = Stored | Following | Messages | Lost | Answered | Located | Merged


Between = Carry | Transfer
"""What one server tells another one, which answers with Transferred."""


def _halves(message: Put) -> Sequence[Put]:
    """The second half is to be appended behind the first one only."""
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
    of_run(102, Messages, lambda message: (message.home, message.topic)),
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
    of_run(129, Carry, lambda message: (message.server, message.giver, message.topic)),
    MessageKind(130, Transfer),
    MessageKind(131, Transferred),
    MessageKind(132, Decommissioned),
    MessageKind(133, Move),
    MessageKind(134, Give),
)
"""With the numbers they have on the wire; 96 to 111 are multi_proxy's, 117, and 128 to 134."""
