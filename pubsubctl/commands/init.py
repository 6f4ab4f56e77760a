"""`init`: a folder to work in, with an inventory, workloads and a fault schedule to start from."""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import UserError


def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made when missing.")] = Path("."),
) -> Result:
    """Make a project folder.

    It gets pubsubctl.toml, a local inventory, three workloads and one fault schedule.
    """
    call = invocation(context)
    texts = {folder / name: path.read_text("utf-8") for name, path in scaffold_files()}
    there = [path for path in texts if path.exists() or path.is_symlink()]
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is there and is no folder")
    if there:
        raise UserError(
            *(f"{path}: is there already" for path in there),
            "nothing was written; name another folder, or move these away",
        )
    files = [str(path) for path in texts]
    document = {"schema": "pubsubctl/init/1", "folder": str(folder), "files": files}
    if call.dry_run:
        return Result(document=document, text="\n".join(f"would write {name}" for name in files))
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    then = "" if folder == Path(".") else f"cd {folder} && "
    call.console.say(f"next: {then}pubsubctl doctor && pubsubctl bench first")
    return Result(document=document, text="\n".join(files))


def scaffold_files() -> Iterator[tuple[str, Traversable]]:
    """Yield the files of a new project, by path."""
    yield from _files(resources.files("pubsubctl") / "scaffold", "")


def _files(folder: Traversable, before: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{before}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield f"{before}{entry.name}", entry
