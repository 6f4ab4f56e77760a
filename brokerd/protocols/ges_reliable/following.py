"""Storages that a home follows: it fetches, epoch after epoch, what they have for its clients.

What comes is taken if it continues what has come; else it is fetched again. A subscription that
begins behind less than what has come has all of it fetched once more, and whoever had it is not
given it again. What clients are done with is told with the next fetch.

Paper: [GES] §4 (epochs; positive and negative acknowledgements; receipts).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, Peer, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.messages import Events, Fetch, Fetched, Key, Sequences
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscription
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

FETCH: Final = "fetch"
"""Purpose of the deadline at which a storage is asked again."""
RECEIPT: Final = "receipt"
"""Purpose of the deadline at which it is told what clients are done with."""


@dataclass(slots=True, eq=False)
class Followed(OwnSubscription):
    """A subscription of a client here.

    Attributes:
        storage: which one stores for it; None while that is not known.
        generation: of its client's stay here.
        handed: what is up to this epoch was given on for it.
        told: the storage knows that its client is done with what is up to this one.
        brought: how far its client says that it has come, by storage.
        heir: the storage that it is about to go on at.
        until: what is behind this epoch comes from there.
        onward: where it goes on there, with other epochs, and what has come before that.
        had_of: what has come of other trees, up to these numbers.
        settles: who had it before has not answered that it knows.
        earlier: other storages that may know of it.
        ended: once it is over, what is done when no storage knows of it any more.
    """

    storage: BrokerNumber | None = None
    generation: int = 0
    handed: int = 0
    told: int = 0
    heir: BrokerNumber | None = None
    until: int | None = None
    onward: tuple[int, Sequences] | None = None
    had_of: Sequences = ()
    settles: bool = False
    brought: Mapping[BrokerNumber, int] = field(default_factory=dict)
    earlier: list[BrokerNumber] = field(default_factory=list)
    ended: Callable[..., None] | None = None

    @property
    def key(self) -> Key:
        """As storages know it."""
        return Key(self.client, self.number)


@dataclass(slots=True, eq=False)
class Handed:
    """Publications that clients were given; `open` parts of them are not acknowledged yet."""

    following: "FollowedStorage"
    first: int
    count: int
    open: int = 1


@dataclass(slots=True, eq=False)
class FollowedStorage:
    """One storage.

    Attributes:
        locals: the subscriptions here that it stores for.
        after: what is up to this epoch has come.
        handed: what clients are not done with.
        number: of the last fetch.
        valid: of the first one whose answer has all that is for those who have begun.
        is_fetching: the last one is not answered.
        telling: the epoch that it says all these are done with.
        leaving: subscriptions here that go on elsewhere, and what is done then.
    """

    storage: BrokerNumber
    locals: dict[tuple[ClientId, int], Followed] = field(default_factory=dict)
    after: int = 0
    handed: deque[Handed] = field(default_factory=deque)
    number: int = 0
    valid: int = 0
    is_fetching: bool = False
    waited_ns: int = 0
    told_ns: int = 0
    telling: tuple[int, tuple[Followed, ...]] = (0, ())
    leaving: dict[Followed, Callable[[], None]] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """All here are done with what is up to this epoch, of what has come or comes again."""
        return min(self.after, *(each.first - 1 for each in self.handed), self.after)

    def outstanding(self) -> int:
        """Publications that clients are not done with."""
        return sum(each.count for each in self.handed)


class Following:
    """All storages that one home follows.

    Args:
        hand_out: gives a run to all whom a storage stores it for; counts in what it is given.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        carriage: Carriage,
        hand_out: Callable[[PublicationRun, Handed], None],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._carriage = carriage
        self._hand_out = hand_out
        self._incarnation = 0
        self._storages: dict[BrokerNumber, FollowedStorage] = {}

    def start(self, incarnation: int) -> None:
        """This broker begins, and follows nobody."""
        self._incarnation = incarnation

    def begin(self, local: Followed, after: int, *, told: int | None = None) -> None:
        """A subscription begins behind an epoch.

        Args:
            told: its storage knows that its client is done with what is up to this one; None: with
                all that is before.
        """
        assert local.storage is not None, f"{local} is stored nowhere"
        following = self._storages.get(local.storage)
        if following is None:
            following = self._storages[local.storage] = FollowedStorage(local.storage)
        if not following.locals:
            following.after = after
        following.locals[local.client, local.number] = local
        following.after = min(following.after, after)
        local.handed, local.told = after, after if told is None else told
        following.valid = following.number + 1
        self._ask(following)

    def leave(self, local: Followed, then: Callable[[], None]) -> None:
        """A subscription goes on elsewhere: `then` once its client is done with what is before."""
        assert local.storage is not None, f"{local} is stored nowhere"
        following = self._storages[local.storage]
        following.leaving[local] = then
        self._let_leave(following)

    def _let_leave(self, following: FollowedStorage) -> None:
        done = following.done if following.leaving else 0
        for local in [*following.leaving]:
            if local.until is not None and local.until <= done:
                following.leaving.pop(local)()

    def stop(self, local: Followed) -> None:
        """A subscription is over here."""
        if local.storage is None:
            return
        following = self._storages.get(local.storage)
        if following is None or following.locals.pop((local.client, local.number), None) is None:
            return
        following.leaving.pop(local, None)
        done, told = following.telling
        following.telling = done, tuple(each for each in told if each is not local)
        if not following.locals:
            following.is_fetching = False
            following.valid = following.number + 1
            self._deadlines.cancel((FETCH, local.storage))
            self._deadlines.cancel((RECEIPT, local.storage))

    def done(self, handed: Handed) -> None:
        """Clients are done with what they were given."""
        following = handed.following
        following.handed.remove(handed)
        self._let_leave(following)
        if not following.locals:
            return
        if not following.is_fetching:
            self._fetch(following)
        elif (RECEIPT, following.storage) not in self._deadlines:
            due_ns = following.told_ns + self._parameters.receipt_interval_ns
            self._deadlines.set((RECEIPT, following.storage), max(due_ns, self._machine.now_ns))

    def has_come(self, storage: BrokerNumber, epoch: int) -> bool:
        """Whether all up to an epoch has come of a storage that is followed."""
        following = self._storages.get(storage)
        return following is None or not following.locals or epoch <= following.after

    def undone(self) -> int:
        """Publications that have come with which clients are not done."""
        return sum(each.outstanding() for each in self._storages.values())

    def untold(self) -> int:
        """How many storages do not know all that clients here are done with."""
        return sum(bool(self._untold(each)) for each in self._storages.values())

    def due(self, storage: BrokerNumber) -> None:
        """A storage has not answered for a while."""
        following = self._storages[storage]
        if following.is_fetching:
            waited_ns = min(2 * following.waited_ns, self._parameters.retry_limit_ns)
            self._ask(following, waited_ns)

    def receipt_due(self, storage: BrokerNumber) -> None:
        """A storage is to be told what clients are done with."""
        following = self._storages[storage]
        if following.locals and self._untold(following):
            self._ask(following)

    # ------------------------------------------------------------ fetching

    def _fetch(self, following: FollowedStorage) -> None:
        """Ask for what follows, where clients are not too far behind."""
        if following.locals and following.outstanding() < self._parameters.home_window:
            self._ask(following)

    def _untold(self, following: FollowedStorage) -> tuple[Followed, ...]:
        done = following.done
        return tuple(
            each
            for each in following.locals.values()
            if each.told < done and (each.until is None or done <= each.until)
        )

    def _ask(self, following: FollowedStorage, waited_ns: int = 0) -> None:
        now_ns, parameters = self._machine.now_ns, self._parameters
        untold: tuple[Followed, ...] = ()
        if now_ns >= following.told_ns + parameters.receipt_interval_ns:
            untold = self._untold(following)
        if untold:
            following.told_ns = now_ns
            self._deadlines.cancel((RECEIPT, following.storage))
        following.telling = following.done, untold
        following.number += 1
        following.is_fetching = True
        following.waited_ns = waited_ns or parameters.timeout_ns
        due_ns = now_ns + following.waited_ns + parameters.fetch_wait_ns
        self._deadlines.set((FETCH, following.storage), due_ns)
        room = max(1, parameters.home_window - following.outstanding())
        self._carriage.send(
            Fetch(
                self._carriage.to(following.storage),
                0,
                self._broker,
                self._incarnation,
                following.number,
                following.after,
                min(room, parameters.fetch_publications),
                following.done,
                tuple((Key(each.client, each.number), each.generation) for each in untold),
            )
        )

    def _is_current(self, message: Events | Fetched) -> FollowedStorage | None:
        following = self._storages.get(message.storage)
        if following is None or not following.locals:
            return None
        if message.incarnation != self._incarnation or message.number < following.valid:
            return None
        return following

    def on_events(self, peer: Peer, message: Events) -> None:
        """Part of an answer; what has come before, or lies behind a hole, is let go."""
        following = self._is_current(message)
        if following is None or message.after > following.after:
            return
        rest = message.run.after(following.after)
        if rest is None:
            return
        handed = Handed(following, rest.first, len(rest))
        following.handed.append(handed)
        self._hand_out(rest, handed)
        self._reach(following, rest.last)
        handed.open -= 1
        if not handed.open:
            following.handed.remove(handed)
            self._let_leave(following)

    def on_fetched(self, peer: Peer, message: Fetched) -> None:
        """A fetch is answered; what is missing of it is asked for again."""
        following = self._is_current(message)
        if following is None:
            return
        is_whole = message.after <= following.after
        if is_whole:
            self._reach(following, message.through)
            self._let_leave(following)
        if message.number != following.number or not following.locals:
            return
        done, told = following.telling
        for local in told:
            local.told = max(local.told, done)
        following.telling = 0, ()
        if not is_whole:
            return  # the rest may be on its way still; or else it is asked for again, later
        following.is_fetching = False
        self._deadlines.cancel((FETCH, following.storage))
        self._fetch(following)

    @staticmethod
    def _reach(following: FollowedStorage, epoch: int) -> None:
        following.after = max(following.after, epoch)
        for local in following.locals.values():
            local.handed = max(local.handed, epoch)


def stream_of(storage: BrokerNumber) -> StreamId:
    """The stream of a storage's epochs."""
    return StreamId(storage, 0, 0)
