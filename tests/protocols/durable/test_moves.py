"""Stories of subscribers that move to another broker.

Paper: [DS03] §1 (item 5, reconnect anywhere).
"""

import pytest

from brokerd.model.client_messages import (
    Connect,
    Gap,
    Refused,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import StreamId
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.durable.messages import (
    Fetch,
    Fetched,
    Held,
    Hold,
    LetGo,
    Moved,
    NothingFetched,
)
from brokerd.protocols.durable.state import ARRIVING
from brokerd.protocols.interface import (
    CloseSession,
    Commit,
    Effect,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
)
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.sessions import transmit
from tests.helpers.durable_cores import handle, relay
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.stream_runs import STREAM, run_at

MUTANTS = bugs_of("durable")


class MovingStory(DurableStory):
    """A durable story with a mover at s1 that misses events, and another subscriber at s2."""

    def __init__(self, **parameters) -> None:
        super().__init__(**parameters)
        self.mover, self.other = self.subscriber("s1"), self.subscriber("s2")
        self.sent = self.publish(3)

    def miss(self, count: int = 10) -> None:
        """Publish `count` events while the mover is absent; the other subscriber acknowledges."""
        link = self.away(self.mover)
        self.sent += self.publish(count)
        self.cluster.run_for(3)
        link.heal()

    def miss_without_end(self, count: int = 10) -> None:
        """Publish `count` events after the mover's link broke for good."""
        self.cluster.link(self.mover.client.name, "s1").cut()
        self.sent += self.publish(count)

    def move(self, to: str = "s2") -> None:
        """Reattach the mover to another broker."""
        self.cluster.transfers.reattach(self.mover.client.name, to)

    def take_slowly(self) -> None:
        """Make the mover slow, so that a catch-up takes long."""
        self.mover.client.take_after_ns = 300_000_000

    @property
    def is_whole(self) -> bool:
        """Return True if both subscribers have received every event once, in order."""
        return self.mover.received == self.other.received == self.sent

    def hosts(self, *brokers: str) -> list[int]:
        """Return the number of subscriptions at every broker."""
        return [self.cluster.broker(each).status().own_subscriptions for each in brokers]

    def nothing_is_left(self) -> bool:
        """Return True if no broker holds events or requests a hold."""
        brokers = ("p1", "b1", "s1", "s2")
        return not any(self.core(each).aftermath() or self.kept(each) for each in brokers)


def test_a_moved_subscriber_receives_missed_events_and_its_old_broker_releases_it() -> None:
    story = MovingStory()
    story.miss()
    story.move()
    story.cluster.run_for(2)
    assert story.hosts("s1", "s2") == [0, 2]
    story.sent += story.publish(3)
    story.settle()
    assert story.is_whole
    assert story.nothing_is_left()
    (fetched,) = story.from_to("s2", "b1", Fetch)
    (missed,) = fetched.ranges
    assert missed[1] - missed[0] > 10, "of what came before it did, nobody here knows for whom"


def test_a_moved_subscriber_is_served_while_its_old_broker_is_down() -> None:
    story = MovingStory()
    story.miss()
    story.cluster.broker("s1").kill()
    story.move()
    story.sent += story.publish(3)
    story.cluster.run_for(5)
    assert story.mover.received == story.sent
    assert story.kept("p1") == 13, "the dead broker has not released it"
    assert story.core("s2").aftermath()
    story.cluster.broker("s1").start()
    story.settle(40)
    assert story.hosts("s1", "s2") == [0, 2]
    assert story.is_whole
    assert story.nothing_is_left()


def test_a_subscriber_that_returns_before_release_stays_at_its_broker() -> None:
    story = MovingStory()
    story.miss()
    upstream = story.cluster.link("p1", "b1").cut()
    story.move("s2")
    story.cluster.run_for(2)
    assert story.hosts("s1", "s2") == [1, 2], "nothing could be held"
    story.move("s1")
    story.cluster.run_for(2)
    upstream.heal()
    story.sent += story.publish(3)
    story.settle(40)
    assert story.hosts("s1", "s2") == [1, 1]
    assert story.is_whole
    assert story.nothing_is_left()


def test_a_subscriber_moves_repeatedly_before_the_first_broker_is_notified() -> None:
    story = MovingStory()
    story.miss()
    for to in ("s2", "b1", "p1", "s2", "b1"):
        story.move(to)
        story.cluster.run_for(0.012)
    story.sent += story.publish(3)
    story.settle(40)
    assert story.hosts("p1", "b1", "s1", "s2") == [0, 1, 0, 1]
    assert story.is_whole
    assert story.nothing_is_left()


def test_a_restarted_new_broker_resumes_its_requests_for_a_moved_subscriber() -> None:
    story = MovingStory()
    story.miss()
    story.take_slowly()
    upstream = story.cluster.link("p1", "b1").cut()
    story.move()
    story.cluster.run_for(1)
    story.cluster.broker("s2").restart()
    story.cluster.run_for(2)
    upstream.heal()
    story.settle(60)
    assert story.hosts("s1", "s2") == [0, 2]
    assert story.is_whole
    assert story.nothing_is_left()


def test_an_end_at_the_new_broker_is_one_at_the_old_one_too() -> None:
    story = MovingStory()
    story.miss()
    story.cluster.broker("s1").kill()
    story.move()
    story.cluster.run_for(2)
    story.cluster.unsubscribe(story.mover.client.name, story.mover.number)
    story.cluster.run_for(2)
    story.cluster.broker("s1").start()
    story.settle(40)
    assert story.hosts("s1", "s2") == [0, 1]
    assert story.nothing_is_left()


def beside_one_who_is_away() -> bool:
    """Return True if a move succeeds while the new broker logs events for an absent subscriber."""
    story = MovingStory()
    beside = story.subscriber("s2")
    link = story.away(beside, "s2")
    story.miss()
    story.move()
    story.cluster.run_for(2)
    link.heal()
    story.settle(20)
    return story.is_whole and beside.received == story.sent[3:]


def asked_again_late(restarts: bool) -> bool:
    """Return True if a pubend keeps missing events that only a hold protects."""
    story = MovingStory(nack_repetition_ns=3_000_000_000)
    story.miss()
    story.lose("p1", "b1", Fetched)
    story.move()
    story.cluster.run_for(0.5)
    assert story.hosts("s1", "s2") == [0, 2]
    if restarts:
        story.cluster.broker("p1").restart()
    story.settle(30)
    return story.is_whole and story.nothing_is_left()


def out_of_reach() -> bool:
    """Return True if no broker releases events while a pubend is unreachable for a hold."""
    story = MovingStory()
    story.miss()
    upstream = story.cluster.link("p1", "b1").cut()
    story.move()
    story.cluster.run_for(4)
    upstream.heal()
    story.settle(60)
    return story.is_whole


def new_broker_is_gone_for(lost_s: float) -> bool:
    """Return True if a subscriber receives every event after a long outage of its new broker."""
    story = MovingStory(nack_repetition_ns=3_000_000_000)
    story.miss()
    story.lose("p1", "b1", Fetched)
    story.move()
    story.cluster.run_for(1)
    assert story.hosts("s1") == [0]
    link = story.cluster.link("b1", "s2").cut()
    story.sent += story.publish(50)
    story.cluster.run_for(lost_s)
    link.heal()
    story.settle(60)
    return story.is_whole and story.nothing_is_left()


def said_after_the_lease() -> bool:
    """Return True if a subscriber whose hold has expired is notified of a loss."""
    lease_ns = 2_000_000_000
    story = MovingStory(nack_repetition_ns=3_000_000_000, hold_lease_ns=lease_ns)
    story.miss()
    story.lose("p1", "b1", Fetched)
    story.move()
    story.cluster.run_for(1)
    assert story.hosts("s1") == [0]
    story.cluster.broker("s2").kill()
    story.cluster.run_for(6)
    story.cluster.broker("s2").start()
    story.cluster.run_for(20)
    gaps = [each.item for each in story.given if type(each.item) is Gap]
    return story.kept("p1") == 0 and bool(gaps)


def from_where_nobody_had_subscribed() -> bool:
    """Return True if a subscriber that started at a freshly restarted broker misses no event."""
    story = MovingStory()
    story.settle()
    story.cluster.broker("b1").restart()
    late = story.cluster.subscribe("b1")
    while not late.started:
        story.cluster.run_for(0.01)
    story.cluster.transfers.reattach(late.client.name, "p1")
    story.cluster.run_for(1)
    sent = story.publish(2)
    story.settle(40)
    return late.received == sent and not story.told(late)


def where_nobody_had_subscribed_before_a_crash() -> bool:
    """Return True if a move to a restarted broker loses no event of an earlier incarnation.

    No subscription there matched the events, and the position of the broker was not durable.
    """
    story = DurableStory(commit_interval_ns=20_000_000_000, ack_interval_ns=10_000_000)
    mover = story.subscriber("s1")
    story.settle()
    away = story.away(mover)
    sent = story.publish(3)
    story.cluster.run_for(1)
    upstream = story.cluster.link("b1", "s2").cut()
    story.cluster.broker("s2").restart()
    away.heal()
    story.cluster.transfers.reattach(mover.client.name, "s2")
    story.cluster.run_for(2)
    upstream.heal()
    sent += story.publish(2)
    story.settle(60)
    return mover.received == sent


def between_connect_and_subscribe() -> bool:
    """Return True if a subscription survives a release just before the client requests it."""
    core, predicate = relay(), parse_predicate("true")
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 1, 1, 0, ())))
    handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    cut = handle(core, MessageReceived(2, 12, Hold(1, 2, "c", 1, 2, (), 1)))
    assert any(type(each) is CloseSession and each.peer == "c" for each in cut)
    handle(core, SessionLost("c", 20, "closed_by_us"))
    handle(core, SessionEstablished("c", 21, 1))
    handle(core, MessageReceived("c", 21, Connect(False, 3, 1, 0, ((1, ((STREAM, 5),)),))))
    told = handle(core, MessageReceived(2, 12, Moved(1, 2, "c", 1, 2)))
    assert Send(2, LetGo(2, 1, "c", 1, 2)) in told
    asked = handle(core, MessageReceived("c", 21, Subscribe(1, predicate)))
    return any(type(each) is Send and each.message == Fetch(STREAM, ((7, 10),)) for each in asked)


def answered_what_a_crashed_one_asked() -> bool:
    """Return True if a hold of an earlier incarnation does not answer a request.

    The hold may have been released since.
    """
    core, predicate = relay(), parse_predicate("true")
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 1, 1, 0, ((1, ((STREAM, 5),)),))))
    asked = handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    assert any(type(each) is Send and type(each.message) is Hold for each in asked)
    told = []
    for incarnation in (2, 1):  # 0 is a request
        for other in (0, 2):
            last = ((StreamId(other, 0, 0), 0), (StreamId(other, 1, 0), 0))
            held = Held(1, other, "c", 1, 1, last, incarnation)
            told.append(handle(core, MessageReceived(other, 10 + other, held)))
    moved = [any(type(each) is Send and type(each.message) is Moved for each in e) for e in told]
    return moved == [False, False, False, True]


def answered_what_an_earlier_stay_asked() -> bool:
    """Return True if a client that arrives twice in one generation is held for again.

    The client unsubscribed in between, so the first hold was released.
    """
    core, predicate = relay(), parse_predicate("true")
    for session in (20, 21):
        handle(core, SessionEstablished("c", session, 1))
        token = ((1, ((STREAM, 5),)),)
        handle(core, MessageReceived("c", session, Connect(False, 2, 1, 0, token)))
        handle(core, MessageReceived("c", session, Subscribe(1, predicate)))
        if session == 20:
            handle(core, MessageReceived("c", session, Unsubscribe(1)))
            handle(core, SessionLost("c", session, "closed_by_peer"))
    told = []
    for stay in (0, 1):
        for other in (0, 2):
            last = ((StreamId(other, 0, 0), 0), (StreamId(other, 1, 0), 0))
            held = Held(1, other, "c", 1, 2, last, 1, stay)
            told.append(handle(core, MessageReceived(other, 10 + other, held)))
    moved = [any(type(each) is Send and type(each.message) is Moved for each in e) for e in told]
    return moved == [False, False, False, True]


def said_when_it_is_on_disk(letter: Hold | Moved, answer: type) -> bool:
    """Return True if a broker answers a peer only after the change is durable."""
    core, predicate = relay(), parse_predicate("true")
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 1, 1, 0, ())))
    handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    effects = core.handle(MessageReceived(2, 12, letter), 0)
    before = [each for each in effects if type(each) is Send and type(each.message) is answer]
    tokens = [each.token for each in effects if type(each) is Commit and each.token is not None]
    told = [effect for token in tokens for effect in handle(core, Persisted(token))]
    after = [each for each in told if type(each) is Send and type(each.message) is answer]
    return (len(before), len(after)) == (0, 1)


def begins_where_nothing_is_known() -> bool:
    """Return True if a start at a restarted broker without streams announces no loss."""
    story = DurableStory()
    other = story.subscriber("s2")
    story.publish(3)
    story.settle()
    story.cluster.broker("s1").restart()
    story.cluster.run_for(2)
    newcomer = story.subscriber("s1")
    story.cluster.transfers.reattach(newcomer.client.name, "s2")
    sent = story.publish(2)
    story.settle(20)
    return newcomer.received == other.received[3:] == sent and not story.told(newcomer)


def ends_while_its_stay_is_written() -> bool:
    """Return True if an end that follows a return at once also ends the earlier attachment."""
    core, predicate = relay(), parse_predicate("true")
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 1, 1, 0, ())))
    handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    handle(core, SessionLost("c", 20, "closed_by_peer"))
    handle(core, SessionEstablished("c", 21, 1))
    handle(core, MessageReceived("c", 21, Connect(False, 3, 1, 0, ((1, ((STREAM, 5),)),))))
    written = core.handle(MessageReceived("c", 21, Subscribe(1, predicate)), 0)
    written += core.handle(MessageReceived("c", 21, Unsubscribe(1)), 0)
    tokens = [each.token for each in written if type(each) is Commit and each.token is not None]
    told = [effect for token in tokens for effect in handle(core, Persisted(token))]
    for other in (0, 2):
        assert Send(other, Moved(other, 1, "c", 1, 3)) in told, f"{other} is not told"
        handle(core, MessageReceived(other, 10 + other, LetGo(1, other, "c", 1, 3)))
    return not any("come" in line for line in core.aftermath())


def ends_after_its_stay_was_told_and_its_broker_crashed() -> bool:
    """Return True if a subscription that returned also ends at the broker that it was at."""
    story = MovingStory()
    client = story.mover.client.name
    upstream = story.cluster.link("p1", "b1").cut()
    story.move("s2")
    story.cluster.run_for(2)
    assert story.hosts("s1", "s2") == [1, 2], "nothing could be held"
    before = len(story.from_to("s1", client, Subscribed))
    story.move("s1")
    story.wait_for(
        lambda: any(
            each.state == "started" for each in story.from_to("s1", client, Subscribed)[before:]
        )
    )
    story.kill("s1", 0)
    story.cluster.run_for(1)
    story.cluster.unsubscribe(client, story.mover.number)
    story.cluster.broker("s1").start()
    story.cluster.run_for(2)
    upstream.heal()
    story.settle(40)
    return story.hosts("s1", "s2") == [0, 1] and story.nothing_is_left()


def comes_back_before_its_first_stay_is_written() -> bool:
    """Return True if a subscription that moved before its first row is on disk returns here.

    The client receives the confirmation only after the change is durable.
    """
    core, predicate = relay(), parse_predicate("true")
    written: list[Effect] = []
    for session, generation in ((20, 2), (21, 4)):
        handle(core, SessionEstablished("c", session, 1))
        token = ((1, ((STREAM, 5),)),)
        handle(core, MessageReceived("c", session, Connect(False, generation, 1, 0, token)))
        written += core.handle(MessageReceived("c", session, Subscribe(1, predicate)), 0)
        if session == 20:
            handle(core, SessionLost("c", session, "closed_by_peer"))
    tokens = [each.token for each in written if type(each) is Commit and each.token is not None]
    told = [handle(core, Persisted(token)) for token in tokens]
    started = [any(map(_is_start, each)) for each in [written, *told]]
    handle(core, MessageReceived(2, 12, Moved(1, 2, "c", 1, 3)))
    return started == [False, False, True] and core.status().own_subscriptions == 1


@pytest.mark.parametrize("later", [(4, 6), (4, 6, 8), (3, 4, 5, 9)])
def test_only_the_last_of_several_stays_starts_when_it_is_on_disk(later: tuple[int, ...]) -> None:
    """The client returns repeatedly before the broker has written the first return."""
    core, predicate = relay(), parse_predicate("true")
    token = ((1, ((STREAM, 5),)),)
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 2, 1, 0, token)))
    handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    written: list[Effect] = []
    for session, generation in enumerate(later, 21):
        handle(core, SessionLost("c", session - 1, "closed_by_peer"))
        handle(core, SessionEstablished("c", session, 1))
        handle(core, MessageReceived("c", session, Connect(False, generation, 1, 0, token)))
        written += core.handle(MessageReceived("c", session, Subscribe(1, predicate)), 0)
    assert not any(map(_is_start, written))
    stays = [
        each.token
        for each in written
        if type(each) is Commit and any(change.table == ARRIVING for change in each.changes)
    ]
    assert len(stays) == len(later)
    told = [any(map(_is_start, handle(core, Persisted(token)))) for token in stays]
    assert told == [False] * (len(later) - 1) + [True]


def _is_start(effect: Effect) -> bool:
    message = effect.message if type(effect) is Send else None
    return type(message) is Subscribed and message.state == "started"


def told_of_an_earlier_stay_while_it_comes_back() -> bool:
    """Return True if a returned subscription survives the late release of its first attachment."""
    core, predicate = relay(), parse_predicate("true")
    token = ((1, ((STREAM, 5),)),)
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 2, 1, 0, token)))
    handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    handle(core, SessionLost("c", 20, "closed_by_peer"))
    handle(core, SessionEstablished("c", 21, 1))
    handle(core, MessageReceived("c", 21, Connect(False, 4, 1, 0, token)))
    written = core.handle(MessageReceived("c", 21, Subscribe(1, predicate)), 0)
    core.handle(MessageReceived(2, 12, Moved(1, 2, "c", 1, 3)), 0)
    asked = []
    for commit in written:
        if type(commit) is Commit and commit.token is not None:
            asked += handle(core, Persisted(commit.token))
    held = {each.message.to: each.message.behind for each in asked if _is_hold(each)}
    return core.status().own_subscriptions == 1 and all(held.get(other) for other in (0, 2))


def over_while_a_later_stay_is_written(generation: int) -> bool:
    """Return True if a restart still requests holds for a later attachment after the first ended.

    The client was elsewhere in between, or ended the first attachment and lost its memory.
    """
    core, predicate = relay(), parse_predicate("true")
    token = ((1, ((STREAM, 5),)),)
    said: list[Effect] = []
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 2, 1, 0, token)))
    handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    if generation == 2:
        handle(core, MessageReceived("c", 20, Unsubscribe(1)))
    handle(core, SessionLost("c", 20, "closed_by_peer"))
    if generation > 2:
        handle(core, MessageReceived(2, 12, Moved(1, 2, "c", 1, 3)))
    handle(core, SessionEstablished("c", 21, 1))
    handle(core, MessageReceived("c", 21, Connect(False, generation, 1, 0, token)))
    said += core.handle(MessageReceived("c", 21, Subscribe(1, predicate)), 0)
    for other in (0, 2):
        for over in (Held(1, other, "c", 1, 2, (), 1), LetGo(1, other, "c", 1, 2)):
            said += handle(core, MessageReceived(other, 10 + other, over))
    changes = [change for each in said if type(each) is Commit for change in each.changes]
    return [change.value for change in changes if change.table == ARRIVING] == [generation]


def first_row_is_written_before_that_of_a_later_stay() -> bool:
    """Return True if a restart still requests holds for a later attachment after the first ended.

    The first attachment ends before its row is on disk. The other brokers have released the
    attachment before the row of the later attachment is on disk.
    """
    core, predicate = relay(), parse_predicate("true")
    token = ((1, ((STREAM, 5),)),)
    commits: list[list[int]] = []
    said: list[Effect] = []
    for session in (20, 21):
        handle(core, SessionEstablished("c", session, 1))
        handle(core, MessageReceived("c", session, Connect(False, 2, 1, 0, token)))
        written = core.handle(MessageReceived("c", session, Subscribe(1, predicate)), 0)
        if session == 20:
            written += core.handle(MessageReceived("c", session, Unsubscribe(1)), 0)
            handle(core, SessionLost("c", session, "closed_by_peer"))
        commits.append([each.token for each in written if type(each) is Commit and each.token])
        said += written
    first, later = commits
    for row in first:
        said += handle(core, Persisted(row))
    for other in (0, 2):
        for over in (Held(1, other, "c", 1, 2, (), 1), LetGo(1, other, "c", 1, 2)):
            said += handle(core, MessageReceived(other, 10 + other, over))
    for row in later:
        said += handle(core, Persisted(row))
    changes = [change for each in said if type(each) is Commit for change in each.changes]
    return [change.value for change in changes if change.table == ARRIVING] == [2, 2]


def _is_hold(effect: Effect) -> bool:
    return type(effect) is Send and type(effect.message) is Hold and effect.message.generation == 4


def test_an_answer_of_one_event_among_much_silence_fits_small_frames() -> None:
    """A request for all ticks of a range may be answered in part by several brokers."""
    ranges = tuple((tick, tick + 2) for tick in range(1, 400, 4))
    answer = Fetched(0, ranges, run_at((41,)))
    (event, _), (silence, _) = transmit(answer, 300)
    assert (type(event), event.ranges, event.run.first) == (Fetched, ((41, 42),), 41)
    assert silence == NothingFetched(STREAM, 0, (*ranges[:10], (42, 43), *ranges[11:]))


STORIES = (
    ("answered-from-silence", beside_one_who_is_away, ()),
    ("arrival-without-matches", beside_one_who_is_away, ()),
    ("hold-dropped", asked_again_late, (False,)),
    ("hold-not-on-disk", asked_again_late, (True,)),
    ("released-before-it-is-held", out_of_reach, ()),
    ("lost-is-silent", said_after_the_lease, ()),
    ("hold-ends-before-its-client", new_broker_is_gone_for, (70,)),
    ("held-for-a-crashed-one", answered_what_a_crashed_one_asked, ()),
    ("held-for-an-earlier-stay", answered_what_an_earlier_stay_asked, ()),
    (
        "held-before-written",
        said_when_it_is_on_disk,
        (Hold(1, 2, "c", 1, 2, ((StreamId(1, 0, 0), 0),), 1), Held),
    ),
    ("end-confirmed-before-written", said_when_it_is_on_disk, (Moved(1, 2, "c", 1, 2), LetGo)),
    ("ended-stay-is-not-announced", ends_while_its_stay_is_written, ()),
    ("released-without-subscriptions-is-volatile", begins_where_nothing_is_known, ()),
    ("released-without-subscriptions-is-volatile", from_where_nobody_had_subscribed, ()),
    ("volatile-ticks-are-acknowledged", where_nobody_had_subscribed_before_a_crash, ()),
    ("token-dropped-between-connect-and-subscribe", between_connect_and_subscribe, ()),
    (
        "stay-is-announced-before-its-row",
        ends_after_its_stay_was_told_and_its_broker_crashed,
        (),
    ),
    ("later-stay-of-a-first-one", comes_back_before_its_first_stay_is_written, ()),
    ("first-row-starts-a-later-stay", comes_back_before_its_first_stay_is_written, ()),
    ("later-stay-dropped", over_while_a_later_stay_is_written, (4,)),
    ("later-stay-dropped", over_while_a_later_stay_is_written, (2,)),
    ("first-row-is-that-of-a-later-stay", first_row_is_written_before_that_of_a_later_stay, ()),
    ("later-stay-released", told_of_an_earlier_stay_while_it_comes_back, ()),
)


@pytest.mark.parametrize("name, told, how", STORIES, ids=[name for name, *_ in STORIES])
def test_a_move_story_passes_without_its_named_bug_and_fails_with_it(name, told, how) -> None:
    assert told(*how)
    with plant([MUTANTS[name]]):
        assert fails(told, *how), f"{name} is not seen"


def test_a_client_that_returns_with_an_earlier_generation_exceeds_the_later_one() -> None:
    """The client's state is an older copy.

    A process with the later state is notified if it returns.
    """
    core, predicate = relay(), parse_predicate("true")
    token, told = ((1, ((STREAM, 5),)),), []
    for session, elsewhere in ((20, 3), (21, 9)):
        handle(core, SessionEstablished("c", session, 1))
        handle(core, MessageReceived("c", session, Connect(False, 1, 1, 0, token)))
        effects = handle(core, MessageReceived("c", session, Subscribe(1, predicate)))
        changes = [each for effect in effects if type(effect) is Commit for each in effect.changes]
        told += [change.value for change in changes if change.table == ARRIVING and change.value]
        effects = handle(core, MessageReceived(2, 12, Moved(1, 2, "c", 1, elsewhere)))
        told += [type(each) for each in effects if type(each) is CloseSession]
        told += [each.message for each in effects if _is_refusal(each)]
        if session == 20:
            handle(core, SessionLost("c", session, "closed_by_us"))
    reason = "c is attached to another broker, too: another process has its state"
    assert told == [1, CloseSession, 4, Refused("connect", 0, reason, False)]


def returns_before_the_move_away_is_complete() -> bool:
    """Return True if requests about the earlier move do not end the sessions of a returning client.

    They arrive between the session and its Connect, first at one session, then at the next.
    """
    core, predicate = relay(), parse_predicate("true")
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 1, 1, 0, ())))
    handle(core, MessageReceived("c", 20, Subscribe(1, predicate)))
    handle(core, SessionLost("c", 20, "closed_by_peer"))
    ended = []
    for session, letter in (
        (21, Hold(1, 2, "c", 1, 2, ((StreamId(1, 0, 0), 0),), 1)),
        (22, Moved(1, 2, "c", 1, 2)),
    ):
        handle(core, SessionEstablished("c", session, 1))
        effects = handle(core, MessageReceived(2, 12, letter))
        ended += [each for each in effects if type(each) is CloseSession or _is_refusal(each)]
        if session == 21:
            handle(core, SessionLost("c", session, "connection_lost"))
    token = ((1, ((STREAM, 5),)),)
    effects = handle(core, MessageReceived("c", 22, Connect(False, 3, 1, 0, token)))
    effects += handle(core, MessageReceived("c", 22, Subscribe(1, predicate)))
    states = [each.message.state for each in effects if _is(Subscribed, each)]
    return not ended and states == ["pending", "started"]


def test_a_client_that_returns_before_its_move_is_complete_keeps_its_session() -> None:
    assert returns_before_the_move_away_is_complete()
    with plant([MUTANTS["session-is-an-attachment"]]):
        assert fails(returns_before_the_move_away_is_complete)


def _is(kind: type, effect: Effect) -> bool:
    return type(effect) is Send and type(effect.message) is kind


def _is_refusal(effect: Effect) -> bool:
    return type(effect) is Send and type(effect.message) is Refused
