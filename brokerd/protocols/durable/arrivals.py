"""Subscriptions that have come from another broker, until nobody else has or holds anything.

First every pubend is to hold what the subscription lacks; then all other brokers are to let go of
it, whichever of them has it; and when this broker has released no more than the subscription has,
whatever it said before, nothing needs to be held. All of that is asked for until it is answered,
also after a restart.

Paper: [DS03] §1 (item 5, reconnect anywhere; how is not told there).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.protocols.durable.lanes import DurableSubscription
from brokerd.protocols.durable.messages import Held, Hold, LetGo, Letter, Moved
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.interface import Change, Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability

ARRIVING: Final = "arriving"
"""Per subscription of which others have not let go yet, or something is held: its generation."""

ARRIVALS: Final = "arrivals"

Whose = tuple[ClientId, int]
"""A subscription, wherever it is."""


@dataclass(slots=True, eq=False)
class Holder:
    """What one broker's pubends hold for one subscription.

    Attributes:
        asked_ns: when it was asked first without an answer since.
        until_ns: so long it is surely held.
        last: what was there when it was held first; who has that needs nothing held.
        is_over: it was told that it need hold nothing.
    """

    asked_ns: Instant | None = None
    until_ns: Instant = 0
    last: dict[StreamId, int] | None = None
    is_over: bool = False

    def take(self, last: Sequence[tuple[StreamId, int]], lease_ns: Instant) -> None:
        """It is held, for a lease from when that was asked for first."""
        if self.last is None:
            self.last = dict(last)
        if self.asked_ns is not None:
            self.until_ns, self.asked_ns = self.asked_ns + lease_ns, None


@dataclass(slots=True, eq=False)
class Arrival:
    """One subscription that has come.

    Attributes:
        local: None once it has ended here.
        holders: the brokers whose pubends hold something for it, or may.
        untold: those that have not said that they have let go of it.
        stay: its number among all that have come since this broker began.
    """

    generation: int
    local: DurableSubscription | None
    holders: dict[BrokerNumber, Holder]
    untold: dict[BrokerNumber, None]
    stay: int
    wait_ns: int = field(default=0)


class Arrivals:
    """All of one broker.

    Args:
        all_streams: of all pubends; whoever has pubends may have had subscribers.
        tell: has something passed on to another broker.
        find: a subscription that is here.
        let_go: ends one that is elsewhere now, of that generation; then does something.
        cut: ends the session of a client that is elsewhere now, of that generation.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: DurableParameters,
        all_streams: Sequence[StreamId],
        tell: Callable[[Letter], None],
        find: Callable[[Whose], DurableSubscription | None],
        let_go: Callable[[DurableSubscription, int, Callable[[], None]], None],
        cut: Callable[[ClientId, int], None],
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._streams: dict[BrokerNumber, list[StreamId]] = {}
        for stream in all_streams:
            self._streams.setdefault(stream.broker, []).append(stream)
        self._tell = tell
        self._find = find
        self._let_go = let_go
        self._cut = cut
        self._incarnation = 0
        self._arrivals: dict[Whose, Arrival] = {}
        self._unbegun: dict[Whose, None] = {}
        self._stays = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._arrivals)

    def takers(self) -> dict[type, Callable[[Any], None]]:
        """Who takes what other brokers say."""
        return {Held: self.on_held, Moved: self.on_moved, LetGo: self.on_let_go}

    # ------------------------------------------------------------ what happens here

    def row(self, local: DurableSubscription) -> Change:
        """What stands on disk until others have let go of it, and nothing is held for it.

        The stay begins when it is there.
        """
        whose = local.client, local.number
        self._unbegun[whose] = None
        return Change(ARRIVING, _row_key(whose), local.generation)

    def begin(self, local: DurableSubscription, *, lacks: bool) -> None:
        """A subscription is here, with its row on disk, and may be elsewhere.

        Args:
            lacks: this broker may have released what the subscription has not acknowledged.
        """
        self._begin((local.client, local.number), local.generation, local, lacks=lacks)

    def start(self, incarnation: int) -> None:
        """This broker begins; what was asked before that is asked anew, if it still matters."""
        self._incarnation = incarnation

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Ask anew for all that an earlier incarnation had asked for."""
        for key, generation in recovered.get(ARRIVING, {}).items():
            client, _, number = key.rpartition("/")
            whose = client, int(number)
            self._begin(whose, generation, self._find(whose), lacks=True)

    def ended(self, local: DurableSubscription) -> None:
        """A subscription has ended here: nothing is held for it any more."""
        whose = local.client, local.number
        arrival = self._arrivals.get(whose)
        if arrival is not None and arrival.local is local:
            arrival.local, arrival.wait_ns = None, 0
            self._go_on(whose, arrival)

    def progressed(self) -> None:
        """Subscriptions have acknowledged more, and that is on disk."""
        for whose, arrival in list(self._arrivals.items()):
            for broker, holder in list(arrival.holders.items()):
                if not holder.is_over and self._is_over(arrival, holder):
                    arrival.wait_ns = 0
                    self._have_held(whose, arrival, broker, holder)
            self._settle(whose, arrival)

    def due(self, whose: Whose) -> None:
        """Ask again for what was not answered, and have held what still has to be."""
        self._go_on(whose, self._arrivals[whose])

    def drop(self, broker: BrokerNumber) -> None:
        """A broker is gone for good: it has nothing, and holds nothing."""
        del self._streams[broker]
        for whose, arrival in list(self._arrivals.items()):
            arrival.holders.pop(broker, None)
            arrival.untold.pop(broker, None)
            self._go_on(whose, arrival)

    def unheld(self, without: BrokerNumber) -> int:
        """Of how many that have come something may be lost, whatever one of the brokers holds."""
        return sum(not self._is_held(arrival, without) for arrival in self._arrivals.values())

    # ------------------------------------------------------------ what others say

    def on_held(self, message: Held) -> None:
        """A broker's pubends hold what was asked for, or nothing any more."""
        if message.asked_in != self._incarnation:
            return  # what an earlier incarnation had held, it may have let go of since
        whose, arrival = self._answered(message)
        if arrival is None or message.stay != arrival.stay:
            return
        asked = arrival.holders.get(message.at)
        if asked is None:
            return
        was_held = self._is_held(arrival)
        if message.last:
            asked.take(message.last, self._parameters.hold_lease_ns)
        elif self._is_over(arrival, asked):
            del arrival.holders[message.at]
        if self._is_held(arrival) and not was_held:
            self._announce(whose, arrival)
        self._settle(whose, arrival)

    def on_let_go(self, message: LetGo) -> None:
        """A broker has let go of a subscription, or never had it."""
        whose, arrival = self._answered(message)
        if arrival is not None:
            arrival.untold.pop(message.at, None)
            self._settle(whose, arrival)

    def on_hold(self, message: Hold) -> None:
        """A subscription is elsewhere: who is here for it is cut off, but not forgotten yet."""
        local = self._find((message.client, message.number))
        if local is not None and local.generation < message.generation:
            self._cut(message.client, message.generation)

    def on_moved(self, message: Moved) -> None:
        """Let go of a subscription, if it was not here later; who was earlier is told so."""
        whose = message.client, message.number
        local, arrival = self._find(whose), self._arrivals.get(whose)
        if local is not None and local.generation > message.generation:
            if arrival is None:
                self._tell(Moved(message.at, self._broker, *whose, local.generation))
            return  # that broker is told so when it may let go
        if arrival is not None:
            if (message.generation, message.at) < (arrival.generation, self._broker):
                return
            # What was asked for here is the other's concern now.
            arrival.local, arrival.wait_ns = None, 0
            arrival.untold.clear()
            self._go_on(whose, arrival)
        answer = LetGo(message.at, self._broker, *whose, message.generation)
        if local is None:
            self._disk.when_written(lambda: self._tell(answer))
        else:
            self._let_go(local, message.generation, lambda: self._tell(answer))

    # ------------------------------------------------------------ inside

    def _begin(
        self, whose: Whose, generation: int, local: DurableSubscription | None, *, lacks: bool
    ) -> None:
        self._unbegun.pop(whose, None)
        lacks = lacks or whose in self._arrivals  # what is held for an earlier stay
        holders = {each: Holder() for each in self._streams} if lacks else {}
        untold = dict.fromkeys(each for each in self._streams if each != self._broker)
        arrival = self._arrivals[whose] = Arrival(generation, local, holders, untold, self._stays)
        self._stays += 1
        self._go_on(whose, arrival)

    def _answered(self, message: Held | LetGo) -> tuple[Whose, Arrival | None]:
        whose = message.client, message.number
        arrival = self._arrivals.get(whose)
        if arrival is None or arrival.generation != message.generation:
            return whose, None
        arrival.wait_ns = 0
        return whose, arrival

    def _go_on(self, whose: Whose, arrival: Arrival) -> None:
        """Ask for what is to be asked for now; and again, until it is answered."""
        is_held = self._is_held(arrival)
        for broker, holder in list(arrival.holders.items()):
            if self._is_over(arrival, holder) or self._is_stale(holder):
                self._have_held(whose, arrival, broker, holder)
        if is_held:
            self._announce(whose, arrival)
        self._settle(whose, arrival)

    def _have_held(
        self, whose: Whose, arrival: Arrival, broker: BrokerNumber, asked: Holder
    ) -> None:
        behind: tuple[tuple[StreamId, int], ...] = ()
        asked.is_over = self._is_over(arrival, asked)
        if not asked.is_over:
            local = arrival.local
            assert local is not None, f"{whose} has ended"
            behind = tuple((each, local.lane(each).committed) for each in self._streams[broker])
        if asked.asked_ns is None:
            asked.asked_ns = self._machine.now_ns
        question = self._incarnation, arrival.stay
        self._tell(Hold(broker, self._broker, *whose, arrival.generation, behind, *question))

    def _announce(self, whose: Whose, arrival: Arrival) -> None:
        """Nothing that the subscription lacks can go: others may let go of it."""
        for broker in arrival.untold:
            self._tell(Moved(broker, self._broker, *whose, arrival.generation))

    def _settle(self, whose: Whose, arrival: Arrival) -> None:
        """Over, where nothing is left; else when to go on."""
        if self._arrivals.get(whose) is not arrival:
            return
        lease_ns = self._parameters.hold_lease_ns
        if not arrival.holders and not arrival.untold:
            del self._arrivals[whose]
            self._deadlines.cancel((ARRIVALS, whose))
            if whose not in self._unbegun:  # else the row is a later stay's
                self._disk.commit((Change(ARRIVING, _row_key(whose), None),), lambda: None)
        elif not arrival.untold and not any(
            self._is_stale(each) or self._is_over(arrival, each)
            for each in arrival.holders.values()
        ):
            self._deadlines.set((ARRIVALS, whose), self._machine.now_ns + lease_ns // 4)
        elif not arrival.wait_ns or (ARRIVALS, whose) not in self._deadlines:
            first_ns = self._parameters.nack_repetition_ns
            limit_ns = min(self._parameters.nack_repetition_limit_ns, lease_ns // 4)
            arrival.wait_ns = min(max(2 * arrival.wait_ns, first_ns), limit_ns)
            self._deadlines.set((ARRIVALS, whose), self._machine.now_ns + arrival.wait_ns)

    def _is_over(self, arrival: Arrival, asked: Holder) -> bool:
        """Whether this broker releases no more than the subscription has, from now on."""
        local, last = arrival.local, asked.last
        if local is None or last is None:
            return local is None
        return all(local.lane(stream).committed >= tick for stream, tick in last.items())

    def _is_stale(self, asked: Holder) -> bool:
        """Whether what is held is to be held for longer."""
        return asked.until_ns - self._machine.now_ns < self._parameters.hold_lease_ns * 4 // 5

    def _is_held(self, arrival: Arrival, without: BrokerNumber | None = None) -> bool:
        """Whether all that the subscription lacks is held, for now; but for one broker's."""
        return all(
            asked.until_ns > self._machine.now_ns or self._is_over(arrival, asked)
            for broker, asked in arrival.holders.items()
            if broker != without
        )


def _row_key(whose: Whose) -> str:
    client, number = whose
    return f"{client}/{number}"
