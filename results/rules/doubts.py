"""Doubts about a run, from all facts except its counts."""

from collections.abc import Iterator

from results.rules.facts import RunFacts
from results.rules.findings import Findings
from results.rules.terms import doubt
from results.rules.verdicts import doubts_about_faults, doubts_about_recoveries
from results.witnesses.online import doubts_about_findings


def doubts_of(facts: RunFacts, findings: Findings) -> list[str]:
    """Return all doubts, except doubts that follow from the counts."""
    found = [*facts.doubts, *_check_notices(facts), *_check_fences(facts, findings)]
    for pubend, source in findings.sources.items():
        if source.other_content:
            found.append(doubt("other_content", source=pubend))
        for incarnation, (n, first) in source.undone.items():
            found.append(
                doubt("unanswered", source=pubend, incarnation=incarnation, n=n, first=first)
            )
    found += doubts_about_findings(facts.online, findings.counts.violations, facts.order)
    if facts.order == "topic" and not facts.has_topics:
        found.append(doubt("no_topic"))
    found += [doubt("unplaced", who=name, n=n) for name, n in sorted(findings.unplaced.items())]
    found += doubts_about_faults(facts.faults)
    if findings.other_kind:
        found.append(doubt("kind", n=findings.other_kind))
    if findings.too_soon:
        found.append(doubt("too_soon", n=findings.too_soon))
    return [*found, *doubts_about_recoveries(facts.faults, findings.recoveries)]


def _check_notices(facts: RunFacts) -> Iterator[str]:
    sources = {source.pubend for source in facts.sources}
    for subscription in facts.subscriptions:
        if None not in (subscription.issued_ns, subscription.accepted_ns):
            continue
        for sub_id, pubend in facts.notices:
            if sub_id == subscription.sub_id and pubend in sources:
                yield doubt("withheld_without_time", who=sub_id, source=pubend)


def _check_fences(facts: RunFacts, findings: Findings) -> Iterator[str]:
    """Yield doubts about absent fences, and fences that do not enclose the measurement."""
    for pubend, source in findings.sources.items():
        if source.opened_ns is None or source.closed_ns is None:
            yield doubt("no_fences", source=pubend)
            continue
        for subscription in facts.subscriptions:
            error_ns = facts.clock_errors.get((subscription.sub_id, pubend), 0)
            if subscription.accepted_ns is None or error_ns is None:
                continue
            if subscription.accepted_ns > source.opened_ns + error_ns:
                yield doubt("late_start", who=subscription.sub_id, source=pubend)
        error_ns = facts.timeline_errors.get(pubend, 0)
        until_ns = facts.measured_until_ns
        if None not in (until_ns, error_ns) and source.closed_ns + error_ns < until_ns:  # type: ignore[operator]
            yield doubt("closed_early", source=pubend)
