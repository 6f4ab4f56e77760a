"""Mistakes in counters that only steer: no publication is lost, and what is decided by them is."""

from typing import Final

from tests.helpers.planted_stories import Row

_PROTOCOLS: Final = "brokerd/protocols/"
_STORY: Final = "tests/simulator/test_recounts.py::test_what_is_counted_is_what_there_is"


def _row(name: str, protocol: str, file: str, text: str, mistaken: str) -> Row:
    return Row(name, _PROTOCOLS + file, text, mistaken, _STORY, {"protocol": protocol})


ROWS: Final = (
    _row(
        "partly-acknowledged-counts-whole",
        "gryphon",
        "parts/clients/windows.py",
        "            outlet.unacknowledged -= before - (len(left) if left else 0)\n",
        "            outlet.unacknowledged -= len(left) if left else before\n",
    ),
    _row(
        "ended-subscriptions-stay-started",
        "multi_proxy",
        "parts/clients/own_subscriptions.py",
        "                self.started -= 1\n",
        "",
    ),
    _row(
        "everything-is-wanted-for-ever",
        "gryphon",
        "gryphon/filters.py",
        "        known.everything -= known.predicates[number] == EVERYTHING\n",
        "",
    ),
    _row(
        "left-lane-has-events-out",
        "durable",
        "durable/lanes.py",
        "        self.out.clear()\n        self.out_events = 0\n",
        "        self.out.clear()\n",
    ),
    _row(
        "answered-question-keeps-its-room",
        "durable",
        "durable/fetching.py",
        "            self._left_bytes.pop((peer, identity), None)\n",
        "",
    ),
    _row(
        "released-events-keep-their-bytes",
        "ges_reliable",
        "ges_reliable/epoch_log.py",
        "            self.retained_bytes -= self._events.popleft().run.payload_bytes()\n",
        "            self._events.popleft()\n",
    ),
    _row(
        "proposals-count-for-ever",
        "multi_proxy",
        "multi_proxy/claims.py",
        "            if proposed is not None:\n                self._counts[proposed] -= 1\n            new",
        "            new",
    ),
    _row(
        "chopped-records-keep-their-bytes",
        "multi_proxy",
        "multi_proxy/topic_log.py",
        "            self.logged_bytes -= gone.size_bytes\n",
        "",
    ),
    _row(
        "ended-subscription-follows",
        "multi_proxy",
        "multi_proxy/gets.py",
        "                    topic.followers -= 1\n                    if not topic.followers:",
        "                    topic.followers -= topic.followers == 1\n"
        "                    if not topic.followers:",
    ),
    _row(
        "forgotten-subscription-has-a-place",
        "ges",
        "ges/profiles.py",
        "            del self._place_of[subscription]\n",
        "",
    ),
)
