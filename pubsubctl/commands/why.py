"""`why`: the trace of one publication to one subscription, from the files of a finished run."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerd.text import nearest
from brokerd.units import MILLISECOND_NS
from pubsubctl.commands import names
from pubsubctl.commands.options.results import RUNS_HELP, RunsFolder
from pubsubctl.console.console import Console, Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import IntegrityError, UserError

if TYPE_CHECKING:
    from results.report.delivery_trace import DeliveryTrace


def why(
    context: typer.Context,
    publication: Annotated[
        str,
        typer.Argument(
            metavar="PUBLICATION",
            help="SOURCE:NUMBER or SOURCE:INCARNATION:NUMBER, such as p1/0:310 or p1-pub-1:310.",
        ),
    ],
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="For example s3-sub-1, or s3-sub-1/2.")
    ],
    run: Annotated[
        str, typer.Argument(metavar="RUN", help=RUNS_HELP, autocompletion=names.runs)
    ] = "latest",
    output: RunsFolder = None,
) -> Result:
    """Trace one publication to one subscription.

    Prints the events in the order of time: sending, acknowledgement, arrival, and gaps, with the
    faults and lost sessions on the path. The last line is the outcome, by the rules of the verdict.
    """
    from pubsubctl.runs.runs import find_one_run
    from results.reference.files import FileRefusal, is_sealed
    from results.report.delivery_trace import TraceRefusal, trace_delivery

    call = invocation(context)
    call.refuse_dry_run("why")
    folder = find_one_run(call.project, run, output)
    try:
        is_sealed(folder)
        trace = trace_delivery(folder, publication, subscription)
    except TraceRefusal as error:
        begin = f"{error.wanted.partition('/')[0]}-"
        longer = [name for name in error.known if name.startswith(begin)]
        hint = nearest(error.wanted, error.known) if error.wanted else ""
        hint = f"; did you mean {longer[0]!r}?" if error.wanted and longer else hint
        raise UserError(f"{folder}: {error}{hint}") from None
    except FileRefusal as error:
        raise IntegrityError(str(error)) from None
    return Result(
        document=_document(str(folder), trace), text=f"{_text(call.console, trace)}\n{folder}"
    )


def _document(run: str, trace: "DeliveryTrace") -> dict[str, Any]:
    return {
        "schema": "pubsubctl/why/1",
        "run": run,
        "publication": trace.publication,
        "publisher": trace.publisher,
        "attributes": dict(trace.attributes),
        "subscription": trace.subscription,
        "predicate": trace.predicate,
        "path": [*trace.path],
        "outcome": trace.outcome,
        "because": trace.because,
        "events": [
            {"at_ns": each.at_ns, "place": each.place, "text": each.text} for each in trace.events
        ],
    }


def _text(console: Console, trace: "DeliveryTrace") -> str:
    attributes = ", ".join(f"{name} = {value!r}" for name, value in trace.attributes.items())
    rows = [(f"{each.at_ns / MILLISECOND_NS:,.2f}", each.place, each.text) for each in trace.events]
    facts = [
        f"{trace.publication} of {trace.publisher}: {attributes or 'without attributes'}",
        f"to {trace.subscription}: {trace.predicate}",
        *([f"path {' > '.join(trace.path)}"] if trace.path else []),
    ]
    table = console.table(("MS", "AT", "EVENT"), rows)
    return "\n".join([*facts, "", table, "", trace.because])
