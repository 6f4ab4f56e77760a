"""Results as files for CI and papers: JUnit XML, Markdown and LaTeX.

Each run, and each target, is a case. INVALID and a missed expectation are failures; UNKNOWN, a run
without a verdict, and a command that did not finish are errors. No case is skipped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from brokerd.text import parse_json
from pubsubctl.console.console import Result, visible
from pubsubctl.console.outputs import write_output
from pubsubctl.errors import VerdictInvalid

COLUMNS: Final = ("case", "protocol", "verdict", "owed", "delivered", "per second", "p50", "p99")
_LATEX: Final = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "µ": r"\textmu{}",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case of a file.

    Attributes:
        name: the run with its point, or the target.
        verdict: VALID, INVALID or UNKNOWN; "" without one.
        failures, errors: reasons; both empty for a case that passed.
        numbers: texts by column.
    """

    name: str
    verdict: str
    failures: Sequence[str] = ()
    errors: Sequence[str] = ()
    numbers: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """Return a row of COLUMNS."""
        row = {**self.numbers, "case": self.name, "verdict": self.verdict or "no verdict"}
        return [row.get(column, "") for column in COLUMNS]


def unfinished(verb: str) -> list[Case]:
    """Return the only case of a command that runs, or was interrupted."""
    return [Case(name=verb, verdict="", errors=(f"{verb} did not finish",))]


def cases_of(result: Result) -> list[Case]:
    """Return the cases of `check`, `bench`, `sweep` or `targets`, by the document of its result."""
    document = result.document
    kind = str(document["schema"]).split("/")[1]
    makers = {"check": _of_check, "bench": _of_bench, "series": _of_series, "targets": _of_targets}
    found = [*makers[kind](document, result)] if kind in makers else []
    if not found:
        texts = tuple(str(error) for error in result.because)
        found = [Case(name=kind, verdict="", errors=texts or ("no run was made",))]
    return found


def _of_check(document: Mapping[str, Any], result: Result) -> Iterator[Case]:
    for row in document["runs"]:
        yield _case(Path(row["run_directory"]), str(row["verdict"] or "").upper(), row)


def _of_bench(document: Mapping[str, Any], result: Result) -> Iterator[Case]:
    reasons = [str(error) for error in result.because] or ["not judged"]
    verdict = document["verdict"] or ""
    yield _case(Path(document["run_directory"]), verdict, {**document, "because": reasons})


def _of_series(document: Mapping[str, Any], result: Result) -> Iterator[Case]:
    is_broken = any(isinstance(error, VerdictInvalid) for error in result.because)
    folder = Path(document["run_directory"]).parent
    for point, about in document.get("points", {}).items():
        for run, verdict in about["runs"].items():
            because = [str(error) for error in result.because if run in str(error)]
            row = {"because": because, "is_allowed": verdict == "INVALID" and not is_broken}
            case = _case(_beside(folder, run), verdict, row)
            yield Case(
                name=f"{point}: {run}",
                verdict=case.verdict,
                failures=case.failures,
                errors=case.errors,
                numbers=case.numbers,
            )
    for missing in document.get("missing", ()):
        name = f"{missing['point']}: {missing['number']}"
        yield Case(name=name, verdict="", errors=("this run is missing",))
    for point, runs in document.get("not_judged", {}).items():
        for run in runs:
            yield Case(name=f"{point}: {Path(run).name}", verdict="", errors=("not judged",))


def _of_targets(document: Mapping[str, Any], result: Result) -> Iterator[Case]:
    for row in document["targets"]:
        failures, errors = _expectations(row["expectations"])
        errors += [row["failed"]] if row["failed"] else []
        run = row["run_directory"]
        verdict = "failed" if errors else "missed" if failures else "reached"
        numbers = {} if run is None else _numbers(Path(run))
        yield Case(
            name=row["id"], verdict=verdict, failures=failures, errors=errors, numbers=numbers
        )


def _case(run: Path, verdict: str, row: Mapping[str, Any]) -> Case:
    because = [str(reason) for reason in row.get("because") or [f"the verdict is {verdict}"]]
    failures, errors = _expectations(row.get("expectations") or ())
    if verdict == "INVALID" and not row.get("is_allowed"):
        failures = [*because, *failures]
    elif verdict not in ("VALID", "INVALID"):
        errors = [*because, *errors]
    return Case(
        name=run.name, verdict=verdict, failures=failures, errors=errors, numbers=_numbers(run)
    )


def _expectations(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return the missed expectations, and those that were not measured."""
    texts = [(row["holds"], f"{row['metric']} {row['wanted']}") for row in rows]
    failures = [f"not as expected: {text}" for holds, text in texts if holds is False]
    return failures, [f"not measured: {text}" for holds, text in texts if holds is None]


def _beside(folder: Path, run: str) -> Path:
    """Return the folder of a run of a series, which may be of another experiment."""
    found = [folder / run, *folder.parent.glob(f"*/{run}")]
    return next((path for path in found if path.is_dir()), found[0])


def _numbers(run: Path) -> dict[str, str]:
    """Return the numbers of a run by column; empty without a run."""
    about, verdict = (_object(run / name) for name in ("manifest.json", "verdict.json"))
    headline, counts = about.get("headline") or {}, verdict.get("counts") or {}
    response = headline.get("response_us") or {}
    found = {"protocol": str(about.get("protocol") or "")}
    found |= {name: f"{counts[name]:,}" for name in ("owed", "delivered") if name in counts}
    if headline.get("delivered_per_s") is not None:
        found["per second"] = f"{headline['delivered_per_s']:,.0f}"
    found |= {
        name: f"{response[name] / 1000:,.2f} ms" for name in ("p50", "p99") if name in response
    }
    return found


def _object(path: Path) -> Mapping[str, Any]:
    try:
        found = parse_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def junit(verb: str, cases: Sequence[Case]) -> str:
    """Return cases as JUnit XML, as CI systems read it."""
    counts = {
        "tests": len(cases),
        "failures": sum(bool(case.failures) and not case.errors for case in cases),
        "errors": sum(bool(case.errors) for case in cases),
        "skipped": 0,
    }
    numbers = {name: str(number) for name, number in counts.items()}
    suites = ElementTree.Element("testsuites", {"name": "pubsubctl", **numbers})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": f"pubsubctl {verb}", **numbers})
    for case in cases:
        row = ElementTree.SubElement(
            suite, "testcase", classname=f"pubsubctl.{verb}", name=visible(case.name)
        )
        kind, reasons = ("error", case.errors) if case.errors else ("failure", case.failures)
        if reasons:
            text = visible("\n".join((*case.errors, *case.failures)))
            about = {"message": visible(reasons[0]), "type": case.verdict or "no verdict"}
            ElementTree.SubElement(row, kind, about).text = text
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _xml(suites) + "\n"


def _xml(element: ElementTree.Element) -> str:
    return ElementTree.tostring(element, encoding="unicode")


def markdown(verb: str, cases: Sequence[Case]) -> str:
    """Return cases as a Markdown table, with the reasons of those that did not pass."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *(case.cells() for case in cases)]
    lines = ["| " + " | ".join(_cell(text) for text in row) + " |" for row in rows]
    whys = [
        f"- **{_cell(case.name)}**: {_cell(reason)}"
        for case in cases
        for reason in (*case.errors, *case.failures)
    ]
    return "\n".join([*lines, *(["", *whys] if whys else [])]) + "\n"


def _cell(text: str) -> str:
    return " ".join(visible(text).split()).replace("|", "\\|")


def latex(verb: str, cases: Sequence[Case]) -> str:
    """Return cases as a LaTeX tabular, without packages."""
    rows = [" & ".join(map(_tex, case.cells())) + r" \\" for case in cases]
    head = " & ".join(map(_tex, COLUMNS)) + r" \\"
    columns = "lll" + "r" * (len(COLUMNS) - 3)
    body = [r"\hline", head, r"\hline", *rows, r"\hline"]
    lines = [f"% pubsubctl {verb}", rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _cell(text).replace("\\|", "|"))


FORMS: Final = {"junit": junit, "markdown": markdown, "latex": latex}


def write_cases(files: Mapping[str, Path], verb: str, cases: Sequence[Case]) -> None:
    """Write cases to files by form, each whole or not at all.

    Raises:
        PreflightFailed: a file cannot be written; names it.
    """
    for form, path in files.items():
        write_output(path, FORMS[form](verb, cases))
