"""Tests of commit requests and replies in any order: a late reply answers no later request."""

from itertools import permutations
from random import Random

import pytest

from brokerd.client.commits import CommitRequests
from brokerd.model.client_messages import CommitConsumed, Consuming
from brokerd.model.identity import SourceId

STREAMS = (SourceId(1, 0, 1), SourceId(2, 0, 1))


def test_a_late_answer_to_the_first_request_does_not_answer_the_second() -> None:
    commits = CommitRequests()
    commits.begin(1, 10)
    first = commits.request(1, ((STREAMS[0], 3),))
    second = commits.request(1, ((STREAMS[0], 5),))
    assert commits.on_committed(1, first.request)
    assert commits.unanswered() == [second]
    assert commits.is_committed(1, first.request)
    assert not commits.is_committed(1, second.request)
    third = commits.request(1, ((STREAMS[0], 5),))
    assert third.positions == ((STREAMS[0], 5),)
    assert commits.on_committed(1, third.request)
    assert commits.unanswered() == []
    assert commits.request(1, ((STREAMS[0], 5),)).positions == ()


@pytest.mark.parametrize("order", [*permutations((2, 3, 1))])
def test_reports_in_any_order_leave_the_highest_generation(order: tuple[int, ...]) -> None:
    """Each subscription has a report of its own, and a report of an earlier session may be late."""
    commits = CommitRequests()
    for number in (1, 2):
        commits.begin(number, 10)
    for place, generation in enumerate(order):
        commits.on_consuming(Consuming(1 + place % 2, generation, 10, ()))
        assert commits.generation == max(order[: place + 1])


@pytest.mark.parametrize("seed", range(100))
def test_a_request_without_a_confirming_answer_is_repeated(seed: int) -> None:
    """Requests are lost with sessions and repeated; replies are late, lost or duplicated."""
    random, commits = Random(seed), CommitRequests()
    commits.begin(1, 10)
    reached = dict.fromkeys(STREAMS, 0)
    durable = dict.fromkeys(STREAMS, 0)
    on_their_way: list[CommitConsumed] = []
    answers: list[int] = []
    answered: set[int] = set()
    asked = 0
    for _ in range(80):
        match random.randrange(4):
            case 0:
                reached[random.choice(STREAMS)] += random.randrange(3)
                request = commits.request(1, tuple(reached.items()))
                asked = request.request
                on_their_way.append(request)
            case 1 if on_their_way:
                request = on_their_way.pop(0)
                for stream, last in request.positions:
                    durable[stream] = max(durable[stream], last)
                answers.append(request.request)
            case 2 if answers:
                place = random.randrange(len(answers))
                answer = answers[place] if random.random() < 0.2 else answers.pop(place)
                assert commits.on_committed(1, answer)
                answered.add(answer)
            case 3 if random.random() < 0.3:
                on_their_way = commits.unanswered()
                assert [each.request for each in on_their_way] == (
                    [asked] if asked and asked not in answered else []
                )
        for number in range(1, asked + 1):
            assert commits.is_committed(1, number) == any(each >= number for each in answered)
    last = commits.request(1, tuple(reached.items()))
    for stream, position in last.positions:
        durable[stream] = max(durable[stream], position)
    assert durable == reached, "the last request asks for all that no answer has confirmed"
