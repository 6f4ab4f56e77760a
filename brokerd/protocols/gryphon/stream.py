"""One stream at one broker: what is known of it, who has asked for what, and who is done.

Paper: [GD02] §2.4, §3.1 (istream and ostreams). Deviates: what a child knows is not kept, because
it follows from what is known here and from its filter; of its ostream curiosity and acks are left.
"""

from collections import deque
from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.gaps import GapParameters
from brokerd.protocols.gryphon.intervals import IntervalSet, Range
from brokerd.protocols.gryphon.knowledge import Knowledge
from brokerd.protocols.gryphon.routes import Cell
from brokerd.protocols.gryphon.subend import Subend
from brokerd.protocols.interface import Instant


class Stream:
    """One stream at one broker.

    Attributes:
        upstream: the cell that it comes from; None at its pubend.
        children: the cells that it goes to.
        via: who of upstream has told of it last, on a session that is still up.
        asked: what upstream was asked for lately.
        curious: per broker that has asked, what of it is unknown here.
        held: nothing behind this tick becomes final, whoever is done; None: no such bound.
        told: per broker, up to where it was told of events on its present session.
        waits_for: per cell, an event that it wants, and by which filters; see FilterTable.changes.
        is_expected: somebody above has asked after its events since `overdue` was asked.
    """

    __slots__ = (
        "_asked_until",
        "_done",
        "_has_subend",
        "_kept",
        "asked",
        "children",
        "curious",
        "held",
        "identity",
        "is_expected",
        "knowledge",
        "subend",
        "told",
        "upstream",
        "via",
        "waits_for",
    )

    def __init__(
        self,
        identity: StreamId,
        upstream: Cell | None,
        children: tuple[Cell, ...],
        parameters: GapParameters,
        *,
        has_subend: bool = True,
    ) -> None:
        self.identity = identity
        self.upstream = upstream
        self.children = children
        self.via: BrokerNumber | None = None
        self.held: int | None = None
        self.knowledge = Knowledge()
        self._has_subend = has_subend
        self._kept = 0
        self.waits_for: dict[Cell, tuple[int, int]] = {}
        self.is_expected = False
        self.subend = Subend(parameters)
        self._done = dict.fromkeys(children, 0)
        self.curious: dict[BrokerNumber, IntervalSet] = {}
        self.told: dict[BrokerNumber, int] = {}
        self.asked = IntervalSet()
        self._asked_until: deque[tuple[int, int, Instant]] = deque()

    # ------------------------------------------------------------ who is done

    def done_by(self, child: Cell) -> int:
        """Up to where everybody in and below a cell is done."""
        return max(self._done[child], self.knowledge.final)

    def done_here(self) -> int:
        """Up to where clients here are done, and what is held behind that may go."""
        done = self.subend.done
        return done if self.held is None else min(done, self.held)

    def note_done(self, child: Cell, through: int) -> bool:
        """Somebody of a cell has said so; whether that is news."""
        if through <= self._done[child]:
            return False
        self._done[child] = through
        return True

    def drop(self, child: Cell) -> None:
        """A cell below is gone for good: nobody waits for it."""
        self.children = tuple(each for each in self.children if each != child)
        self._done.pop(child, None)

    def settle(self, *, skips_silence: bool = False) -> bool:
        """Everything is final with which all are done, here and below; whether that has grown.

        What clients here are not done with stays as they were given it: a copy would be one more.

        Args:
            skips_silence: whether all are done with silence that nobody was told of.
        """
        self.knowledge.condense(self.subend.done)
        done = [*map(self.done_by, self.children)]
        if self._has_subend:
            is_skipping = skips_silence and self.held is None
            subend, knowledge = self.subend, self.knowledge
            done.append(subend.done_with(knowledge) if is_skipping else subend.done)
        if self.held is not None:
            done.append(self.held)
        return self.finish(min(done))

    def finish(self, through: int) -> bool:
        """Everything up to a tick is final."""
        if not self.knowledge.finish(through):
            return False
        self.answered(0, through + 1)
        for peer in list(self.curious):
            self.satisfy(peer, 0, through + 1)
        return True

    @property
    def is_held_up(self) -> bool:
        """Whether events lie behind an unknown tick, without which nobody is done with them."""
        knowledge = self.knowledge
        return knowledge.events.last > knowledge.horizon(knowledge.final)

    def overdue(self) -> int | None:
        """The last of the events that are here since this was asked before.

        None where there are none, or somebody above asks after them.
        """
        events, was_expected = self.knowledge.events, self.is_expected
        last = events.last_up_to(self._kept)
        self._kept, self.is_expected = events.last, False
        return None if was_expected else last

    # ------------------------------------------------------------ curiosity

    def want(self, peer: BrokerNumber, ranges: Sequence[Range]) -> None:
        """A broker has asked for what is unknown here."""
        curious = self.curious.setdefault(peer, IntervalSet())
        for start, end in ranges:
            curious.add(start, end)

    def wanted(self, peer: BrokerNumber, start: int, end: int) -> list[Range]:
        """What a broker has asked for of [start, end)."""
        curious = self.curious.get(peer)
        return curious.within(start, end) if curious is not None else []

    def satisfy(self, peer: BrokerNumber, start: int, end: int) -> None:
        """A broker was told of [start, end), or has forgotten that it asked."""
        curious = self.curious.get(peer)
        if curious is not None:
            curious.remove(start, end)
            if not curious:
                del self.curious[peer]

    def forget(self, peer: BrokerNumber) -> None:
        """A broker has forgotten what it asked for."""
        self.curious.pop(peer, None)

    def ask(self, ranges: Sequence[Range], now_ns: Instant, until_ns: Instant) -> list[Range]:
        """What of these ranges was not asked for lately, and is from now on; nothing of it twice.

        Paper: [GD02] §3.1 (consolidation and forgetting of curiosity).
        """
        self.forget_asked(now_ns)
        fresh: list[Range] = []
        for start, end in ranges:
            for gap in self.asked.gaps(start, end):
                self.asked.add(*gap)
                self._asked_until.append((*gap, until_ns))
                fresh.append(gap)
        return fresh

    def forget_asked(self, now_ns: Instant) -> Instant | None:
        """What was asked for long ago may be asked for again; returns when there is more of it."""
        while self._asked_until and self._asked_until[0][2] <= now_ns:
            start, end, _ = self._asked_until.popleft()
            self.asked.remove(start, end)
        if not self.asked:
            self._asked_until.clear()
        return self._asked_until[0][2] if self._asked_until else None

    def answered(self, start: int, end: int) -> None:
        """What was asked for of [start, end) is known."""
        if self.asked:
            self.asked.remove(start, end)
            if not self.asked:
                self._asked_until.clear()
