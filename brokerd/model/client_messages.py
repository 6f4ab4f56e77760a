"""Messages between clients and their broker: one set for all delivery protocols.

A client first opens a session (Hello), then sends Connect; all other messages follow. Within a
session messages keep their order.
"""

from typing import ClassVar, Final, Literal

from brokerd.model.identity import PartitionId, SourceId, StreamId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record

MOST_INCARNATION: Final = 1 << 48
MOST_PUBEND: Final = 1 << 20
"""The highest incarnation that a client may state; sources leave room above it."""

SubscriptionState = Literal["pending", "started"]


@record
class Connect:
    """Client → broker, first message of each session.

    Attributes:
        publishes: True if the client will publish.
        incarnation: incarnation of the client; increases when the client attaches to another
            broker. A new source gets at least this incarnation.
        next_sequence: the lowest sequence number that the client may still send (the oldest
            unacknowledged number, or the next new number).
        highest_sequence: the highest number sent so far; 0 before the first. Determines the start
            cut of subscriptions that are confirmed before the resubmission arrives. A broker with
            more of the source has received it from a process with a later state.
        resume: per started subscription of this client, the position reached in each stream.
        source: the source that the client continues to publish as; None for a publisher that starts
            counting, which gets a source that has never been used.
        exact_incarnation: True if the broker must refuse the client rather than assign an
            incarnation other than `incarnation`.
        instance: random identity of the client process. A request that is repeated because its
            answer was lost gets the same source; empty for a client that repeats no request.
        pubend: the pubend that the publisher must be at; None: the broker chooses.
    """

    publishes: bool
    incarnation: int
    next_sequence: int
    highest_sequence: int
    resume: tuple[tuple[int, tuple[tuple[StreamId, int], ...]], ...]
    source: SourceId | None = None
    exact_incarnation: bool = False
    instance: bytes = b""
    pubend: int | None = None


@record
class Connected:
    """Broker → client: the answer to Connect.

    `source` is None for a client that only subscribes.
    """

    source: SourceId | None
    broker_incarnation: int


@record
class Publish:
    """Client → broker: publications, in order; each session starts with the oldest unconfirmed."""

    run: PublicationRun


@record
class PublishAcknowledged:
    """Broker → client: all publications sent on this session in [first, last] are acknowledged.

    The protocol defines the promise: one confirms publications end to end, another confirms that
    they were handed on.
    """

    first: int
    last: int


@record
class Subscribe:
    """Client → broker: start subscription `number`; a repeated pair changes nothing."""

    number: int
    predicate: Predicate


@record
class Subscribed:
    """Broker → client: the state of a subscription; sent on Subscribe and when it starts.

    Attributes:
        begins_after: per stream, the position that counts as received from the start, for a client
            that resumes by positions and has received nothing of the stream yet, or that receives
            several streams in one order. Empty for other clients.
        path_age_ns: 0 if the start is exact: every broker has the subscription that the protocol
            requires to have it. Else brokers with a younger path to this broker may lack it.
    """

    number: int
    state: SubscriptionState
    begins_after: tuple[tuple[StreamId, int], ...] = ()
    path_age_ns: int = 0


@record
class Unsubscribe:
    """Client → broker: end subscription `number`.

    No delivery for the subscription follows the answer. A repeated request, or an unknown number,
    changes nothing.
    """

    number: int


@record
class Unsubscribed:
    """Broker → client: the subscription has ended, and a restart here does not restore it.

    The broker has not waited for other brokers. `number` 0 answers Detach.
    """

    number: int


@record
class Detach:
    """Client → broker: end all subscriptions of the client; its publications are acknowledged.

    Attributes:
        drain: first deliver the publications that have arrived for the subscriptions requested on
            this session; the answer follows the last acknowledgement. No new publications are
            delivered for these subscriptions, and nothing for the others.
        done_through: the sequence number through which publications were acknowledged to the
            client, if not by the broker's present incarnation; 0 for none.
        through: with `drain`, per stream, the position behind which the client's subscriptions
            begin at its next broker; a broker that has not delivered as much waits for that.
    """

    drain: bool
    done_through: int
    through: tuple[tuple[StreamId, int], ...] = ()


@record
class Deliveries:
    """Broker → client: publications that match the named subscriptions of this client.

    One copy for all subscriptions. The client answers with Acknowledge once the application has
    received the publications. Within a session the positions in a stream increase; the client
    relies on the order.
    """

    redelivered: ClassVar[bool] = False
    """True if the application may have received the publications before its restart."""
    run: PublicationRun
    subscriptions: tuple[int, ...]


@record
class Notice:
    """Broker → client: publications that are withheld from one subscription.

    Their source was behind a partition when the subscription started, so the subscription's stream
    of that source has not begun yet. Answered with Acknowledge, like Deliveries, and in order with
    Deliveries.

    Attributes:
        ranges: (first, last) of stretches of consecutive sequence numbers, increasing. All matching
            publications in the ranges are withheld, including publications that never arrived here.
        partition: the partition that is the cause.
    """

    subscription: int
    source: SourceId
    ranges: tuple[tuple[int, int], ...]
    partition: PartitionId


@record
class Silence:
    """Broker → client: nothing in [first, last] of a stream matches these subscriptions.

    Answered with Acknowledge, and in order with Deliveries; the application is not notified.
    """

    subscriptions: tuple[int, ...]
    stream: StreamId
    first: int
    last: int


@record
class Gap:
    """Broker → client: matching publications in [first, last] of a stream will never be delivered.

    Answered with Acknowledge, and in order with Deliveries; the application is notified.

    Attributes:
        reason: a reason that the protocol declares; or "lost state", if a broker lost durable state
            and its operator accepted that.
        origins: (source, first, last) of publications that include the missing ones; empty if the
            stream is a source.
    """

    subscriptions: tuple[int, ...]
    stream: StreamId
    first: int
    last: int
    reason: str
    origins: tuple[tuple[SourceId, int, int], ...] = ()


@record
class Acknowledge:
    """Client → broker: the deliveries of this session from a stream in [first, last] are safe."""

    stream: StreamId
    first: int
    last: int


@record
class Consume:
    """Client → broker: as Subscribe, of a subscription with positions kept by the broker.

    The client keeps nothing: positions count as received once committed. Acknowledgements only make
    room for more deliveries. A protocol without this service refuses.

    Attributes:
        uncommitted: largest number of publications given to the application before it commits.
    """

    number: int
    predicate: Predicate
    uncommitted: int


@record
class Consuming:
    """Broker → client, before each "started" of a Consume.

    The positions left by an earlier process. Behind the committed positions the application may
    have received the first few publications of each stream: `uncommitted` at most, and none behind
    the positions in `given`; none of a stream that is not named there.

    Attributes:
        generation: generation of the client's attachment to this broker; increases when the client
            moves.
    """

    number: int
    generation: int
    uncommitted: int
    delivered: tuple[tuple[StreamId, int], ...]


@record
class CommitConsumed:
    """Client → broker: the application has processed a Consume up to these positions.

    A repeated or lower commit changes nothing and is answered.

    Attributes:
        request: increases; an answer also answers all earlier requests.
    """

    number: int
    request: int
    positions: tuple[tuple[StreamId, int], ...]


@record
class ConsumedCommitted:
    """Broker → client: the commit is durable.

    Its publications are not delivered to this client again.
    """

    number: int
    request: int


@record
class Refused:
    """Broker → client: a request was not carried out.

    Attributes:
        request: the refused message's type name in lower case, e.g. "subscribe".
        number: the subscription number if the request has one, else 0.
        reason: text for people.
        retry: True if the same request may succeed later (the broker is recovering).
    """

    request: str
    number: int
    reason: str
    retry: bool


@record
class Redirect:
    """Broker → client: a request to move to another broker, at one of these addresses.

    A client that cannot or need not move stays, and does not answer.

    Attributes:
        addresses: "host:port" as configured between brokers, the best first.
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
"""Items that a subscriber receives, in order within a stream.

Publications, or their replacements.
"""
