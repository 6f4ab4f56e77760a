"""What homes and storages say to each other, over whatever ways there are.

Each message goes to one broker by its address, and those on the way only pass it on. Any may be
lost, come twice, or be overtaken; whoever asks asks again until there is an answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.message_kind import MessageKind, of_run
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.model.record import record
from brokerd.protocols.ges.router import Target

Sequences = tuple[tuple[SourceId, int], ...]
"""Per source, the last one of its publications."""


class Key(NamedTuple):
    """A subscription, wherever its client is."""

    client: ClientId
    number: int


@record
class Wish:
    """What a home's client has asked for of a subscription.

    Attributes:
        key: number 0: all of a client.
        generation: of the client's stay; goes up whenever it goes to another broker.
        predicate: None: it is over.
        had: the last epoch that its client has had; None if it does not say.
        claims: it is begun only if it is known; else it is known that its client is here now.
        heir: the storage that it goes on at: soon, or with no predicate from now on.
        until: with an heir in another tree, the last epoch that is given here.
        before: it is about to go on here, and that storage has what is before; or this one itself:
            none has it any more.
        had_of: what comes from there, behind all that is behind `had` anyhow.
        looks: of no subscription: how far has the storage come, which is a root?
    """

    key: Key
    generation: int
    predicate: Predicate | None
    had: int | None = None
    claims: bool = False
    heir: BrokerNumber | None = None
    until: int | None = None
    before: BrokerNumber | None = None
    had_of: Sequences | None = None
    looks: bool = False


@record
class Change:
    """Home → storage: what clients here ask for, and what is over.

    Attributes:
        incarnation, number: of the home, and of this; the next one follows the answer only.
        wishes: in the order in which they were made.
        stores: a finer storage says so of its unit, to its parent; keys are of no client.

    Paper: [GES] §4 (profile changes).
    """

    target: Target
    hops: int
    home: BrokerNumber
    incarnation: int
    number: int
    wishes: tuple[Wish, ...]
    stores: bool = False


class Begun(NamedTuple):
    """What has become of a wish.

    Attributes:
        after: a subscription begins behind this epoch; None: it is over, or its client has gone
            elsewhere since, or it goes on at its heir.
        heir: the storage that it goes on at, or is about to.
        until, before: as was wished.
        had_of: what comes from `before`, or has; or how far a storage has come that was looked at,
            `after` its last epoch.
        is_gone: its client has been heard of at another broker since.
    """

    key: Key
    after: int | None
    heir: BrokerNumber | None = None
    until: int | None = None
    before: BrokerNumber | None = None
    had_of: Sequences = ()
    is_gone: bool = False


@record
class Changed:
    """Storage → home: a Change is on disk.

    Paper: [GES] §4 (notification of a profile change's epoch).
    """

    target: Target
    hops: int
    storage: BrokerNumber
    incarnation: int
    number: int
    begun: tuple[Begun, ...]
    stores: bool = False


@record
class Store:
    """Home → storage: publications of a client here."""

    target: Target
    hops: int
    home: BrokerNumber
    run: PublicationRun


@record
class Stored:
    """Storage → home: a source's publications are on disk up to a number.

    Paper: [GES] §4 (the root stores what is published in its unit).
    """

    target: Target
    hops: int
    storage: BrokerNumber
    source: SourceId
    through: int


@record
class Fetch:
    """Home or storage → storage: what is there for this broker behind an epoch?

    Attributes:
        follower: who asks.
        incarnation, number: of the follower, and of this.
        most: publications in the answer.
        done: receipts: all of these are done with what is up to `through`.
        stores: a storage asks, which has what is up to `through` on its own disk.

    Paper: [GES] §4 (receipts; negative acknowledgements).
    """

    target: Target
    hops: int
    follower: BrokerNumber
    incarnation: int
    number: int
    after: int
    most: int
    through: int
    done: tuple[tuple[Key, int], ...]
    stores: bool = False


@record
class Events:
    """Storage → follower: all that is there for it behind an epoch, up to the end of the run.

    Attributes:
        after: the epoch.
    """

    target: Target
    hops: int
    storage: BrokerNumber
    incarnation: int
    number: int
    after: int
    run: PublicationRun
    stores: bool = False


@record
class Fetched:
    """Storage → follower: a Fetch is answered; nothing more is for it between two epochs.

    Attributes:
        after: what was said last ends there; who has not got so far has missed some of it.
        through: the later epoch.
    """

    target: Target
    hops: int
    storage: BrokerNumber
    incarnation: int
    number: int
    after: int
    through: int
    stores: bool = False


Carried = Change | Changed | Store | Stored | Fetch | Events | Fetched


def onward(message: Any, target: Target) -> Any:
    """The same message, as it is told to the next broker on its way."""
    return replace(message, target=target, hops=message.hops + 1)


def _beside_store(message: Store) -> object:
    return message.target, message.hops, message.home


def _halves(message: Events) -> Sequence[Events]:
    """The second half is what follows the first one."""
    run = message.run
    half = len(run) // 2
    if not half:
        return ()
    first, second = run.select(range(half)), run.select(range(half, len(run)))
    return replace(message, run=first), replace(message, run=second, after=first.last)


KINDS: Final = (
    MessageKind(118, Change),
    MessageKind(119, Changed),
    of_run(120, Store, _beside_store),
    MessageKind(121, Stored),
    MessageKind(122, Fetch),
    MessageKind(123, Events, None, _halves),
    MessageKind(124, Fetched),
)
"""With the numbers they have on the wire; 118 to 127 are ges_reliable's."""
