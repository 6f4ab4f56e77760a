"""From the records of a run to verdicts, tables and figures."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from results.opened_run import OpenRun as OpenRun
    from results.opened_run import open_run as open_run

__all__ = ["OpenRun", "open_run"]


def __getattr__(name: str) -> Any:
    """Return a name of `opened_run`, which imports pandas: most users of the package need none."""
    if name in __all__:
        from results import opened_run

        return getattr(opened_run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
