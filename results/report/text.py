"""Numbers and events in words for people."""

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from brokerd.model.fault_verbs import CLIENT_VERBS, MACHINE_VERBS, SET_VERBS, VERB_TABLE
from brokerd.text import counted as counted
from brokerd.text import format_number
from results.report.run_reader import RunSummary
from results.rules.timing import publisher_entries
from results.rules.verdict_text import describe_absent, verdict_in_words, with_publisher_names
from results.tables.manifest import Run

SECOND_NS = 1_000_000_000

VIOLATIONS: Mapping[str, str] = {
    "missing": "missing",
    "duplicate": "repeated",
    "reordered": "out of order",
    "phantom": "never published",
    "rejected": "delivered though refused",
    "wrong_match": "delivered though not matching",
    "corrupted": "altered",
    "sequence_reuse": "numbers used twice",
    "gap_not_permitted": "declared lost",
    "withheld_unjustified": "withheld without a reason",
    "withheld_late": "withheld behind others of their source",
    "withheld_delivered": "delivered though announced as withheld",
}


def load_template(name: str) -> jinja2.Template:
    """Return the template of a page; undefined names are errors, and text is made visible."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("results.report"),
        autoescape=True,
        finalize=visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def visible(value: Any) -> Any:
    """Return text with every invisible or control character replaced by a visible character."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "".join(
        "\N{REPLACEMENT CHARACTER}"
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in "\n\t"
        else letter
        for letter in value
    )


def count(value: int | None) -> str:
    """Return a number such as `18,007`; a dash for None."""
    return "–" if value is None else f"{value:,}"


def seconds(stamp_ns: int | None, digits: int = 3) -> str:
    """Return a time or a duration in seconds, as digits only; a dash for None."""
    if stamp_ns is None:
        return "–"
    text = f"{stamp_ns / SECOND_NS:,.{digits}f}"
    return text.replace("-", "−")


def latency(value_us: int | None) -> str:
    """Return a latency with three significant digits and a suitable unit."""
    if value_us is None:
        return "–"
    size = abs(value_us)
    if size < 1_000:
        return f"{value_us} µs".replace("-", "−")
    scaled, unit = (value_us / 1_000, "ms") if size < 999_500 else (value_us / 1_000_000, "s")
    digits = max(0, 3 - len(str(int(abs(scaled)))))
    return f"{scaled:.{digits}f} {unit}".replace("-", "−")


def protocol(summary: RunSummary) -> str:
    """Return the title of the run's protocol; in a comparison, its label there."""
    labels = summary.run.manifest.get("labels") or {}
    return str(labels.get("compared") or summary.run.words.title)


def with_publishers(summary: RunSummary, text: str) -> str:
    """Return a text in which the names of publishers replace those of their sources."""
    return with_publisher_names(text, summary.publishers)


def bare(text: str) -> str:
    """Return a name without its article: `δ tree`."""
    return text.removeprefix("the ")


def title(text: str) -> str:
    """Return a name without its article, capitalised like a sentence."""
    return sentence(bare(text))


def sentence(text: str) -> str:
    """Return text with a capital letter at its start, unless it starts with a Greek letter."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def verdict_word(summary: RunSummary) -> str:
    """Return the displayed verdict, with its restriction."""
    is_calm = bool(summary.verdict.get("calm"))
    return verdict_in_words(summary.word, is_calm=is_calm, brokers=summary.run.brokers_label)


def balance(summary: RunSummary) -> str:
    """Return the number of owed deliveries as the sum of its parts."""
    parts = [f"{summary.count_of('delivered') or 0:,} delivered"]
    for name in ("missing", "undecided"):
        parts += [f"{summary.count_of(name):,} {name}"] if summary.count_of(name) else []
    return f"{summary.count_of('owed') or 0:,} owed = {' + '.join(parts)}"


def outcome(summary: RunSummary) -> str:
    """Return the outcome of the run, in a sentence or two."""
    name = sentence(protocol(summary))
    owed, at_risk = summary.count_of("owed") or 0, summary.exercise_of("at_risk_deliveries")
    text = withheld(summary)
    if summary.word == "VALID":
        if at_risk:
            return (
                f"{name} lost nothing. {counted(at_risk, 'delivery')} of {owed:,} "
                f"{'was' if at_risk == 1 else 'were'} put at risk, and every one arrived.{text}"
            )
        return (
            f"{name} delivered everything it owed. Nothing was broken on purpose in this run.{text}"
        )
    if summary.word == "INVALID":
        found = f"{violations(summary)}. {sentence(balance(summary))}"
        return f"{name} broke the guarantee: {found}.{text}"
    if summary.word == "UNKNOWN":
        return f"Whether {protocol(summary)} kept the guarantee is not known from this run."
    return f"This run of {protocol(summary)} was not judged yet; run `pubsubctl check`."


def paragraph(summary: RunSummary) -> str:
    """Return promise, load, faults and outcome of a run, in one paragraph."""
    run = summary.run
    guarantee = str(summary.verdict.get("guarantee") or "").strip()
    promise = f"The run is judged against {guarantee}. " if guarantee else ""
    publishers = len(publisher_entries(run.workload))
    subscribers = len(summary.subscriptions)
    load = (
        f"{sentence(counted(publishers, 'publisher'))} published for {_whole(summary.measured_ns)}"
    )
    load += f" to {counted(subscribers, 'subscription')}" if subscribers else ""
    load += f", on {counted(len(run.topology['brokers']), 'broker')}. "
    faults = [f"{row['verb']} {row['target']}" for row in run.fault_rows]
    shown = ", ".join(faults[:4]) + (f" and {len(faults) - 4} more" if len(faults) > 4 else "")
    broken = f"{sentence(counted(len(faults), 'fault'))}: {shown}. " if faults else ""
    took_s = (run.manifest.get("drain") or {}).get("took_s")
    drained = f" The drain took {took_s:.1f} s." if isinstance(took_s, int | float) else ""
    values = (run.manifest.get("headline") or {}).get("response_us") or {}
    speed = ""
    if isinstance(values.get("p50"), int | float) and isinstance(values.get("p99"), int | float):
        median, high = latency(round(values["p50"])), latency(round(values["p99"]))
        speed = f" Half of all deliveries took at most {median}, and 99 % at most {high}."
    return f"{promise}{load}{broken}{outcome(summary)}{speed}{drained}"


def _whole(duration_ns: int) -> str:
    return f"{duration_ns / SECOND_NS:g} s"


def withheld(summary: RunSummary) -> str:
    """Return a sentence about withheld publications with a leading blank; empty if nothing."""
    total = summary.count_of("withheld") or 0
    if not total:
        return ""
    by = (summary.verdict.get("counts") or {}).get("withheld_by") or {}
    named = ", ".join(f"{n:,} by {partition}" for partition, n in [*by.items()][:8])
    more = f" and {len(by) - 8} more" if len(by) > 8 else ""
    return f" {total:,} more were withheld and announced: {named}{more}."


def violations(summary: RunSummary) -> str:
    """Return the violations of a run: `1,204 missing, 3 repeated`."""
    return ", ".join(
        f"{number:,} {VIOLATIONS.get(kind, kind)}" for kind, number in summary.violations.items()
    )


def recovery(summary: RunSummary, recovery: Mapping[str, Any]) -> str:
    """Return the risk and recovery of a fault, in sentences."""
    target, verb = recovery["target"], recovery["verb"]
    from_ns, to_ns, ended_by = recovery["from_ns"], recovery["to_ns"], recovery["ended_by"]
    happened = f"At {seconds(from_ns, 2)} s {_place(verb, target, summary)} {_effect(verb)}"
    absorbed = _describe_absorbed(summary, recovery)
    if to_ns is None:
        happened += " until the end of the run. "
    elif ended_by in ("kill", "cut") and verb != ended_by:
        lasted = f"{seconds(to_ns - from_ns, 2)} s"
        end = "killed" if ended_by == "kill" else "cut"
        held = f" with {counted(absorbed, 'publication')} inside" if absorbed else ""
        happened += f" for {lasted}, then was {end}{held}. "
    else:
        happened += f" for {seconds(to_ns - from_ns, 2)} s. "
    at_risk, recovered = recovery["at_risk"], recovery["recovered"]
    if not at_risk:
        return happened + "Nothing was at risk."
    verb_form = "was" if at_risk == 1 else "were"
    route = "for" if verb in CLIENT_VERBS else "routed through"
    happened += f"{counted(at_risk, 'delivery')} {verb_form} {route} it meanwhile; "
    if recovered < at_risk:
        lost = at_risk - recovered
        if not recovered:
            return happened + ("it never arrived." if at_risk == 1 else "none arrived.")
        return happened + f"{recovered:,} arrived, {lost:,} never did."
    happened += "it arrived" if at_risk == 1 else "all arrived"
    after_ns = recovery["recovered_after_ns"]
    if after_ns is None:
        return happened + "."
    ending = {"kill": "the kill", "cut": "the cut"}.get(ended_by, "it ended")
    relation = "after" if after_ns >= 0 else "before"
    return f"{happened}, the last {seconds(abs(after_ns), 2)} s {relation} {ending}."


def churn(summary: RunSummary) -> str:
    """Return the absences of subscribers and the deliveries at risk, in sentences."""
    found = summary.verdict.get("churn")
    if not found:
        return ""
    absences, at_risk = found["absences"], found["at_risk"]
    happened = (
        f"{counted(found['subscribers'], 'subscriber')} lost the connection and returned, "
        f"{counted(absences, 'time')} in all, after {seconds(found['away_ns_mean'], 2)} s on the "
        f"mean. {counted(at_risk, 'delivery')} were for them meanwhile; "
    )
    if found["recovered"] < at_risk:
        lost = at_risk - found["recovered"]
        return f"{happened}{found['recovered']:,} arrived, {lost:,} never did."
    after_ns = found["recovered_after_ns_max"]
    last = "" if after_ns is None else f", the last {seconds(after_ns, 2)} s after the return"
    return f"{happened}all arrived{last}."


def _effect(verb: str) -> str:
    """Return the effect of a verb on its target, in the past tense."""
    return (VERB_TABLE[verb].past if verb in VERB_TABLE else "") or verb


def _place(verb: str, target: str, summary: RunSummary) -> str:
    if verb in MACHINE_VERBS:
        return f"machine {target}"
    if verb in SET_VERBS:
        sets = [one.replace(",", ", ") for one in target.split("|")]
        return " and ".join(sets) if len(sets) > 1 else f"{sets[0]} and all others"
    if verb in CLIENT_VERBS:
        return f"client {target}"
    if target in summary.run.topology["brokers"]:
        return target
    return f"the link {target}"


def _describe_absorbed(summary: RunSummary, recovery: Mapping[str, Any]) -> int:
    return sum(
        row.get("absorbed_msgs") or 0
        for row in summary.run.fault_rows
        if row["fault_id"] in recovery["faults"]
    )


def fault_clock(summary: RunSummary) -> str:
    """Return the clock of the fault times with its accuracy, in a sentence."""
    errors = [row.get("err_ns") for row in summary.run.fault_rows]
    text = "Seconds since measuring began, on the clock of the machine that measured"
    if None in errors:
        return f"{text}; the clocks of all machines were not compared with it."
    worst_ns = max((error or 0 for error in errors), default=0)
    if not worst_ns:
        return f"{text}."
    return (
        f"{text}; the clocks of other machines are known to ±{format_number(worst_ns / 1e6, 2)} ms."
    )


def describe_recovery(recovery: Mapping[str, Any]) -> str:
    """Return the recovery of deliveries at risk from a fault, for a table."""
    at_risk, recovered = recovery["at_risk"], recovery["recovered"]
    if not at_risk:
        return "nothing at risk"
    if recovered < at_risk:
        return f"{at_risk - recovered:,} of {at_risk:,} never arrived"
    after_ns = recovery["recovered_after_ns"]
    last = "" if after_ns is None else f", the last after {seconds(max(0, after_ns), 2)} s"
    return f"all {at_risk:,} arrived{last}"


def done(summary: RunSummary) -> str:
    """Return the violations of the run, whether promised or not."""
    if not summary.verdict:
        return "–"
    found = violations(summary) or describe_absent(summary.order)
    undecided = summary.count_of("undecided")
    return f"{found}; {undecided:,} undecided" if undecided else found


def further_losses(summary: RunSummary) -> str:
    """Return losses besides deliveries at risk, such as while a broker was down, or ""."""
    lost = summary.exercise_of("at_risk_deliveries") - summary.exercise_of("recovered")
    further = summary.violations.get("missing", 0) - lost
    if not summary.verdict.get("recoveries") or further <= 0:
        return ""
    count_text = counted(further, "delivery")
    return f"Another {count_text}, of publications sent outside these times, never arrived either."


def resent(summary: RunSummary) -> str:
    """Return the brokers' counters about the recovery, in a sentence; may be empty."""
    lost, resent = summary.exercise_of("sessions_lost"), summary.exercise_of("resent_publications")
    twice = summary.exercise_of("duplicates_received")
    if not (lost or resent or twice):
        return ""
    parts = [f"the brokers saw {counted(lost, 'session')} end"]
    if resent:
        parts.append(f"sent {counted(resent, 'publication')} again")
    if twice:
        parts.append(f"recognised {counted(twice, 'copy')} as seen before")
    text = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return f"In this run {text}."


def command(arguments: Sequence[str]) -> str:
    """Return a command as typed, without the folder of the program."""
    if not arguments:
        return ""
    program = arguments[0].removesuffix("/__main__.py").rpartition("/")[2]
    return shlex.join([program, *arguments[1:]])


def argument(run: Run) -> str:
    """Return the word that names a run in a command: its id, or its folder outside of runs."""
    return run.run_id if run.folder.name == run.run_id else shlex.quote(str(run.folder))


def span(from_utc: str | None, to_utc: str | None) -> str:
    """Return a period: `2026-11-21 10:16:53 to 10:17:59 UTC`."""
    if not from_utc:
        return "–"
    start = from_utc[:19].replace("T", " ")
    if not to_utc:
        return f"{start} UTC, never ended"
    end = to_utc[:19].replace("T", " ")
    return f"{start} to {end[11:] if end[:10] == start[:10] else end} UTC"


def clocks(summary: RunSummary) -> list[str]:
    """Return the reference clock of latencies, and the accuracy between clocks."""
    clocks = summary.run.clocks
    host = clocks.reference or "one machine"
    parts = [f"latencies have both stamps of one clock, that of {host}"]
    others = [row for row in clocks.rows if not row.same_clock and row.phase == "before"]
    if others:
        worst_ns = max(row.err_ns for row in others)
        parts.append(
            f"{counted(len(others), 'other clock')} put on its time line, to "
            f"±{format_number(worst_ns / 1e6, 3)} ms at worst"
        )
    for across in summary.across_clocks:
        count_text = f"{counted(across.n, 'delivery')} between clocks"
        if across.judgement.is_announced:
            count_text += (
                f": median {format_number(across.median_us / 1000, 3)} ms; {across.judgement.words}"
            )
        else:
            count_text += f": latency {across.judgement.words}"
        parts.append(count_text)
    return parts
