"""Options that change a workload: load, topology, protocol and any other key."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import options_in
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from bench.spec.keys import Overrides

_option = options_in("Workload")

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
    _option(
        "--protocol", metavar="NAME", help="Run this protocol.", autocompletion=names.protocols
    ),
]


_RATE = "Publish at this rate per publisher: 25/s, or max."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options that replace values of a workload. None keeps the value of the file."""

    protocol: Protocol = None
    topology: Annotated[
        str | None, _option("--topology", metavar="NAME", help="Run on this topology.")
    ] = None
    seed: Annotated[
        int | None, _option("--seed", metavar="N", min=0, help="Draw from this seed.")
    ] = None
    rate: Annotated[str | None, _option("--rate", "-r", metavar="RATE", help=_RATE)] = None
    duration: Annotated[
        str | None, _option("--duration", "-d", metavar="TIME", help="Measure for this time: 10s.")
    ] = None
    warmup: Annotated[
        str | None,
        _option("--warmup", metavar="TIME", help="Load for this time before the measurement: 2s."),
    ] = None
    size: Annotated[
        str | None,
        _option("--size", "-s", metavar="SIZE", help="Publish payloads of this size: 100B, 4KiB."),
    ] = None
    publishers: Annotated[
        int | None,
        _option(
            "--publishers", "-p", metavar="N", help="Start N publishers at each of their brokers."
        ),
    ] = None
    subscribers: Annotated[
        int | None,
        _option(
            "--subscribers", "-c", metavar="N", help="Start N subscribers at each of their brokers."
        ),
    ] = None
    no_churn: Annotated[bool, _option("--no-churn", help="Ignore the churn of the workload.")] = (
        False
    )
    records: Annotated[
        str | None,
        _option(
            "--records",
            metavar="full|sampled|hist",
            help="Record every delivery, or the time of one in 16, or of one in 256. Verdicts are "
            "as exact.",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        _option(
            "--set",
            metavar="KEY=VALUE",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedLoadOptions(LoadOptions):
    """Options of a search for the rate. `--rate` is accepted for its error only."""

    rate: Annotated[
        str | None, _option("--rate", "-r", metavar="RATE", help=_RATE, hidden=True)
    ] = None


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
