"""Stories about `publish` and `subscribe`: one client per command, a line per publication."""

import json
import signal

import pytest

from tests.end_to_end.conftest import LONGEST_COMMAND_S, Lab

pytestmark = pytest.mark.end_to_end


def test_publications_of_one_command_are_lines_of_another(lab: Lab) -> None:
    assert lab.call("deploy", "chain3-cells", "--protocol", "durable").status == 0
    orders = lab.start("subscribe", "kind = 'order' and price > 5", "--count", "4", "-b", "c3")
    rest = lab.start("subscribe", "true")
    for each in (orders, rest):
        assert each.stderr is not None
        assert "subscribed" in each.stderr.readline()

    published = lab.call("publish", "kind=order,price=30", "one shirt", "--count", "3", "-b", "c1")
    assert published.status == 0, published.err
    *acknowledged, total = map(json.loads, published.out.splitlines())
    assert (acknowledged[0]["first"], acknowledged[-1]["last"]) == (1, 3)
    assert total == {"schema": "pubsubctl/published/1", "published": 3, "acknowledged": 3}
    assert lab.call("publish", "news").status == 0
    assert lab.call("publish", "kind=order,price=7").status == 0

    out, _ = orders.communicate(timeout=LONGEST_COMMAND_S)
    assert orders.returncode == 0
    rows = [*map(json.loads, out.splitlines())]
    assert [(row["attributes"]["price"], row["payload"]) for row in rows] == [
        *[(30, "one shirt")] * 3,
        (7, ""),
    ]
    assert [row["sequence"] for row in rows] == [1, 2, 3, 1]
    rest.send_signal(signal.SIGINT)
    out, _ = rest.communicate(timeout=LONGEST_COMMAND_S)
    assert rest.returncode == 0
    assert {"topic": "news"} in [json.loads(line)["attributes"] for line in out.splitlines()]

    durable = ("subscribe", "kind = 'order'", "--durable", "--name", "dora")
    assert lab.call(*durable, "--timeout", "1s").status == 0
    assert lab.call("publish", "kind=order,price=1", "--count", "5").status == 0
    listed = json.loads(lab.call("subscriptions", "list", "--json").out)
    (absent,), (stream,) = listed["subscriptions"], listed["streams"]
    assert ([*absent["behind_ms"]], absent["holds"]) == (["c1.3"], ["c1.3"])
    assert absent["behind_events"] == {"c1.3": 5} == {stream["stream"]: stream["events"]}
    assert absent["retained_bytes"] == {"c1.3": stream["bytes"]}
    assert stream["held_by"] == ["dora/1 at c1"]
    first, second = lab.call(*durable, "--count", "2"), lab.call(*durable, "--count", "3")
    sequences = [json.loads(line)["sequence"] for line in (first.out + second.out).splitlines()]
    assert sequences == [1, 2, 3, 4, 5]
    another = lab.call("subscribe", "true", *durable[2:])
    assert (another.status, "`--end` ends it" in another.err) == (5, True)
    ended = lab.call("subscribe", "true", *durable[2:], "--end")
    assert (ended.status, "c1 has ended the durable subscription" in ended.err) == (0, True)
    assert lab.call("publish", "kind=order,price=2").status == 0
    missing = lab.call(*durable, "--count", "1", "--timeout", "500ms")
    assert (missing.status, "0 of 1 publications arrived" in missing.err) == (1, True)

    assert lab.call("inject", "kill", "c1").status == 0
    unconfirmed = lab.call(*durable, "--end", "--timeout", "500ms")
    assert (unconfirmed.status, "c1 has not confirmed the end" in unconfirmed.err) == (5, True)
    lost = lab.call("publish", "kind=order", "-b", "c1", "--timeout", "1s")
    assert (lost.status, "has reached no broker for 1 s" in lost.err) == (6, True)
    stranger = lab.call("publish", "kind=order", "-b", "c9")
    assert (stranger.status, "did you mean" in stranger.err) == (2, True)
