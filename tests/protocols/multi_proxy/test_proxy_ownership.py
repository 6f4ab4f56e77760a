"""The paper's own ownership: two views of a topic are detected and merged in a period."""

from collections.abc import Callable

import pytest

from brokerd.protocols.multi_proxy.messages import Located, Merge
from brokerd.protocols.multi_proxy.parameters import PAPER, MultiProxyParameters
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.proxy_stories import Story, sides

MUTANTS = bugs_of("multi_proxy")

KINDS = "abcdef"


class Twins(Story):
    """A story in which two proxies gave most topics to different servers."""

    def __init__(self) -> None:
        super().__init__(sides(proxies=2, servers=3, edges=2), ownership=PAPER, topics=64)
        self.subscriptions = []
        for at, kinds in (("e1", KINDS), ("e2", KINDS[::-1])):
            for kind in kinds:
                self.subscriptions.append((kind, self.cluster.subscribe(at, f"kind = '{kind}'")))
                self.cluster.run_for(0.05)

    def lost(self, seconds: float) -> int:
        """Return the number of publications over both proxies that do not reach both sides."""
        sent = [(kind, self.publish(at, 1, kind=kind)[0]) for kind in KINDS for at in ("e1", "e2")]
        self.cluster.run_for(seconds)
        return sum(
            each not in subscription.received
            for kind, each in sent
            for wanted, subscription in self.subscriptions
            if kind == wanted
        )


def publications_after_a_merge_are_not_lost() -> bool:
    story = Twins()
    split = story.lost(1)
    story.cluster.run_for(7)
    return split > 0 and story.lost(2) == 0


def test_uncoordinated_proxies_create_two_owners_and_detect_them() -> None:
    story = Twins()
    told: dict[int, set[int]] = {}
    for _, _, message in story.said:
        if isinstance(message, Located):
            for topic, server, _ in message.owners:
                told.setdefault(topic, set()).add(server)
    assert any(len(servers) > 1 for servers in told.values())
    story.cluster.run_for(7)
    assert any(story.told(name, Merge) for name in ("x1", "x2"))
    before = len(story.told("x1", Merge)) + len(story.told("x2", Merge))
    story.cluster.run_for(10)
    assert len(story.told("x1", Merge)) + len(story.told("x2", Merge)) == before


def test_the_paper_mode_carries_a_warning_of_its_cost() -> None:
    assert "loses" in MultiProxyParameters(ownership=PAPER).warnings()[0]
    assert not MultiProxyParameters().warnings()


RULES: dict[str, Callable[[], bool]] = {
    "merged-without-subscribers": publications_after_a_merge_are_not_lost,
    "never-merges": publications_after_a_merge_are_not_lost,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        assert not RULES[bug]()
