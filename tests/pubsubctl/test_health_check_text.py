"""Stories about the output of `doctor` for many hosts."""

from pubsubctl.doctor.health_check import Finding, select_findings, tally

HOSTS = [f"n{number:02d}" for number in range(1, 9)]
ALIKE = [Finding("cores", "ok", f"{host}: 2 cores", "", host) for host in HOSTS]
EACH_ITS_OWN = [
    Finding("reach", "ok", f"{host}: answers at 10.0.0.{host[1:]}", "", host) for host in HOSTS
]


def texts(findings: list[Finding], *, verbose: bool = False, quiet: bool = False) -> list[str]:
    """Return the printed lines of findings."""
    return [row.text for row in select_findings(findings, verbose=verbose, quiet=quiet)]


def test_hosts_that_are_alike_share_a_line() -> None:
    here = Finding("cores", "ok", "4 cores")
    assert texts([here, *ALIKE]) == ["4 cores", "n[01:08]: 2 cores"]


def test_hosts_that_are_well_in_ways_of_their_own_share_one_with_an_example() -> None:
    assert texts(EACH_ITS_OWN) == ["n[01:08]: well, such as n01: answers at 10.0.0.01"]


def test_a_problem_is_reported_for_each_differing_host() -> None:
    down = Finding("reach", "fail", "n03: connection refused", "help", "n03")
    hung = [Finding("reach", "fail", f"{host}: no answer", "help", host) for host in ("n05", "n06")]
    rows = [row for row in EACH_ITS_OWN if row.host not in ("n03", "n05", "n06")]
    assert texts([*rows[:2], down, *rows[2:], *hung]) == [
        "n01, n02, n04, n07, n08: well, such as n01: answers at 10.0.0.01",
        "n03: connection refused",
        "n05, n06: no answer",
    ]


def test_a_remedy_that_differs_keeps_findings_apart() -> None:
    rows = [
        Finding("host-key", "fail", f"{host}: unknown", f"trust {host}", host) for host in HOSTS[:3]
    ]
    assert texts(rows) == ["n01: unknown", "n02: unknown", "n03: unknown"]


def test_doctor_prints_all_findings_or_only_problems() -> None:
    slow = Finding("fsync", "warn", "n02: fsync takes 40 ms", "another disk", "n02")
    rows = [*ALIKE, slow]
    assert texts(rows, verbose=True) == [row.text for row in rows]
    assert texts(rows, quiet=True) == ["n02: fsync takes 40 ms"]
    assert tally(rows) == "8 ok, 1 warn, 0 FAIL"
