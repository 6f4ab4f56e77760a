"""`help TOPIC`: pages of the manual."""

import textwrap
from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.manual import topic_files
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

ALIASES = {"exit-codes": "exit-statuses", "inventory": "inventories", "fault": "faults"}
VERBS_HERE = "@verbs@"


def help_topic(
    topic: Annotated[
        str | None,
        typer.Argument(
            help="The topic; without one, the list of them.", autocompletion=names.topics
        ),
    ] = None,
) -> Result:
    """Explain what holds for all verbs."""
    texts = topic_files()
    if topic is None:
        lines = [
            f"{name:17} {path.read_text('utf-8').splitlines()[0].lstrip('# ')}"
            for name, path in texts.items()
        ]
        document = {"schema": "pubsubctl/help/1", "topics": list(texts)}
        return Result(document=document, text="\n".join(lines))
    topic = ALIASES.get(topic, topic)
    if topic not in texts:
        raise UserError(f"help: no topic called {shown(topic)}{nearest(topic, list(texts))}")
    text = texts[topic].read_text("utf-8").replace(VERBS_HERE, _verbs())
    document = {"schema": "pubsubctl/help/1", "topic": topic, "text": text}
    return Result(document=document, text=text)


def _verbs() -> str:
    """Return the verbs of faults, from the table in the code."""
    from brokerd.model.fault_verbs import VERB_TABLE

    rows = [
        (verb.name, " or ".join(_ON[kind] for kind in verb.on), verb.effect)
        for verb in VERB_TABLE.values()
    ]
    width = max(len(on) for _, on, _ in rows)
    indent = " " * (25 + width)
    return "\n".join(
        textwrap.fill(
            effect,
            100,
            initial_indent=f"    {name:19}{on:{width}}  ",
            subsequent_indent=indent,
        )
        for name, on, effect in rows
    )


_ON = {
    "broker": "BROKER",
    "link": "LINK",
    "machine": "MACHINE",
    "sets": "SETS",
    "client": "CLIENT",
    "subscriber": "SUBSCRIBER",
    "own-process subscriber": "PROCESS",
}
