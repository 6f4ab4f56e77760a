"""Lines with a band that shows the spread of repetitions or samples."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^"
DASHES = ("-", "--", "-.", ":")


def line_with_band(
    axes: "Axes",
    x: Sequence[float],
    middle: Sequence[float],
    band: tuple[Sequence[float], Sequence[float]] | None,
    colour: str,
    *,
    alpha: float = 0.18,
    **line: Any,
) -> None:
    """Draw a line, and shade the band around the line.

    Args:
        band: the lower ends and the upper ends; None for no band.
        line: style and label of the line.
    """
    if band is not None:
        axes.fill_between(x, *band, color=colour, alpha=alpha, linewidth=0)
    axes.plot(x, middle, color=colour, **line)
