"""Brokers that are slower than their input: send windows between neighbours.

Paper: [DS03] §4.1 (flow control); see `flow_control.py`.
"""

from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.flow_control import weight_bytes
from brokerd.protocols.gryphon.messages import Events, WindowProbe, WindowUpdate
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.helpers.gryphon_stories import Story

MUTANTS = bugs_of("gryphon")

WINDOW_BYTES = 4_000
PAYLOAD = bytes(272)
EVENT_BYTES = 400
"""The size of an event of these stories in a window."""


class Missed(Story):
    """A subscriber's broker that lost a hundred events, ten windows, and has reconnected."""

    def __init__(self, **parameters) -> None:
        super().__init__("p1-b1", "b1-s1", **{"answer_window_bytes": WINDOW_BYTES, **parameters})
        self.subscriber = self.cluster.subscribe("s1")
        self.cluster.run_until_quiet()
        link = self.cluster.link("b1", "s1").absorb()
        self.sent = self.publish_burst(100)
        self.cluster.run_for(0.1)
        link.cut()
        self.cluster.run_for(0.2)
        link.heal()
        self.cluster.run_for(3)
        self.quiet_since()
        self.sent += self.publish_burst(1)

    def publish_burst(self, count: int):
        """Publish `count` events of EVENT_BYTES at once."""
        blob = encode_attributes({"kind": "a"})
        return self.cluster.publish_run("p1", [(blob, PAYLOAD)] * count)

    def has_all(self) -> bool:
        """Return True if the subscriber has all events in order."""
        return self.subscriber.received == self.sent

    def answers(self) -> list[Events]:
        """Return the answers of b1 to s1."""
        return [message for message in self.from_to("b1", "s1", Events) if message.again]


def largest_untaken_bytes(story: Story, sender: str, receiver: str) -> int:
    """Return the maximum of bytes in answers that were sent and not taken."""
    sent = taken = most = 0
    for _, a, b, message in story.said:
        if (a, b) == (sender, receiver) and type(message) is Events and message.again:
            sent += weight_bytes(message.run)
            most = max(most, sent - taken)
        elif (a, b) == (receiver, sender) and type(message) is WindowUpdate and message.again:
            taken = max(taken, message.taken_bytes)
    return most


def all_comes_in_windows(**parameters) -> bool:
    story = Missed(**parameters)
    story.wait_for(story.has_all, limit_s=0.5)  # before any repeated request
    story.settle()
    assert sum(len(message.run) for message in story.answers()) == 100, "nothing of it twice"
    return largest_untaken_bytes(story, "b1", "s1") <= WINDOW_BYTES + EVENT_BYTES


def fails(story, *arguments, **parameters) -> bool:
    """Return True if a story fails or breaks a rule."""
    try:
        return not story(*arguments, **parameters)
    except (AssertionError, InvariantViolated):
        return True


def test_missed_events_arrive_in_windows_as_the_broker_accepts_them() -> None:
    assert all_comes_in_windows()
    with plant([MUTANTS["answers-unbounded"]]):
        assert fails(all_comes_in_windows)


def test_a_consumed_window_is_replenished() -> None:
    with plant([MUTANTS["window-is-not-returned"]]):
        assert fails(all_comes_in_windows)
    with plant([MUTANTS["waiting-answers-are-dropped"]]):
        assert fails(all_comes_in_windows)


def test_answers_that_fit_into_the_window_are_sent_without_delay() -> None:
    """All answers are sent in one step, without a round trip between them."""
    story = Missed(answer_window_bytes=1 << 20)
    story.wait_for(story.has_all)
    whens = [when for when, a, _, m in story.said if a == "b1" and type(m) is Events and m.again]
    assert len({*whens}) == 1


def a_lost_word_is_made_up_for(kind: type, sender: str, receiver: str) -> bool:
    """Return True if a window recovers from a lost probe, or from its lost answer."""
    story = Missed(answer_window_bytes=2_000, send_stall_ns=SECOND_NS)
    for _ in range(5):
        story.lose(sender, receiver, kind)
    story.wait_for(story.has_all, limit_s=10)
    story.settle()
    return len(story.answers()) > 1


def test_a_full_window_is_probed_again() -> None:
    words = ((WindowProbe, "b1", "s1"), (WindowUpdate, "s1", "b1"))
    assert all(a_lost_word_is_made_up_for(*each) for each in words)
    with plant([MUTANTS["window-probe-is-sent-once"]]):
        assert all(fails(a_lost_word_is_made_up_for, *each) for each in words)


def test_a_returning_broker_receives_the_rest_on_its_new_session() -> None:
    story = Missed()
    story.wait_for(lambda: len(story.answers()) > 0)
    story.cluster.link("b1", "s1").cut().suspect()
    story.cluster.link("s1", "b1").suspect()
    story.cluster.run_for(0.1)
    story.cluster.link("b1", "s1").heal()
    story.cluster.run_for(3)
    story.wait_for(story.has_all, limit_s=10)
    story.settle()


class TakesNothing(Story):
    """Two subscribers' brokers, of which s1 keeps its session and stalls for a while."""

    def __init__(self, **parameters) -> None:
        super().__init__(
            "p1-b1", "b1-s1", "b1-s2", **{"send_window_bytes": WINDOW_BYTES, **parameters}
        )
        self.slow = self.cluster.subscribe("s1")
        self.other = self.cluster.subscribe("s2")
        self.cluster.run_until_quiet()
        self.link = self.cluster.link("b1", "s1").absorb()
        self.sent = []

    def flood(self, count: int) -> None:
        """Publish `count` events of EVENT_BYTES, ten at a time."""
        blob = encode_attributes({"kind": "a"})
        for _ in range(count // 10):
            self.sent += self.cluster.publish_run("p1", [(blob, PAYLOAD)] * 10)
            self.cluster.run_for(0.01)

    def told(self, receiver: str) -> int:
        """Return the number of new events that b1 has sent to a broker."""
        return sum(len(m.run) for m in self.from_to("b1", receiver, Events) if not m.again)

    def have_all(self) -> bool:
        """Return True if both subscribers have all events in order."""
        return self.slow.received == self.other.received == self.sent


WINDOW = WINDOW_BYTES // EVENT_BYTES


def publishers_wait_and_go_on() -> bool:
    """Return True if a short stall of s1 fills at most a window on every link and in the log."""
    story = TakesNothing()
    story.flood(200)
    assert WINDOW <= story.told("s1") <= 3 * WINDOW, "others wait for it"
    assert len(story.other.received) <= 3 * WINDOW, "all go at its pace"
    story.link.heal()
    story.wait_for(story.have_all, limit_s=1)
    story.settle()
    return not any(message.again for _, _, _, message in story.said if type(message) is Events)


def test_publishers_wait_for_a_slow_broker_and_resume_with_it() -> None:
    assert publishers_wait_and_go_on()
    for bug in ("never-waits", "waits-for-ever", "receives-without-room-below"):
        with plant([MUTANTS[bug]]):
            assert fails(publishers_wait_and_go_on), bug


def others_go_on_without_one_that_stands_still() -> bool:
    """Return True if s2 gets all events after the stall, and s1 four windows and later the rest."""
    story = TakesNothing(send_stall_ns=SECOND_NS)
    story.flood(200)
    story.wait_for(lambda: story.other.received == story.sent, limit_s=5)
    assert story.told("s1") <= 4 * WINDOW + 10
    story.link.heal()
    story.wait_for(story.have_all, limit_s=3)
    story.settle()
    return story.slow.received == story.sent


def test_a_stalled_broker_does_not_block_publishers_forever() -> None:
    assert others_go_on_without_one_that_stands_still()
    for bug in ("stall-holds-for-ever", "window-bounds-nothing", "skipped-cell-gets-no-end"):
        with plant([MUTANTS[bug]]):
            assert fails(others_go_on_without_one_that_stands_still), bug


def who_is_away_holds_up_nobody() -> bool:
    """Return True if publishers resume as soon as the session of a stalled broker ends."""
    story = TakesNothing(send_stall_ns=60 * SECOND_NS)
    story.flood(200)
    story.link.cut().suspect()
    story.cluster.link("s1", "b1").suspect()
    story.wait_for(lambda: story.other.received == story.sent, limit_s=1)
    story.link.heal()
    story.settle(40)
    return story.have_all()


def test_a_disconnected_broker_delays_no_other_broker() -> None:
    assert who_is_away_holds_up_nobody()
    with plant([MUTANTS["lost-neighbour-is-awaited"]]):
        assert fails(who_is_away_holds_up_nobody)


def test_a_short_stall_within_the_window_delays_no_other_broker() -> None:
    """As in the paper's experiments, 100 events are sent per second, with a stall of 2 s."""
    story = TakesNothing(send_window_bytes=8 << 20)
    story.flood(200)
    assert story.told("s1") == 200
    assert story.other.received == story.sent
    story.link.heal()
    story.settle()
    assert story.have_all()


def both_ways_go_sideways() -> bool:
    """Return True if two cells with half of their links forward events in both directions.

    From p1 the path is x1, y1, y2, and from p2 it is y2, x2, x1. Both end between peers of a cell,
    so the four brokers send in a circle.
    """
    names = ["p1", "x1", "x2", "y1", "y2", "p2"]
    bundles = [("p1", "x"), ("x", "y"), ("y", "p2")]
    topology = tree_of_cells(names, bundles, {"x": ["x1", "x2"], "y": ["y1", "y2"]})
    story = Story(topology=topology, send_window_bytes=EVENT_BYTES)
    for a, b in (("p1", "x2"), ("x1", "y2"), ("x2", "y1"), ("y1", "p2")):
        story.cluster.link(a, b).cut()
    subscribers = [story.cluster.subscribe("p1"), story.cluster.subscribe("p2")]
    story.cluster.run_for(3)
    blob = encode_attributes({"kind": "a"})
    whole = set()
    for _ in range(20):
        for name in ("p1", "p2"):
            whole.update(story.cluster.publish_run(name, [(blob, PAYLOAD)] * 5))
        story.cluster.run_for(0.001)
    story.wait_for(lambda: all({*each.received} == whole for each in subscribers), limit_s=30)
    return bool(story.from_to("y1", "y2", Events) and story.from_to("x2", "x1", Events))


def test_publications_of_opposite_ways_do_not_wait_for_each_other() -> None:
    assert both_ways_go_sideways()
    with plant([MUTANTS["sideways-windows-wait-for-each-other"]]):
        assert fails(both_ways_go_sideways)
