"""Lines with the band around them that says how far repetitions or draws lie apart."""

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
    """Draw a line, and shade what lies between the two ends of its band.

    Args:
        band: the lower ends and the upper ones; None for no band.
        line: how the line looks, and what it is called.
    """
    if band is not None:
        axes.fill_between(x, *band, color=colour, alpha=alpha, linewidth=0)
    axes.plot(x, middle, color=colour, **line)
