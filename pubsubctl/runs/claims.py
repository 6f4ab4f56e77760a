"""Claims of papers, compared with our figures.

A claim is closed: it names the figure, the number, the paper's value and the tolerance of ours, all
stored beside the code. A claim holds, fails, or was not run; a figure drawn at another scale than
the claim's is no evidence for or against the claim.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from brokerd.text import format_number, nearest
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.hosts.files import check_schema, load_toml, shown, validate
from pubsubctl.runs.runs import read_json

CLAIMS_SCHEMA = "pubsubctl/claims/1"
FIGURE_SCHEMA = "pubsubctl/figure/1"

State = Literal["holds", "fails", "not run"]
Number = int | float


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Tolerance(_Closed):
    """The values that bear a claim out, bounds included."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _check_given(self) -> Self:
        if self.at_least is None and self.at_most is None:
            raise ValueError("at_least, at_most or both")
        if None not in (self.at_least, self.at_most) and self.at_least > self.at_most:  # type: ignore[operator]
            raise ValueError(f"nothing is at least {self.at_least} and at most {self.at_most}")
        return self

    def allows(self, value: float) -> bool:
        """Return True if a value is within the tolerance."""
        low, high = self.at_least, self.at_most
        return (low is None or value >= low) and (high is None or value <= high)

    def __str__(self) -> str:
        bounds = (("≥", self.at_least), ("≤", self.at_most))
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


class WrongSystem(_Closed):
    """A system for which a claim is false.

    Attributes:
        value: the claim's metric for that system; the tolerance must not allow the value.
        system: the behaviour of that system.
    """

    value: Number
    system: Annotated[str, Field(min_length=1)]


class Claim(_Closed):
    """A sentence of a paper that a number can support.

    Attributes:
        metric: the number, by its name in the figure's JSON file.
        paper_value: the paper's value, in words.
        tests: "paper" if the number bears on a statement of the paper, "ours" if the number bears
            on our own model or protocol.
        wrong: a system that must fail the claim.
        needs: another number of that file, which must not be 0 for the metric to be meaningful.
        scale: the required scale of the experiment, by name.
        differs: the difference of our number's definition from the paper's; "" for none.
        set_after_results: the parts chosen after first results; "" for none.
        tolerance_from: how the tolerance follows from the paper's statement, or from our model, if
            it was fixed before the runs; "" if that is not recorded.
        explanation: the reason for a failure, if it is explained.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
    figure: Annotated[str, Field(pattern=r"^[a-z0-9]+\.[a-z0-9]+$")]
    statement: Annotated[str, Field(min_length=1)]
    paper_value: Annotated[str, Field(min_length=1)]
    metric: Annotated[str, Field(min_length=1)]
    tolerance: Tolerance
    tests: Literal["paper", "ours"]
    wrong: WrongSystem
    needs: str = ""
    scale: Annotated[dict[str, int], Field(min_length=1)]
    differs: str = ""
    set_after_results: str = ""
    tolerance_from: str = ""
    explanation: str = ""

    @model_validator(mode="after")
    def _fails_for_a_wrong_system(self) -> Self:
        if self.tolerance.allows(self.wrong.value):
            raise ValueError(
                f"{self.tolerance} allows {self.wrong.value:g}, which a wrong system measures "
                f"({self.wrong.system})"
            )
        return self


class ClaimsFile(_Closed):
    """All claims of a paper."""

    schema_: Annotated[str, Field(alias="schema")]
    paper: Annotated[str, Field(min_length=1)]
    claims: Annotated[list[Claim], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [claim.name for claim in self.claims]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise ValueError(f"two claims are called {name!r}")
        return self


@dataclass(frozen=True, slots=True)
class Measurement:
    """The numbers of a drawn figure.

    Attributes:
        metrics: name → value and, if there is one, both ends of the 95 % interval.
        run_ids: the runs behind the figure.
        archived: True if the runs came with the repository.
    """

    figure: str
    scale: Mapping[str, Any]
    metrics: Mapping[str, tuple[float, tuple[float, float] | None]]
    run_ids: tuple[str, ...]
    source: str
    archived: bool = False

    @property
    def origin(self) -> str:
        """Return the runs behind the figure, and their scale."""
        size = ", ".join(f"{name} = {value}" for name, value in self.scale.items())
        runs = f"{'archived ' if self.archived else ''}run {', '.join(self.run_ids)}"
        return f"{runs}, with {size}" if size else runs


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a claim.

    Attributes:
        ours: the measured value; None if the claim was not run.
        interval: 95 %, if the figure contains an interval.
        because: the reason for a missing run, or the runs and scale behind the outcome.
    """

    claim: Claim
    state: State
    ours: float | None
    interval: tuple[float, float] | None
    because: str

    def row(self) -> dict[str, Any]:
        """Return the outcome as a row of the `claims` table."""
        return {
            "claim": self.claim.name,
            "figure": self.claim.figure,
            "statement": self.claim.statement,
            "metric": self.claim.metric,
            "paper_value": self.claim.paper_value,
            "tolerance": str(self.claim.tolerance),
            "tests": self.claim.tests,
            "wrong": f"{self.claim.wrong.value:g}: {self.claim.wrong.system}",
            "ours": "" if self.ours is None else format_number(self.ours),
            "ci": "" if self.interval is None else " … ".join(map(format_number, self.interval)),
            "verdict": self.state,
            "because": self.because,
            "differs": self.claim.differs,
            "set_after_results": self.claim.set_after_results,
            "tolerance_from": self.claim.tolerance_from,
            "explanation": self.claim.explanation if self.state == "fails" else "",
        }


def load_claims(path: Path) -> list[Claim]:
    """Return the claims in a file.

    Raises:
        UserError: names file, line, key, value and the valid values.
    """
    file = load_toml(path)
    check_schema(file, CLAIMS_SCHEMA)
    return validate(ClaimsFile, file).claims


def measurement(document: Mapping[str, Any], source: str, *, archived: bool = False) -> Measurement:
    """Return the content of a figure's JSON file.

    Raises:
        IntegrityError: the document is no such file.
    """
    if document.get("schema") != FIGURE_SCHEMA:
        raise IntegrityError(f"{source}: not the JSON file of a figure")
    try:
        return Measurement(
            figure=document["figure"],
            scale=document["scale"],
            metrics={
                name: (
                    float(found["value"]),
                    (float(found["low"]), float(found["high"])) if "low" in found else None,
                )
                for name, found in document["metrics"].items()
            },
            run_ids=tuple(document["run_ids"]),
            source=source,
            archived=archived,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{source}: {type(error).__name__}: {error}") from None


def measurements(runs: Path, figures: Iterable[str]) -> list[Measurement]:
    """Return the measurements of the named figures, drawn of runs in a folder, or of one run.

    Raises:
        IntegrityError: a file beside a figure has changed; names the command that draws it again.
    """
    return [
        measurement(_read_sealed_json(path, figure), str(path))
        for figure in dict.fromkeys(figures)
        for run in _runs_of(runs)
        if (path := run / "figures" / f"{figure}.json").is_file()
    ]


def _runs_of(folder: Path) -> list[Path]:
    """Return all runs in a folder, or the folder if it is a run."""
    is_run = (folder / "manifest.json").is_file()
    return [folder] if is_run else sorted(folder.glob("*/[0-9]*"))


def _read_sealed_json(path: Path, figure: str) -> dict[str, Any]:
    """Return the JSON file beside a figure, verified; claims do not draw the figure again."""
    from results.tables.json_files import IntegrityError as Damaged
    from results.tables.seals import verify_derived

    run = path.parents[1]
    try:
        verify_derived(run, path.relative_to(run).as_posix())
    except Damaged as error:
        raise IntegrityError(f"{error}; `pubsubctl plot {figure} {run}` draws it again") from None
    return read_json(path)


def undrawn(runs: Path, figures: Iterable[str]) -> list[tuple[str, Path]]:
    """Return (figure, run) of the named figures that could be drawn of a run, and were not."""
    wanted = {*figures}
    return [
        (figure, run)
        for run in _runs_of(runs)
        if (path := run / "manifest.json").is_file()
        and (manifest := read_json(path)).get("state") == "complete"
        and (figure := str(manifest.get("figure"))) in wanted
        and not (run / "figures" / f"{figure}.json").is_file()
    ]


def judge(claims: Iterable[Claim], measurements: Sequence[Measurement]) -> list[Outcome]:
    """Return the outcome of every claim, by the latest measurement of its figure at its scale.

    Raises:
        UserError: a claim requires a number that its figure lacks.
    """
    return [_judge(claim, measurements) for claim in claims]


def _judge(claim: Claim, measurements: Sequence[Measurement]) -> Outcome:
    drawn = [found for found in measurements if found.figure == claim.figure]
    if not drawn:
        return Outcome(claim, "not run", None, None, f"{claim.figure} was not drawn")
    fitting = [found for found in drawn if not _misfit(claim, found)]
    if not fitting:
        latest = max(drawn, key=_age)
        why = f"{claim.figure} was drawn {_misfit(claim, latest)}"
        why += " (archived run)" if latest.archived else ""
        return Outcome(claim, "not run", None, None, why)
    found = max(fitting, key=_age)
    for name in (claim.metric, *([claim.needs] if claim.needs else ())):
        if name not in found.metrics:
            raise UserError(
                f"claim {claim.name}: {found.source} has no number called {shown(name)}"
                f"{nearest(name, [*found.metrics])}"
            )
    if claim.needs and not found.metrics[claim.needs][0]:
        return Outcome(claim, "not run", None, None, f"{claim.needs} is 0: nothing was compared")
    value, interval = found.metrics[claim.metric]
    state: State = "holds" if claim.tolerance.allows(value) else "fails"
    return Outcome(claim, state, value, interval, found.origin)


def _misfit(claim: Claim, found: Measurement) -> str:
    """Return the differences of the measurement's scale from the claim's, or ""."""
    return ", ".join(
        f"with {name} = {found.scale.get(name, 'unknown')} instead of {wanted}"
        for name, wanted in claim.scale.items()
        if found.scale.get(name) != wanted
    )


def _age(found: Measurement) -> tuple[str, ...]:
    return found.run_ids  # run ids begin with the time
