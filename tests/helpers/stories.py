"""Existence of the stories that lists name."""

import ast
from pathlib import Path


def is_story(story: str, folder: Path) -> bool:
    """Return whether a test, `file::test` or `file::LIST[name]`, or a scenario file exists.

    Args:
        story: for `LIST[name]`, the name must be a string of the file.
        folder: the folder of the file.
    """
    file, _, name = story.partition("::")
    if not name:
        return (folder / file).exists()
    tree = ast.parse((folder / file).read_text(encoding="utf-8"))
    _, bracket, row = name.removesuffix("]").partition("[")
    if bracket:
        return any(isinstance(node, ast.Constant) and node.value == row for node in ast.walk(tree))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return name in [node.name for node in tree.body if isinstance(node, kinds)]
