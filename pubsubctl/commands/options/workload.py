"""Options that change a workload: load, topology, protocol and any other key."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from bench.spec.keys import Overrides

_PANEL = "Workload"

Workload = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A path, or the bare name of a file in bench/workloads.",
        autocompletion=names.workloads,
    ),
]
Faults = Annotated[
    str | None,
    typer.Option(
        "--faults",
        metavar="SCHEDULE",
        help="Inject the faults of this schedule.",
        autocompletion=names.schedules,
        rich_help_panel="Faults",
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="Run this protocol.",
        rich_help_panel=_PANEL,
        autocompletion=names.protocols,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options that replace values of a workload. None keeps the value of the file."""

    protocol: Protocol = None
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology", metavar="NAME", help="Run on this topology.", rich_help_panel=_PANEL
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", min=0, help="Draw from this seed.", rich_help_panel=_PANEL
        ),
    ] = None
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            "-r",
            metavar="RATE",
            help="Publish at this rate per publisher: 25/s, or max.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    duration: Annotated[
        str | None,
        typer.Option(
            "--duration",
            "-d",
            metavar="TIME",
            help="Measure for this time: 10s.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    warmup: Annotated[
        str | None,
        typer.Option(
            "--warmup",
            metavar="TIME",
            help="Load for this time before the measurement: 2s.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            "-s",
            metavar="SIZE",
            help="Publish payloads of this size: 100B, 4KiB.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    publishers: Annotated[
        int | None,
        typer.Option(
            "--publishers",
            "-p",
            metavar="N",
            help="Start N publishers at each of their brokers.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    subscribers: Annotated[
        int | None,
        typer.Option(
            "--subscribers",
            "-c",
            metavar="N",
            help="Start N subscribers at each of their brokers.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    no_churn: Annotated[
        bool,
        typer.Option(
            "--no-churn", help="Ignore the churn of the workload.", rich_help_panel=_PANEL
        ),
    ] = False
    records: Annotated[
        str | None,
        typer.Option(
            "--records",
            metavar="full|sampled|hist",
            rich_help_panel=_PANEL,
            help="Record every delivery, or the time of one in 16, or of one in 256. Verdicts are "
            "as exact.",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            rich_help_panel=_PANEL,
            autocompletion=names.settable_keys,
            help="Set a key of the workload (phases.drain=5s), of its topology "
            "(topology.tree.delta=2), or of a step of --faults (faults.STEP.for=3s). Repeatable.",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the values of the given options, by option."""
        names = {"duration": "--duration", "settings": "--set", "no_churn": "--no-churn"}
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            names.get(name, f"--{name}"): value
            for name, value in values.items()
            if value is not None and value is not False
        }

    def overrides(self) -> "Overrides":
        """Return the values that replace values of the workload.

        Raises:
            UserError: a --set is not KEY=VALUE, or repeats a key.
        """
        from bench.spec.keys import Overrides

        return Overrides(
            protocol=self.protocol,
            topology=self.topology,
            seed=self.seed,
            rate=self.rate,
            size=self.size,
            publishers=self.publishers,
            subscribers=self.subscribers,
            warmup=self.warmup,
            measure=self.duration,
            churn=False if self.no_churn else None,
            records=self.records,
            keys=settings_of(self.settings or []) or None,
            is_typed=True,
        )


def settings_of(texts: list[str]) -> dict[str, Any]:
    """Return the values of --set by key.

    Raises:
        UserError: a text is not KEY=VALUE, or a key is repeated.
    """
    from bench.spec.keys import value_of

    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UserError(f"--set {text}: write KEY=VALUE")
        if key in found:
            raise UserError(f"--set {text}: {key} has a value already")
        found[key] = value_of(value)
    return found
