"""Tests of the trace of one delivery, against the plain judge and the sample run."""

from pathlib import Path

import pytest

from results.reference.history_reader import judge_folder, read_history
from results.report.delivery_trace import TraceRefusal, trace_delivery
from tests.helpers.forged_folders import RunFolder, write_forged_run, write_honest_run
from tests.helpers.forged_runs import FORGERIES

SAMPLE = Path("results/samples/delta-tree-crash")
LOST = "one_delivery_is_left_out"
REPEATED = "one_comes_twice"


def forged(folder: Path, name: str) -> Path:
    chosen = next(each for each in FORGERIES.values() if each.change.__name__ == name)
    return write_forged_run(folder, name, chosen)


@pytest.mark.parametrize(
    "name, kind, outcome", [(LOST, "missing", "missing"), (REPEATED, "duplicate", "repeated")]
)
def test_a_violation_of_the_plain_judge_has_the_same_outcome_in_its_trace(
    tmp_path: Path, name: str, kind: str, outcome: str
) -> None:
    run = forged(tmp_path, name)
    violations = [each for each in judge_folder(run).violations if each.kind == kind]
    assert violations
    for each in violations:
        publication = f"{each.source}:{each.incarnation}:{each.sequence}"
        trace = trace_delivery(run, publication, each.subscription)
        assert trace.outcome == outcome, trace
        assert trace.because.startswith(outcome)


def test_every_delivery_of_an_honest_run_has_the_outcome_of_the_log(tmp_path: Path) -> None:
    run = write_honest_run(tmp_path, "honest")
    history = read_history(run)
    outcomes: dict[str, int] = {}
    for log in history.publishers:
        for subscription in history.subscriptions:
            received = {each.key for each in subscription.delivered if each.source == log.source}
            for row in log.published[::7]:
                publication = f"{log.name}:{row.incarnation}:{row.sequence}"
                trace = trace_delivery(run, publication, subscription.subscription)
                assert (trace.outcome == "delivered") == (row.key in received), trace
                outcomes[trace.outcome] = outcomes.get(trace.outcome, 0) + 1
    assert {"delivered", "not wanted"} == {*outcomes}, outcomes


def test_a_trace_names_path_faults_neighbours_and_acknowledgement() -> None:
    trace = trace_delivery(SAMPLE, "p1-pub-1:400", "s2-sub-1")
    assert (trace.publication, trace.path) == ("p1/0:1:400", ("p1", "b1", "s2"))
    assert trace.outcome == "not wanted"
    said = [(event.place, event.text) for event in trace.events]
    assert said == [
        ("b1", "kill begins on the path"),
        ("s2-sub-1", "receives number 399 of the same source"),
        ("p1-pub-1", "sends the publication"),
        ("p1-pub-1", "receives the acknowledgement"),
        ("s2-sub-1", "receives number 401 of the same source"),
        ("b1", "kill ends on the path"),
    ]
    times = [event.at_ns for event in trace.events]
    assert times == sorted(times)


def test_a_late_delivery_names_the_fault_on_its_path() -> None:
    trace = trace_delivery(SAMPLE, "p1/0:1:399", "s2-sub-1/1")
    assert trace.because.endswith("; on the path meanwhile: kill b1")


def test_an_unacknowledged_publication_is_owed_only_if_another_subscription_has_it(
    tmp_path: Path,
) -> None:
    run = forged(tmp_path, LOST)
    (lost,) = [each for each in judge_folder(run).violations if each.kind == "missing"]
    publication = f"{lost.source}:{lost.incarnation}:{lost.sequence}"
    for process in processes_with(run, "acks"):
        with RunFolder(run).records(process, "acks") as acks:
            acks.drop(acks.all["first"] >= 1)
    trace = trace_delivery(run, publication, lost.subscription)
    assert trace.because.startswith("missing: received by another subscription")
    for process in processes_with(run, "deliveries"):
        with RunFolder(run).records(process, "deliveries") as deliveries:
            deliveries.drop(deliveries.all["sequence"] == lost.sequence)
    trace = trace_delivery(run, publication, lost.subscription)
    assert trace.outcome == "not owed"
    assert trace.because == "not owed: no broker has acknowledged the publication"


def processes_with(run: Path, layout: str) -> list[str]:
    """Return the processes with records of a layout, as "HOST/PROCESS"."""
    found = [path.parent for path in run.glob(f"raw/*/*/{layout}.rec")]
    assert found, layout
    return [f"{process.parent.name}/{process.name}" for process in found]


def test_a_withheld_publication_names_its_partition(tmp_path: Path) -> None:
    run = write_honest_run(tmp_path, "gated", gated=True)
    history = read_history(run)
    traces = [
        trace_delivery(run, f"{log.source}:{row.incarnation}:{row.sequence}", log_of.subscription)
        for log_of in history.subscriptions
        for log in history.publishers
        for notice in log_of.notices
        if notice.source == log.source
        for row in log.published
        if notice.first <= row.sequence <= notice.last
    ]
    data = [each for each in traces if "fence" not in each.attributes]
    withheld = [each for each in data if each.outcome == "withheld"]
    assert len(withheld) == sum(judge_folder(run).counts.withheld.values()) > 0
    assert all("partition" in each.because for each in withheld)


@pytest.mark.parametrize(
    "publication, subscription, text",
    [
        ("p1-pub-1:9999", "s2-sub-1", "has not published 9999; the run has 1 to 1577"),
        ("p1/0:7:5", "s2-sub-1", "has no incarnation 7"),
        ("p1-pub-9:1", "s2-sub-1", "no publisher 'p1-pub-9' in this run"),
        ("p1-pub-1:1", "s2-sb-1", "no subscription 's2-sb-1' in this run"),
        ("p1-pub-1:-1", "s2-sub-1", "write SOURCE:NUMBER"),
        ("p1-pub-1", "s2-sub-1", "write SOURCE:NUMBER"),
        (":5", "s2-sub-1", "write SOURCE:NUMBER"),
    ],
)
def test_a_publication_or_subscription_that_is_not_there_is_refused(
    publication: str, subscription: str, text: str
) -> None:
    with pytest.raises(TraceRefusal, match=text):
        trace_delivery(SAMPLE, publication, subscription)
