"""What clients and their broker say to each other: one set for all delivery protocols.

A client first has a session (Hello), then says Connect; everything else follows. Within a
session messages keep their order.
"""

from typing import ClassVar, Final, Literal

from brokerd.model.identity import PartitionId, SourceId, StreamId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record

MOST_INCARNATION: Final = 1 << 48
"""The highest incarnation that a client may state; sources leave room above it."""

SubscriptionState = Literal["pending", "started"]


@record
class Connect:
    """Client → broker, first message of each session.

    Attributes:
        publishes: whether the client will publish.
        incarnation: of the client; it goes up when the client attaches to another broker. A new
            source gets at least this incarnation.
        next_sequence: the lowest sequence number the client may still send (the oldest one it
            holds unacknowledged, or the next new one).
        highest_sequence: the highest one handed out so far; 0 before the first. It feeds the
            start cut of subscriptions confirmed before the resubmission arrives.
        resume: per subscription number of this client, how far it has come in each stream.
        source: the source that the client continues to publish as; None for a publisher that starts
            counting, which gets a source that has never been used.
        exact_incarnation: whether the client is to be refused rather than given an incarnation
            other than `incarnation`.
        instance: random identity of the client process. A request that is repeated because its
            answer was lost gets the same source; empty for a client that does not repeat any.
    """

    publishes: bool
    incarnation: int
    next_sequence: int
    highest_sequence: int
    resume: tuple[tuple[int, tuple[tuple[StreamId, int], ...]], ...]
    source: SourceId | None = None
    exact_incarnation: bool = False
    instance: bytes = b""


@record
class Connected:
    """Broker → client: the answer to Connect. `source` is None for a client that only reads."""

    source: SourceId | None
    broker_incarnation: int


@record
class Publish:
    """Client → broker: publications, in order, each session starting at the oldest unconfirmed."""

    run: PublicationRun


@record
class PublishAcknowledged:
    """Broker → client: all publications sent on this session in [first, last] are done.

    "Done" is the protocol's own promise: confirmed end to end for one, handed on for another.
    """

    first: int
    last: int


@record
class Subscribe:
    """Client → broker: start subscription `number`; the same pair again changes nothing."""

    number: int
    predicate: Predicate


@record
class Subscribed:
    """Broker → client: the state of a subscription; sent on Subscribe and when it starts.

    Attributes:
        begins_after: per stream, the position that counts as had from the start, for a client
            that resumes by positions of which nothing has come yet, or that gets several streams
            in one order. Others need not be told.
    """

    number: int
    state: SubscriptionState
    begins_after: tuple[tuple[StreamId, int], ...] = ()


@record
class Unsubscribe:
    """Client → broker: subscription `number` is over; nothing comes for it behind the answer.

    The same again, or for a number that the broker does not know, changes nothing.
    """

    number: int


@record
class Unsubscribed:
    """Broker → client: the subscription is over, and a restart here does not bring it back.

    No other broker has been waited for. `number` 0 answers Detach.
    """

    number: int


@record
class Detach:
    """Client → broker: all my subscriptions are over, and what I published is done.

    Attributes:
        drain: first deliver what has come so far for those that the client has asked for on this
            session; the answer follows the last acknowledgement. Nothing new comes for them
            either way, and nothing at all for the others.
        done_through: everything up to this sequence number is done, as the client was told, if
            not by the broker's present incarnation; 0 for nothing.
    """

    drain: bool
    done_through: int


@record
class Deliveries:
    """Broker → client: publications that match the named subscriptions of this client.

    One copy for all of them. The client answers with Acknowledge once the application has them.
    Within a session the positions in a stream go up; the client relies on it.
    """

    redelivered: ClassVar[bool] = False
    """Whether the application may have had them before it was started again."""
    run: PublicationRun
    subscriptions: tuple[int, ...]


@record
class Notice:
    """Broker → client: publications that one subscription does not get.

    Their source lay behind a partition when the subscription started, so the subscription's
    stream of that source has not begun yet. Answered with Acknowledge, like Deliveries, and in
    order with them.

    Attributes:
        ranges: (first, last) of stretches of consecutive sequence numbers, increasing. Whatever
            the subscription matches in them is withheld, also what never came this far.
        partition: the partition that withheld them.
    """

    subscription: int
    source: SourceId
    ranges: tuple[tuple[int, int], ...]
    partition: PartitionId


@record
class Silence:
    """Broker → client: nothing in [first, last] of a stream matches these subscriptions.

    Answered with Acknowledge, and in order with Deliveries; the application is not told.
    """

    subscriptions: tuple[int, ...]
    stream: StreamId
    first: int
    last: int


@record
class Gap:
    """Broker → client: what matches in [first, last] of a stream does not come, now or ever.

    Answered with Acknowledge, and in order with Deliveries; the application is told.

    Attributes:
        reason: one of those that the protocol promises to have; or "lost state", if a broker lost
            durable state and its operator accepted that.
        origins: (source, first, last) of publications among which the missing ones are; empty
            where the stream is a source.
    """

    subscriptions: tuple[int, ...]
    stream: StreamId
    first: int
    last: int
    reason: str
    origins: tuple[tuple[SourceId, int, int], ...] = ()


@record
class Acknowledge:
    """Client → broker: what its session delivered of a stream in [first, last] is safe."""

    stream: StreamId
    first: int
    last: int


@record
class Consume:
    """Client → broker: as Subscribe, of a subscription whose broker keeps how far it has come.

    The client keeps nothing: what counts as had is what it has had committed. Acknowledgements
    make room for more, and no more than that. A protocol that does not offer it refuses.

    Attributes:
        uncommitted: how many publications its application is given at most before it commits.
    """

    number: int
    predicate: Predicate
    uncommitted: int


@record
class Consuming:
    """Broker → client, before each "started" of a Consume: where an earlier process has left it.

    Behind what is committed the application may have been given the first few of each stream:
    `uncommitted` at most, and none behind what `given` says; of a stream not named there, none.

    Attributes:
        generation: of the client's stay at this broker; who goes elsewhere is newer.
    """

    number: int
    generation: int
    uncommitted: int
    given: tuple[tuple[StreamId, int], ...]


@record
class CommitConsumed:
    """Client → broker: the application is done with all of a Consume's up to these positions.

    The same again, or less, changes nothing and is answered.

    Attributes:
        request: goes up; an answer is one to those before it, too.
    """

    number: int
    request: int
    positions: tuple[tuple[StreamId, int], ...]


@record
class ConsumedCommitted:
    """Broker → client: that is on disk, and is not given to this client again."""

    number: int
    request: int


@record
class Refused:
    """Broker → client: a request was not carried out.

    Attributes:
        request: the refused message's type name in lower case, e.g. "subscribe".
        number: the subscription number where one was meant, else 0.
        reason: text for people.
        retry: True when the same request may succeed later (the broker is recovering).
    """

    request: str
    number: int
    reason: str
    retry: bool


@record
class Redirect:
    """Broker → client: another broker would rather have you, at one of these addresses.

    A client that cannot or need not go stays, and does not answer.

    Attributes:
        addresses: "host:port" as brokers know each other by, the best first.
    """

    addresses: tuple[str, ...]


ClientMessage = (
    Connect
    | Connected
    | Publish
    | PublishAcknowledged
    | Subscribe
    | Subscribed
    | Unsubscribe
    | Unsubscribed
    | Detach
    | Deliveries
    | Notice
    | Silence
    | Gap
    | Acknowledge
    | Consume
    | Consuming
    | CommitConsumed
    | ConsumedCommitted
    | Refused
    | Redirect
)

DeliveredItem = Deliveries | Silence | Gap | Notice
"""What a subscriber gets, in order within a stream: publications, or what stands for them."""
