"""Whether a story that a list names is there."""

import ast
from pathlib import Path


def is_told(story: str, folder: Path) -> bool:
    """Whether a test, as `file::test` or `file::LIST[name]`, or a scenario's file is there.

    Args:
        story: of `LIST[name]`, the name is to stand in the file as a text of its own.
        folder: where the file is.
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
