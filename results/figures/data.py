"""The numbers of a run's figure, and their storage beside the figure.

A figure is drawn from these numbers alone, so that drawing again needs neither Spark nor the logs.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.figures.drawing import FIGURE_SCHEMA
from results.tables.json_files import IntegrityError, read_json

Row = Mapping[str, Any]


@dataclass(frozen=True)
class FigureData:
    """The numbers of a figure.

    Attributes:
        name: of the figure.
        about: run, fault spans, captions: all content of the figure outside of columns.
        columns: names of the columns.
        rows: whole numbers, decimals and texts, in the order drawn; None for an empty cell.
    """

    name: str
    about: Mapping[str, Any]
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows by name of column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @classmethod
    def read(cls, folder: Path, name: str) -> "FigureData":
        """Return the numbers in `<name>.csv` and `<name>.json`, written by an earlier drawing.

        Raises:
            IntegrityError: the files are missing or are not of this figure.
        """
        words = read_json(folder / f"{name}.json")
        if (words.get("schema"), words.get("figure")) != (
            FIGURE_SCHEMA,
            name,
        ) or "about" not in words:
            raise IntegrityError(f"{folder / name}.json: not the words of figure {name}")
        path = folder / f"{name}.csv"
        if not path.is_file():
            raise IntegrityError(f"{path} is missing")
        columns, *rows = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        values = tuple(tuple(map(_value, row)) for row in rows)
        return cls(name, words["about"], tuple(columns), values)


def figure_data(name: str, about: Mapping[str, Any], rows: Sequence[Row]) -> FigureData:
    """Return the numbers of rows that all have the same columns."""
    columns = tuple(rows[0]) if rows else ()
    return FigureData(name, about, columns, tuple(tuple(row.values()) for row in rows))


def _value(text: str) -> Any:
    """Return a cell's value, as a number if possible."""
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
