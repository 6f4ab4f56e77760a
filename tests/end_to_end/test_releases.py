"""Stories about two releases: one has deployed the brokers that the other operates and upgrades."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from brokerd.runtime.program import UNVERSIONED_WIRE_VERSION
from brokerd.sessions.messages import WIRE_VERSION
from tests.end_to_end.conftest import Answer, Lab
from tests.helpers.releases import (
    WITHOUT_METRICS,
    WITHOUT_VERSIONS,
    Edit,
    make_release,
    with_commands,
    with_wire,
)

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]

BROKERS = ["c1", "c2", "c3"]


@contextmanager
def release(lab: Lab, edits: Sequence[Edit]) -> Iterator[None]:
    """Run the commands of another release inside the block."""
    before = lab.environment.get("PYTHONPATH")
    lab.environment["PYTHONPATH"] = str(make_release(lab.folder / "release", *edits))
    yield
    if before is None:
        del lab.environment["PYTHONPATH"]
    else:
        lab.environment["PYTHONPATH"] = before


def deploy_with(lab: Lab, edits: Sequence[Edit]) -> dict[str, int]:
    """Deploy a chain with another release; return the pids."""
    with release(lab, edits):
        deployed = lab.call("deploy", "chain3")
        assert deployed.status == 0, deployed.err
    return pids(lab)


def brokers(lab: Lab) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lab.call("status", "-j").document["brokers"]
    return rows


def pids(lab: Lab) -> dict[str, int]:
    return {row["broker"]: row["pid"] for row in brokers(lab)}


def assert_current(lab: Lab) -> None:
    """Check that the whole deployment runs this program, and that no work is left."""
    status = lab.call("status", "-j")
    assert status.document["differing"] == {}
    assert all(row["program"] == status.document["programs"]["this"] for row in brokers(lab))
    assert "to replace" not in lab.call("deploy", "chain3", "--dry-run").out
    assert lab.call("deploy", "chain3", "--expect-noop", "--rolling").status == 0
    assert lab.call("down", "--verify").status == 0
    assert lab.left_behind() == []


def assert_refused(answer: Answer, *said: str) -> None:
    assert answer.status == 4, answer.err
    for text in said:
        assert text in answer.err


@pytest.mark.sampled
def test_brokers_of_a_release_without_versions_are_named_and_upgraded(lab: Lab) -> None:
    before = deploy_with(lab, (*WITHOUT_VERSIONS, *with_wire(UNVERSIONED_WIRE_VERSION)))
    earlier = "an earlier release, which reports no version"

    status = lab.call("status")
    assert status.status == 0, status.err
    assert f"host e1: its agent runs {earlier}" in status.out
    assert f"broker c1 on e1 runs {earlier}" in status.out
    doctor = lab.call("doctor", "--only", "program")
    assert earlier in doctor.out
    assert "--rolling" in doctor.out
    dry = lab.call("deploy", "chain3", "--dry-run")
    assert dry.status == 0, dry.err
    assert "nothing to do" not in dry.out
    assert f"host e2: its agent runs {earlier}" in dry.out
    assert lab.call("deploy", "chain3", "--expect-noop", "--rolling").status == 4

    hint = "`pubsubctl deploy TOPOLOGY --rolling` replaces agents and brokers"
    assert_refused(lab.call("deploy", "chain3"), f"host e1: its agent runs {earlier}", hint)
    assert_refused(lab.call("inject", "kill", "c2"), earlier, hint)
    assert pids(lab) == before

    arguments = ["deploy", "chain3", "--rolling", "-j"]
    if WIRE_VERSION != UNVERSIONED_WIRE_VERSION:
        refused = lab.call(*arguments)
        assert_refused(refused, f"wire version {UNVERSIONED_WIRE_VERSION}: c1, c2, c3", "--at-once")
        assert pids(lab) == before
        arguments.append("--at-once")
    rolled = lab.call(*arguments)
    assert rolled.status == 0, rolled.err
    assert sorted(rolled.document["replaced"]) == BROKERS
    assert not {*before.values()} & {*pids(lab).values()}
    assert_current(lab)


@pytest.mark.sampled
def test_a_release_with_the_same_wire_version_is_upgraded_broker_by_broker(lab: Lab) -> None:
    before = deploy_with(lab, (*WITHOUT_METRICS, *with_commands(0, "0.0.9")))
    assert_refused(lab.call("deploy", "chain3"), "its agent runs 0.0.9 (wire version")
    rolled = lab.call("deploy", "chain3", "--rolling", "-j")
    assert rolled.status == 0, rolled.err
    assert sorted(rolled.document["replaced"]) == BROKERS
    for broker in BROKERS:
        assert f"replacing {broker}\n" in rolled.err, "one at a time"
    assert not {*before.values()} & {*pids(lab).values()}
    assert_current(lab)


@pytest.mark.sampled
def test_brokers_of_another_wire_version_are_replaced_together_or_not_at_all(lab: Lab) -> None:
    before = deploy_with(lab, (*with_commands(0, "0.0.9"), *with_wire(WIRE_VERSION - 1)))
    assert "--rolling --at-once" in lab.call("status").out
    refused = lab.call("deploy", "chain3", "--rolling")
    assert_refused(
        refused,
        f"this program has wire version {WIRE_VERSION}",
        f"wire version {WIRE_VERSION - 1}: c1, c2, c3",
        "`pubsubctl deploy TOPOLOGY --rolling --at-once` stops all of them together",
    )
    assert pids(lab) == before
    assert "its agent runs 0.0.9" in lab.call("status").out, "nothing was replaced"
    rolled = lab.call("deploy", "chain3", "--rolling", "--at-once", "-j")
    assert rolled.status == 0, rolled.err
    assert sorted(rolled.document["replaced"]) == BROKERS
    assert "replacing c1, c2, c3\n" in rolled.err
    assert_current(lab)


@pytest.mark.sampled
def test_an_agent_of_a_later_release_is_operated_by_that_release_only(lab: Lab) -> None:
    deploy_with(lab, with_commands(2, "0.2.0"))
    later = "use pubsubctl 0.2.0 there, or `pubsubctl down` to stop what runs"
    assert later in lab.call("status").out
    for arguments in (("deploy", "chain3"), ("deploy", "chain3", "--rolling")):
        assert_refused(lab.call(*arguments), "host e1: its agent runs 0.2.0", later)
    assert_refused(lab.call("inject", "kill", "c2"), later)
    assert lab.call("down", "--verify").status == 0
    assert lab.left_behind() == []


def test_at_once_without_rolling_is_refused(lab: Lab) -> None:
    answer = lab.call("deploy", "chain3", "--at-once")
    assert answer.status == 2
    assert "use --at-once together with --rolling" in answer.err
