"""The cost of a publication in the core of a forwarding broker, by run size and matching shape.

`python -m tests.protocols.delta_tree.cost` prints microseconds of `handle()` per publication. Other
load on the machine distorts the results.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from brokerd.model.identity import SourceId, SubscriptionId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Summary,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import (
    Commit,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    Started,
)
from tests.helpers.exchange import blob, decode, topology

SOURCE = SourceId(0, 0, 1)
PAYLOAD_BYTES = 250
EVERY_BLOB = tuple(blob(a=number) for number in range(100))
EVEN = "a in ({})".format(", ".join(str(number) for number in range(0, 100, 2)))
ODD = "a in ({})".format(", ".join(str(number) for number in range(1, 100, 2)))

SHAPES: dict[str, tuple[Sequence[bytes], list[tuple[int, str]]]] = {
    "one content, one subscription": (EVERY_BLOB[:1], [(2, "true")]),
    "100 contents, one subscription": (EVERY_BLOB, [(2, "true")]),
    "100 contents, two homes by turns": (EVERY_BLOB, [(2, EVEN), (3, ODD)]),
    "100 contents, 100 subscriptions": (
        EVERY_BLOB,
        [(2 + number % 2, f"a = {number}") for number in range(100)],
    ),
}


@dataclass(frozen=True)
class Cost:
    """Microseconds per publication, and counts of the core's output."""

    forward_us: float
    duplicate_us: float
    confirm_us: float
    publications: int
    frames_out: int
    left_in_queue: int


def forwarding_broker(subscriptions: list[tuple[int, str]]) -> DeltaTree:
    """Return broker 1 of a star: a source at broker 0, confirmed subscriptions at 2 and 3."""
    tree = PrimaryTree(topology(((0, 1), (1, 2), (1, 3)), delta=1))
    core = DeltaTree(1, tree.neighbourhood(1, 2), DeltaTreeParameters(delta=1), decode)
    core.handle(Started(1, False, {}), 0)
    for peer in (0, 2, 3):
        core.handle(SessionEstablished(peer, peer + 1, 1), 0)
        core.handle(MessageReceived(peer, peer + 1, Summary((), False)), 0)
    for number, (home, predicate) in enumerate(subscriptions):
        subscription = SubscriptionId(home, 1, number)
        copy = SubscriptionCopy(subscription, parse_predicate(predicate), (home, 1), False)
        core.handle(MessageReceived(home, home + 1, copy), 0)
        for peer in (0, 2, 3):
            if peer != home:
                confirmation = SubscriptionConfirmation(subscription, (), (), ())
                effects = core.handle(MessageReceived(peer, peer + 1, confirmation), 0)
                for effect in effects:
                    if isinstance(effect, Commit) and effect.token is not None:
                        core.handle(Persisted(effect.token), 0)
    return core


def frames(blobs: Sequence[bytes], size: int, total: int) -> list[PublicationRun]:
    """Return runs of `size` publications with contents from `blobs` in rotation."""
    found = []
    for first in range(1, total + 1, size):
        contents = [blobs[(first + n) % len(blobs)] for n in range(size)]
        table = tuple(dict.fromkeys(contents))
        places = {content: place for place, content in enumerate(table)}
        found.append(
            PublicationRun(
                SOURCE,
                range(first, first + size),
                table,
                bytes(places[content] for content in contents),
                PAYLOAD_BYTES,
                (memoryview(bytes(PAYLOAD_BYTES * size)),),
            )
        )
    return found


def measure(shape: str, size: int, total: int) -> Cost:
    """Send `total` publications through in runs of `size`, twice, then confirm them."""
    blobs, subscriptions = SHAPES[shape]
    core = forwarding_broker(subscriptions)
    events = [
        MessageReceived(0, 1, PublicationCopy(run, (0, 1))) for run in frames(blobs, size, total)
    ]
    start = perf_counter()
    effects = [effect for event in events for effect in core.handle(event, 0)]
    forwarded = perf_counter()
    for event in events:
        core.handle(event, 0)
    repeated = perf_counter()
    copies = [
        (effect.peer, effect.message.run)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, PublicationCopy)
    ]
    confirmations = [
        MessageReceived(
            peer, int(peer) + 1, PublicationConfirmation(((SOURCE, run.first, run.last),))
        )
        for peer, run in copies
    ]
    confirm = perf_counter()
    for confirmation in confirmations:
        core.handle(confirmation, 0)
    end = perf_counter()
    count = size * len(events)
    return Cost(
        1e6 * (forwarded - start) / count,
        1e6 * (repeated - forwarded) / count,
        1e6 * (end - confirm) / count,
        sum(len(run) for _, run in copies),
        len(copies),
        core.statistics()["queue_publications"],
    )


def main() -> None:
    """Print the table."""
    say = sys.stdout.write
    say(f"{'µs per publication':36} {'run':>5} {'forward':>9} {'duplicate':>9} {'confirm':>9}\n")
    for shape in SHAPES:
        for size, total in ((1, 10_000), (10, 50_000), (1000, 500_000)):
            cost = measure(shape, size, total)
            say(
                f"{shape:36} {size:5} {cost.forward_us:9.3f} {cost.duplicate_us:9.3f}"
                f" {cost.confirm_us:9.3f}\n"
            )


if __name__ == "__main__":
    main()
