"""Tests of the figure of the memory of processes, from their records."""

from pathlib import Path

import pytest

from results.figures.catalogue import draw
from results.figures.memory import ProcessMemory, processes_of, run_memory
from results.figures.memory import draw as drawn
from results.tables.json_files import ResultsError
from tests.helpers.runs import Scenario, write_demo_run

SCENARIO = Scenario(measure_s=5.0, stall_s=1.0, kill_s=1.8, restart_s=3.0)


def test_steady_growth_is_distinguished_from_initial_growth() -> None:
    at_s = [float(second) for second in range(100)]
    filled = ProcessMemory("filled", at_s, [min(50.0, 10.0 + second) for second in at_s])
    leaking = ProcessMemory("leaking", at_s, [30.0 + second / 60 for second in at_s])
    drawing = drawn("20300101T000000Z-abcdef", [filled, leaking])
    assert filled.growth_kib_per_minute == pytest.approx(0.0, abs=1e-6)
    assert leaking.growth_kib_per_minute == pytest.approx(1024.0)
    assert drawing.metrics["growth_kib_per_minute.leaking"].value == pytest.approx(1024.0)
    assert drawing.metrics["largest_mib.filled"].value == 50.0
    labels = [text.get_text() for text in drawing.figure.axes[0].get_legend().get_texts()]
    assert labels == ["leaking: +1024 KiB/min", "filled: +0 KiB/min"]


def test_the_figure_has_each_process_of_a_run(tmp_path: Path) -> None:
    run = write_demo_run(tmp_path, SCENARIO)
    written = {path.suffix for path in draw("run.memory", None, run)}
    assert written == {".svg", ".png", ".csv", ".json"}
    drawing = run_memory(None, run)
    assert {"p1", "b1", "b2", "s1"} <= {row[0] for row in drawing.rows}
    assert drawing.metrics["last_mib.p1"].value == pytest.approx(31_000_000 / 2**20)


def test_a_torn_line_costs_no_samples_and_a_process_without_sizes_is_omitted(
    tmp_path: Path,
) -> None:
    for name, content in (
        ("b1", '{"t_ns": 5000000000, "rss_bytes": 1048576}\n{"t_ns": 60'),
        ("b2", '{"t_ns": 5000000000}\n'),
    ):
        (tmp_path / "n1" / name).mkdir(parents=True)
        (tmp_path / "n1" / name / "stats.jsonl").write_text(content)
    (found,) = processes_of(tmp_path)
    assert found == ProcessMemory("b1", [0.0], [1.0])
    assert found.growth_kib_per_minute is None


def test_a_run_without_statistics_has_no_such_figure(tmp_path: Path) -> None:
    run = write_demo_run(tmp_path, SCENARIO)
    for path in run.glob("raw/*/*/stats.jsonl"):
        path.unlink()
    sums = run / "SHA256SUMS"
    kept = [line for line in sums.read_text().splitlines(True) if "stats.jsonl" not in line]
    sums.write_text("".join(kept))
    with pytest.raises(ResultsError, match="no process of this run reported its memory"):
        draw("run.memory", None, run)
