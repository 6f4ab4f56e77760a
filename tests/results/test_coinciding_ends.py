"""Tests of histories in which two ends coincide, or differ by one nanosecond."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.fault_verbs import VERB_TABLE
from results.reference import risk
from results.reference.busyness import signs as signs
from results.reference.files import JITTER_NS
from results.reference.risk import DeliveryPaths, is_certainly_sent_in, times_of_risk
from results.reference.rule import check
from results.reference.withholding import Reasons
from results.rules.busyness import busy_signs
from results.rules.risks import Exposure, Tree, parts_of, risk_windows
from results.rules.terms import NEVER_NS, Fault, Partition
from results.rules.withholding import SETTLING_NS, Barriers, RequestTimes
from tests.helpers.plain_times import is_certainly_in
from tests.helpers.promised_histories import PLAIN, promised_history

LINKS = (("a", "b"), ("b", "c"), ("c", "d"))
BROKERS = "abcd"
MACHINES = {"m1": ("a", "b"), "m2": ("c", "d")}
LASTING = tuple(verb.name for verb in VERB_TABLE.values() if verb.risk == "passing")
DYING = (*(verb.name for verb in VERB_TABLE.values() if verb.risk == "end"), "restart")
OTHERS = tuple(verb.name for verb in VERB_TABLE.values() if verb.risk in ("disk", "client"))
PLACES = {
    "broker": (*BROKERS,),
    "link": ("a-b", "b-c", "c-b", "b->c"),
    "machine": (*MACHINES,),
    "sets": ("a|b", "a,b|c,d", "c"),
    "client": ("sub", "pub"),
    "subscriber": ("sub",),
    "own-process subscriber": ("sub",),
}


def targets_of(verb: str) -> list[str]:
    """Return targets of each kind that a verb accepts; a machine may be started again, too."""
    kinds = (*VERB_TABLE[verb].on, *(["machine"] if verb == "restart" else []))
    return [target for kind in kinds for target in PLACES[kind]]


@pytest.mark.parametrize("back_ns", [JITTER_NS, JITTER_NS + 1])
def test_a_clock_may_go_back_by_its_jitter_and_not_further(back_ns: int) -> None:
    """One step leads back; all other steps lead forward."""
    history = promised_history(Random(1), PLAIN)
    rows = [*history.subscriptions[0].delivered]
    began_ns = rows[-1].received_ns
    rows = [
        replace(row, received_ns=began_ns + 10 * JITTER_NS * place)
        for place, row in enumerate(rows)
    ]
    rows[5] = replace(rows[5], received_ns=rows[4].received_ns - back_ns)
    first, *others = history.subscriptions
    changed = replace(history, subscriptions=[replace(first, delivered=rows), *others])
    judgement = check(changed)
    found = [doubt for doubt in judgement.doubts if "moved back" in doubt]
    assert len(found) == (back_ns > JITTER_NS)
    assert all(f"{back_ns / 1e9:.3f} s" in doubt for doubt in found)


def test_the_least_that_is_owed_to_anyone_is_the_least() -> None:
    """Two subscriptions match all publications, and two match fewer."""
    history = promised_history(Random(1), PLAIN)
    everything, less = check(history).counts.owed, check(history).counts.least_owed
    assert less is not None
    name, _, least = less
    (predicate,) = (s.predicate for s in history.subscriptions if s.subscription == name)
    assert predicate != "true"
    assert least * check(history).counts.pairs < everything


def faults_on_a_grid(random: Random, step_ns: int, verbs: Sequence[str]) -> list[Fault]:
    """Draw faults from so few instants that most of the instants coincide."""
    faults = []
    for number in range(random.randrange(1, 6)):
        verb = random.choice(verbs)
        target = random.choice(targets_of(verb))
        applied = random.choice((*range(5), *range(5), None))
        healed = None if applied is None else random.choice((None, *range(applied, applied + 4)))
        observed = None if applied is None else random.choice((None, applied, applied + 1))
        parts = MACHINES.get(target) or parts_of(verb, target, BROKERS, LINKS, MACHINES)
        faults.append(
            Fault(
                f"f{number}",
                verb,
                target,
                *(None if each is None else each * step_ns for each in (applied, observed, healed)),
                parts=parts,
                err_ns=random.choice((0, 0, 0, step_ns // 2, step_ns, None)),
                to=random.choice(BROKERS),
            )
        )
    return faults


STEP_NS = 10
AROUND = (-STEP_NS, -1, 0, 1, STEP_NS)


@pytest.mark.parametrize("seed", range(40))
def test_both_judges_find_the_same_risks_where_instants_coincide(seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        faults = faults_on_a_grid(random, STEP_NS, (*LASTING, *DYING, *DYING, *OTHERS))
        windows = risk_windows(faults)
        assert times_of_risk(faults) == windows, faults
        ways, exposure = DeliveryPaths(risk.Tree(LINKS), faults), Exposure(LINKS, faults)
        start, home = random.choice(BROKERS), random.choice(BROKERS)
        for window in windows:
            for instant in range(0, 8 * STEP_NS, STEP_NS // 2):
                for by in (-1, 0, 1):
                    sent_ns = instant + by
                    is_sure = is_certainly_sent_in(window, sent_ns)
                    assert is_certainly_in(window, sent_ns) == is_sure, (window, sent_ns)
            clients = ("pub", start, "sub", home)
            leads = ways.lead_through(window, *clients)
            assert exposure.holds(window, *clients) == leads, (window, clients, faults)


PARTITIONS = tuple(
    Partition(detector, 1, 1, nodes)
    for detector, nodes in (
        ("d", ("c",)), ("d", ("c", "b")), ("c", ("b", "a")), ("b", ("a",)), ("d", ("c", "b", "a")),
    )
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_both_judges_excuse_the_same_where_instants_coincide(seed: int) -> None:
    """The grid is as wide as the settling time, so that faults follow just in time or just late."""
    random = Random(seed)
    excused = 0
    for _ in range(250):
        faults = faults_on_a_grid(random, SETTLING_NS, (*LASTING, *DYING))
        faults += [
            replace(fault, fault_id=f"{fault.fault_id}.{part}", target=part, parts=(part,))
            for fault in faults
            for part in ("c", "b")
            if random.random() < 0.5
        ]
        delta, newcomers = random.choice((1, 1, 2)), random.choice(((), ("a",)))
        barriers = Barriers(Tree(LINKS), delta, faults, newcomers)
        reasons = Reasons(risk.Tree(LINKS), delta, faults, newcomers)
        instants = [SETTLING_NS * place + by for place in range(-1, 9) for by in (-1, 0, 0, 1)]
        for partition in PARTITIONS:
            source = random.choice("ab")
            issued_ns, accepted_ns = (
                random.choice((None, *instants)),
                random.choice((None, *instants)),
            )
            told_ns = random.choice(instants)
            asked = RequestTimes(issued_ns, accepted_ns)
            excuse = barriers.excuse(partition, "d", source, asked, told_ns)
            until_ns = reasons.excuse_end(partition, "d", source, issued_ns, accepted_ns, told_ns)
            found_ns = None if excuse is None else excuse.until_ns
            assert found_ns == until_ns, (partition, source, asked, told_ns, faults)
            excused += until_ns is not None and until_ns < NEVER_NS
    assert excused > 10, "some seeds must reach the end of an excuse"


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_as_many_deliveries_as_the_workload_asks_for_are_enough(more: int) -> None:
    history = promised_history(Random(1), PLAIN)
    least = check(history).counts.least_owed
    assert least is not None
    judgement = check(replace(history, deliveries_per_pair_min=least[2] + more))
    found = [doubt for doubt in judgement.doubts if "the workload requires" in doubt]
    assert len(found) == (more > 0)


# --- Signs of a busy machine ------------------------------------------------------------------

SECOND_NS = 10**9
PROCESSES = {"b1": "broker", "b2": "broker", "load": "subscriber"}


@pytest.mark.parametrize("seed", range(60))
def test_both_judges_explain_the_same_signs_of_a_busy_machine(tmp_path: Path, seed: int) -> None:
    """Sessions end and statistics pause at the start, the end or the settling of a fault."""
    random = Random(seed)
    for number in range(6):
        _compare_signs(tmp_path / str(number), random)


def _compare_signs(folder: Path, random: Random) -> None:
    edges = [0, 10 * SECOND_NS, 25 * SECOND_NS, 40 * SECOND_NS]
    instants = [edge + by for edge in edges for by in (-SECOND_NS - 1, -SECOND_NS, -1, 0, 1)]
    faults = []
    for number in range(random.randrange(4)):
        applied_ns = random.choice((None, 0, 10 * SECOND_NS))
        healed_ns = random.choice((None, 10 * SECOND_NS, 25 * SECOND_NS))
        target = random.choice(("b1", "b2", "b1-b2", "b2->b1", "client:c1"))
        faults.append(Fault(f"f{number}", "freeze", target, applied_ns, applied_ns, healed_ns))
    lines: dict[tuple[str, str], list[dict[str, object]]] = {}
    for name in PROCESSES:
        log = "sessions.jsonl" if name == "load" else "events.jsonl"
        about = {"client": "c1", "broker": "b1.3"} if name == "load" else {"peer": "b2"}
        event = "down" if name == "load" else "session_lost"
        lines[name, log] = [
            {"event": event, "reason": random.choice(("silent", "silent", "closed")), **about,
             "t_ns": random.choice(instants)}
            for _ in range(random.randrange(3))
        ]  # fmt: skip
        at_ns, stamps = random.choice(instants), []
        for _ in range(random.randrange(5)):
            stamps.append({"t_ns": at_ns})
            at_ns += random.choice((SECOND_NS, 5 * SECOND_NS, 5 * SECOND_NS + 1, 16 * SECOND_NS))
        lines[name, "stats.jsonl"] = stamps
    processes = []
    for name, role in PROCESSES.items():
        place = folder / "raw" / "h" / name
        place.mkdir(parents=True)
        if name == "load":
            (place / "deliveries.rec").touch()
        for (of, log), rows in lines.items():
            if of == name:
                (place / log).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        lines_of = partial(_lines_of, lines, name)
        processes.append(
            SimpleNamespace(name=name, role=role, host="h", folder=place, lines=lines_of)
        )
    shares = {name: random.choice((0.49, 0.5, 0.51)) for name in ("b1", "b2")}
    manifest = {"drain": {"ended_by": "timeout"}, "waited_share": shares}
    run: Any = SimpleNamespace(manifest=manifest, faults=faults, to_timeline=lambda ns, _: ns)
    logs: Any = SimpleNamespace(processes=processes)
    found = sorted(busy_signs(run, logs))
    assert found == sorted(signs(folder, manifest, faults, lambda ns, _: ns))


def _lines_of(
    lines: dict[tuple[str, str], list[dict[str, object]]], process: str, log: str
) -> list[dict[str, object]]:
    return lines.get((process, log), [])
