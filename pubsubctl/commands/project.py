"""`init`, `config`, `completion` and `help`: a project folder, its settings, and the manual."""

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from brokerd.text import nearest
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import add_command, verbs
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation, topic_files
from pubsubctl.console.outputs import create_folder, text_output, write_output, written
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

SHELLS = ("bash", "zsh", "fish")
_KINDS_OF_SCHEMAS = ("workload", "topology", "faults", "sweep", "comparison", "inventory")
ALIASES = {
    "exit-codes": "exit-statuses", "inventory": "inventories", "fault": "faults",
    "workload": "workloads", "topology": "topologies", "predicate": "predicates",
}  # fmt: skip
VERBS_HERE = "@verbs@"
PARAMETERS_HERE = "@parameters@"
SCHEMA_FOLDER = "schemas"
"""The folder of JSON Schemas in a project; first lines of its files name them."""

config = verbs("config", "Show the settings in force.", needs_verb=False)


def init(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder. Created if missing.")
    ] = Path("."),
) -> Result:
    """Create a project folder.

    Writes pubsubctl.toml, a local inventory, three workloads, a fault schedule, and JSON Schemas
    for editors. Creates a folder for each kind of file.
    """
    from pubsubctl.file_schemas import SCHEMAS, schema_of
    from pubsubctl.project import folder_names

    call = invocation(context)
    texts = {
        folder / name: schema_line(name) + path.read_text("utf-8")
        for name, path in scaffold_files()
    }
    texts |= {
        folder / SCHEMA_FOLDER / f"{kind}.json": f"{json.dumps(schema_of(kind), indent=2)}\n"
        for kind in SCHEMAS
    }
    there = [path for path in texts if path.exists() or path.is_symlink()]
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: exists and is no folder")
    if there:
        raise UserError(
            *(f"{path}: exists already" for path in there),
            "nothing was written; name another folder, or move these files",
        )
    files = [str(path) for path in texts]
    document = {"schema": "pubsubctl/init/1", "folder": str(folder), "files": files}
    if call.dry_run:
        return Result(document=document, text="\n".join(f"would write {name}" for name in files))
    _write_all(texts)
    for kind in folder_names():
        create_folder(folder / kind)
    name = f"./{folder}" if str(folder).startswith("-") else str(folder)
    then = "" if folder == Path(".") else f"cd {shlex.quote(name)} && "
    call.console.print(f"next: {then}pubsubctl doctor && pubsubctl bench first")
    return Result(document=document, text="\n".join(files))


def _write_all(texts: Mapping[Path, str]) -> None:
    """Write new files, all or none.

    Raises:
        PreflightFailed: a file cannot be written; names it, after all files were removed again.
    """
    begun: list[Path] = []
    try:
        for path, text in texts.items():
            create_folder(path.parent)
            with written(path), path.open("x", encoding="utf-8") as file:
                begun.append(path)
                file.write(text)
    except BaseException:
        for path in begun:
            path.unlink(missing_ok=True)
        raise


def scaffold_files() -> Iterator[tuple[str, Traversable]]:
    """Yield the files of a new project, by path."""
    yield from _files(resources.files("pubsubctl") / "scaffold", "")


def schema_line(name: str) -> str:
    """Return the first line of a file of a new project, for editors; "" without a schema."""
    kinds = {"bench": "workload", "fault_injection": "faults", "inventories": "inventory"}
    first, *further = name.split("/")
    kind = kinds.get(first, "")
    return f"#:schema {'../' * len(further)}{SCHEMA_FOLDER}/{kind}.json\n" if kind else ""


def _files(folder: Traversable, before: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{before}{entry.name}/")
        elif entry.name.endswith(".toml"):
            yield f"{before}{entry.name}", entry


def show(
    context: typer.Context,
    origin: Annotated[
        bool, typer.Option("--origin", help="Print the origin of each setting, too.")
    ] = False,
) -> Result:
    """Print each setting in force.

    A setting comes from an option, PUBSUBCTL_*, the project's file, the user's file, or a default.
    """
    from pubsubctl.project import DEFAULTS

    call = invocation(context)
    flags = {"inventory": call.inventory_option, "forks": call.forks_option}
    found = {name: call.project.find_setting(name, flags.get(name)) for name in DEFAULTS}
    rows = [
        (name, setting.value, *([setting.origin] if origin else []))
        for name, setting in found.items()
    ]
    return Result(
        document={
            "schema": "pubsubctl/config/1",
            "settings": {
                name: {"value": setting.value, "origin": setting.origin}
                for name, setting in found.items()
            },
        },
        text=call.console.table(("SETTING", "VALUE", *(["FROM"] if origin else [])), rows),
    )


def completion(
    shell: Annotated[
        str, typer.Argument(help="bash, zsh or fish.", autocompletion=names.choices(*SHELLS))
    ] = "bash",
) -> Result:
    """Print a script for shell completion.

    For example: pubsubctl completion bash >> ~/.bashrc
    """
    if shell not in SHELLS:
        raise UserError(f"completion: no script for {shown(shell)}{nearest(shell, SHELLS)}")
    from typer import completion as scripts

    # As a mapping, because the parameter's name, `shell`, is one that our checks look for.
    chosen = {"prog_name": "pubsubctl", "complete_var": "_PUBSUBCTL_COMPLETE", "shell": shell}
    script: str = scripts.get_completion_script(**chosen)  # type: ignore[attr-defined]
    if shell == "bash":  # a value follows `KEY=` without a space
        stays = '[[ "${COMPREPLY[0]}" == *= ]] && compopt -o nospace 2>/dev/null'
        script = script.replace("    return 0\n", f"    {stays}\n    return 0\n")
    document = {"schema": "pubsubctl/completion/1", "shell": shell, "script": script}
    return Result(document=document, text=script)


def schema(
    context: typer.Context,
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help="workload, topology, faults, sweep, comparison or inventory. Without a kind, "
            "lists all.",
            autocompletion=names.choices(*_KINDS_OF_SCHEMAS),
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")
    ] = None,
) -> Result:
    """Print the JSON Schema of a kind of files, for editors.

    A first line `#:schema PATH` in a TOML file lets an editor complete and check its keys.
    """
    from pubsubctl.file_schemas import SCHEMAS, schema_of

    call = invocation(context)
    output = text_output(output)
    if kind is None:
        if output is not None:
            raise UserError(f"schema -o {output}: name a kind: {', '.join(SCHEMAS)}")
        return Result(
            document={"schema": "pubsubctl/schemas/1", "kinds": [*SCHEMAS]},
            text="\n".join(SCHEMAS),
        )
    if kind not in SCHEMAS:
        raise UserError(f"schema: no kind called {shown(kind)}{nearest(kind, [*SCHEMAS])}")
    found = schema_of(kind)
    text = json.dumps(found, indent=2)
    document = {"schema": "pubsubctl/schema/1", "kind": kind, "json_schema": found}
    if output is None:
        return Result(document=document, text=text)
    if call.dry_run:
        return Result(document=document, text=f"would write {output}")
    write_output(output, f"{text}\n")
    return Result(document=document, text=str(output))


Topic = Annotated[
    str | None,
    typer.Argument(help="A topic. Without a topic, lists all.", autocompletion=names.topics),
]


def print_topic(topic: str | None) -> Result:
    """Return a page of the manual, or the list of pages."""
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
        raise UserError(
            f"help: no topic called {shown(topic)}{nearest(topic, list(texts))}",
            "`pubsubctl --help` lists the verbs; `pubsubctl VERB --help` describes one",
        )
    text = _with_tables(texts[topic].read_text("utf-8"))
    document = {"schema": "pubsubctl/help/1", "topic": topic, "text": text}
    return Result(document=document, text=text)


def _with_tables(text: str) -> str:
    """Return a page with the tables that the code defines."""
    from pubsubctl.file_schemas import SCHEMAS, key_table, parameter_lines

    if VERBS_HERE in text:
        text = text.replace(VERBS_HERE, _fault_verbs())
    if PARAMETERS_HERE in text:
        text = text.replace(PARAMETERS_HERE, parameter_lines())
    for kind in SCHEMAS:
        if (mark := f"@keys {kind}@") in text:
            text = text.replace(mark, key_table(kind))
    return text


def _fault_verbs() -> str:
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


add_command(config, "show", show)


@config.callback(invoke_without_command=True)
def show_without_a_verb(context: typer.Context) -> Result | None:
    """Show the settings in force."""
    return None if context.invoked_subcommand else show(context)
