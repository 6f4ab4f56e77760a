"""From run directories to one HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from results.report.reading import RunStory, read_story

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_report(spark: "SparkSession", run_dirs: Sequence[Path], output: Path) -> Path:
    """Write one self-contained HTML page on one run, or on several side by side.

    The runs must have been checked (`results.checks.check_run`); one that was not is shown as
    not judged. Figures of a run are drawn first where they can be. The same run directories
    give the same bytes.

    Returns:
        The file written, whole or not at all.

    Raises:
        ResultsError: there is no run in a folder.
        IntegrityError: a file of a run is not what was written when it ended.
    """
    stories = [read_story(spark, Path(run_dir)) for run_dir in run_dirs]
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.new")
    temporary.write_text(render(stories), encoding="utf-8")
    temporary.replace(output)
    return output


def render(stories: Sequence[RunStory]) -> str:
    """The page for these runs."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("results.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(stories=stories)
