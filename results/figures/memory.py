"""Memory of each process of a run over time; shows if memory stays bounded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from brokerd.text import parse_json
from results.figures.drawing import Drawing, Metric, house_style
from results.tables.json_files import ResultsError
from results.tables.manifest import read_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIB: Final = 2**20
_COLOURS: Final = ("#0072b2", "#c4321f", "#00876c", "#9a5fb5", "#d98200", "#1a1a1a")
_OTHERS: Final = "#b5b5b5"
_LONG_S: Final = 600
"""Longer runs have minutes on their axis."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """A process, with the sizes that the process reported, about once a second.

    Attributes:
        at_s: the time since the first report.
        resident_mib: the resident memory at that time.
    """

    name: str
    at_s: Sequence[float]
    resident_mib: Sequence[float]

    @property
    def largest_mib(self) -> float:
        return max(self.resident_mib)

    @property
    def growth_kib_per_minute(self) -> float | None:
        """The slope of the line of least squares through the second half; None of too few rows."""
        half = len(self.at_s) // 2
        at, sizes = self.at_s[half:], self.resident_mib[half:]
        if len(at) < 2 or at[-1] == at[0]:
            return None
        return float(np.polyfit(at, sizes, 1)[0]) * 60 * 1024


def run_memory(spark: "SparkSession | None", run_dir: Path) -> Drawing:
    """Resident memory of every process, over time; needs no Spark.

    Raises:
        ResultsError: no process of the run recorded its size.
    """
    run = read_run(run_dir)
    processes = [*processes_of(Path(run_dir) / "raw")]
    if not processes:
        raise ResultsError(f"{run_dir}: no process of this run reported its memory")
    return draw(run.run_id, processes)


@house_style()
def draw(run_id: str, processes: Sequence[ProcessMemory]) -> Drawing:
    """Return the figure of the reported sizes.

    The fastest growing processes have colours and names.
    """
    from matplotlib.figure import Figure

    longest_s = max(process.at_s[-1] for process in processes)
    unit_s, unit = (60, "min") if longest_s > _LONG_S else (1, "s")
    shown = sorted(processes, key=lambda each: -(each.growth_kib_per_minute or 0))
    named = shown[: len(_COLOURS)]
    picture = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = picture.subplots()
    for process in shown[::-1]:
        colour = _COLOURS[named.index(process)] if process in named else _OTHERS
        axes.plot(
            [at / unit_s for at in process.at_s], process.resident_mib, color=colour, linewidth=1.1
        )
    for place, process in enumerate(named):
        axes.plot([], [], color=_COLOURS[place], label=f"{process.name}: {_growth(process)}")
    if len(shown) > len(named):
        axes.plot([], [], color=_OTHERS, label=f"{len(shown) - len(named)} others")
    axes.set_xlabel(f"time since the first sample of each process ({unit})")
    axes.set_ylabel("resident memory (MiB)")
    axes.set_xlim(0, longest_s / unit_s)
    axes.set_ylim(0, 1.08 * max(process.largest_mib for process in processes))
    axes.legend(title="growth in the second half", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(
        figure=picture,
        columns=("process", "at_s", "resident_mib"),
        rows=[
            (process.name, f"{at:.1f}", f"{size:.2f}")
            for process in processes
            for at, size in zip(process.at_s, process.resident_mib, strict=True)
        ],
        caption=(
            "Resident memory of each process of the run, as it wrote down once a second. Beside "
            "the names of those that grow most: the slope of the line of least squares through "
            f"the second half of the run, which takes {longest_s / 60:.1f} min."
        ),
        scale={"processes": len(processes), "seconds": round(longest_s)},
        metrics=dict(_metrics(processes)),
        run_ids=(run_id,),
    )


def _growth(process: ProcessMemory) -> str:
    growth = process.growth_kib_per_minute
    return "too short to say" if growth is None else f"{round(growth):+d} KiB/min"


def _metrics(processes: Sequence[ProcessMemory]) -> Iterator[tuple[str, Metric]]:
    for process in processes:
        yield f"largest_mib.{process.name}", Metric(process.largest_mib)
        yield f"last_mib.{process.name}", Metric(process.resident_mib[-1])
        if (growth := process.growth_kib_per_minute) is not None:
            yield f"growth_kib_per_minute.{process.name}", Metric(growth)


def processes_of(raw: Path) -> Iterator[ProcessMemory]:
    """Yield every process below `raw` that recorded its size."""
    for path in sorted(raw.glob("*/*/stats.jsonl")):
        rows = [*_sizes(path)]
        if rows:
            first_ns = rows[0][0]
            yield ProcessMemory(
                path.parent.name,
                [(at_ns - first_ns) / 1e9 for at_ns, _ in rows],
                [size / _MIB for _, size in rows],
            )


def _sizes(path: Path) -> Iterator[tuple[int, int]]:
    """Yield (time, size); torn last lines and lines without a size are left out."""
    for line in path.read_bytes().splitlines():
        try:
            row = parse_json(line.decode("utf-8"))
        except ValueError:
            continue
        if isinstance(row, Mapping) and row.get("rss_bytes"):
            yield row["t_ns"], row["rss_bytes"]


FIGURES = {"run.memory": run_memory}
