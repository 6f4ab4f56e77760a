"""The manual: Markdown pages in `pubsubctl/help`, by topic."""

from importlib import resources
from importlib.resources.abc import Traversable


def topic_files() -> dict[str, Traversable]:
    """Return the pages by topic, in order."""
    folder = resources.files("pubsubctl").joinpath("help")
    found = sorted(folder.iterdir(), key=lambda path: path.name)
    return {path.name.removesuffix(".md"): path for path in found if path.name.endswith(".md")}
