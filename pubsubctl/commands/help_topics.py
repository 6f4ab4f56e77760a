"""`help TOPIC`: short texts on what holds for all verbs."""

from importlib import resources
from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from pubsubctl.console import Result
from pubsubctl.errors import UserError
from pubsubctl.files import shown


def help_topic(
    topic: Annotated[
        str | None, typer.Argument(help="The topic; without one, the list of them.")
    ] = None,
) -> Result:
    """Explain what holds for all verbs."""
    texts = {
        path.name.removesuffix(".md"): path
        for path in sorted(
            resources.files("pubsubctl").joinpath("help").iterdir(), key=lambda path: path.name
        )
    }
    if topic is None:
        lines = [
            f"{name:16} {path.read_text('utf-8').splitlines()[0].lstrip('# ')}"
            for name, path in texts.items()
        ]
        document = {"schema": "pubsubctl/help/1", "topics": list(texts)}
        return Result(document=document, text="\n".join(lines))
    if topic not in texts:
        raise UserError(f"help: no topic called {shown(topic)}{nearest(topic, list(texts))}")
    text = texts[topic].read_text("utf-8")
    document = {"schema": "pubsubctl/help/1", "topic": topic, "text": text}
    return Result(document=document, text=text)
