"""Output of `doctor`: similar hosts share a line, and problems are never hidden."""

from collections.abc import Iterator, Sequence

from pubsubctl.doctor.health_check import Finding
from pubsubctl.inventory.host_ranges import in_ranges


def worth_telling(findings: Sequence[Finding], *, verbose: bool, quiet: bool) -> list[Finding]:
    """Return the findings to print, in the order of the checks.

    Hosts with the same finding of a check are merged. Healthy hosts are merged as well, even if the
    texts differ, with the text of the first.

    Args:
        verbose: print every finding separately.
        quiet: print only problems.
    """
    if quiet:
        findings = [row for row in findings if row.severity != "ok"]
    if verbose:
        return list(findings)
    checks = dict.fromkeys(row.id for row in findings)
    return [row for check in checks for row in _of_check(findings, check)]


def tally(findings: Sequence[Finding]) -> str:
    """Return the number of findings per severity."""
    ok, warn, fail = (
        sum(row.severity == severity for row in findings) for severity in ("ok", "warn", "fail")
    )
    return f"{ok} ok, {warn} warn, {fail} FAIL"


def _of_check(findings: Sequence[Finding], check: str) -> Iterator[Finding]:
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for row in findings:
        if row.id == check:
            key = (row.severity, _said(row), row.remedy) if row.host else (row.text,)
            alike.setdefault(key, []).append(row)
    well = [rows for rows in alike.values() if rows[0].host and rows[0].severity == "ok"]
    for rows in alike.values():
        if rows in well and len(well) > 2:
            if rows is well[0]:
                yield _together([row for each in well for row in each], "well, such as ")
        else:
            yield _together(rows)


def _together(rows: Sequence[Finding], like: str = "") -> Finding:
    """Return a single finding for all hosts, with the text of the first."""
    first = rows[0]
    if len(rows) == 1:
        return first
    said = f"{like}{first.text}" if like else _said(first)
    hosts = in_ranges(dict.fromkeys(row.host for row in rows))
    return Finding(first.id, first.severity, f"{hosts}: {said}", first.remedy)


def _said(row: Finding) -> str:
    return row.text.removeprefix(f"{row.host}: ")
