"""The last examined states of streams, so that each state is examined once."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.routes import Cell
from brokerd.protocols.gryphon.stream import Stream


@dataclass(slots=True)
class _State:
    """The last examined state of one stream at one broker.

    Attributes:
        numbers: the ticks and counts of the stream.
        facts: the facts outside of the broker that its examination depends on.
        starts: of the known ranges.
        ends: of the known ranges.
        runs: the retained runs; holding the objects proves that equal ones are the same.
        done: acks of the cells below.
    """

    numbers: tuple[int | None, ...] = ()
    facts: Hashable = None
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    runs: list[PublicationRun] = field(default_factory=list)
    done: dict[Cell, int] = field(default_factory=dict)


class StreamStates:
    """The last examined states of all streams at all brokers."""

    def __init__(self) -> None:
        self._states: dict[tuple[BrokerNumber, StreamId], _State] = {}

    def take(self, broker: BrokerNumber, stream: Stream, facts: Hashable) -> bool:
        """Record the state of a stream; return True if the stream must be examined.

        A stream with requests is always examined: windows bound their answers.
        """
        key = broker, stream.identity
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State()
        knowledge = stream.knowledge
        known, events = knowledge.known, knowledge.events
        numbers = (
            knowledge.final,
            stream.subend.done,
            stream.held,
            events.events,
            events.payload_bytes,
        )
        if (
            state.numbers == numbers
            and state.facts == facts
            and state.ends == known._ends
            and state.starts == known._starts
            and state.runs == events._runs
            and state.done == stream._done
        ):
            return bool(stream.curious) or bool(stream.requested)
        state.numbers, state.facts, state.done = numbers, facts, {**stream._done}
        state.starts, state.ends, state.runs = [*known._starts], [*known._ends], [*events._runs]
        return True


def gryphon_of(core: object) -> Gryphon:
    """Return a core of gryphon, or the one that a core of another protocol has."""
    found = getattr(core, "gryphon", core)
    assert isinstance(found, Gryphon), f"{core} has no core of gryphon"
    return found
