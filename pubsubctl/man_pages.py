"""Pages for `man`, made from the help texts: one for the program, and one for each verb.

A page has the sections NAME, SYNOPSIS, DESCRIPTION, ARGUMENTS, OPTIONS by group, and SEE ALSO. The
texts are those of `--help`; nothing is written twice.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = "pubsubctl"
SECTION: Final = 1


def man_pages(command: Any) -> Mapping[str, str]:
    """Return the text of each page, by file name.

    Args:
        command: the command of the whole program, with its groups.
    """
    return {f"{name}.{SECTION}": text for name, text in _pages(command, (PROGRAM,))}


def write_man_pages(command: Any, folder: Path) -> list[Path]:
    """Write all pages into `folder`/man1, which MANPATH may name; return the files."""
    target = folder / f"man{SECTION}"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in man_pages(command).items():
        path = target / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _pages(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    verbs = getattr(command, "commands", {})
    yield "-".join(path), _page(command, path, verbs)
    for name, inner in verbs.items():
        yield from _pages(inner, (*path, name))


def _page(command: Any, path: tuple[str, ...], verbs: Mapping[str, Any]) -> str:
    title = "-".join(path)
    help_text = inspect.cleandoc(command.help or "")
    first, _, rest = help_text.partition("\n")
    lines = [
        f'.TH "{title.upper()}" "{SECTION}" "" "{PROGRAM} {version(PROGRAM)}"',
        ".SH NAME",
        f"{title} \\- {_escape(first.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_escape(' '.join(path))}",
        _escape(_synopsis(command, bool(verbs))),
    ]
    if rest.strip():
        lines += [".SH DESCRIPTION", *_paragraphs(rest)]
    context = command.context_class(command, info_name=" ".join(path))
    groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    for each in command.params:
        if (record := each.get_help_record(context)) is not None:
            is_argument = each.param_type_name == "argument"
            panel = getattr(each, "rich_help_panel", None) or "Options"
            if is_argument:
                record = (_name_of(each), record[1])
            groups.setdefault("Arguments" if is_argument else panel, []).append(record)
    for group, records in groups.items():
        if records:
            lines.append(f".SH {group.upper()}")
        for names, about in records:
            lines += [".TP", f".B {_escape(names)}", _escape(about)]
    if verbs:
        lines.append(".SH VERBS")
        for name, inner in verbs.items():
            about = inspect.cleandoc(inner.help or "").partition("\n")[0]
            lines += [".TP", f".B {_escape(f'{title}-{name}')}({SECTION})", _escape(about)]
    lines += [".SH SEE ALSO", _escape(f"{PROGRAM} help TOPIC prints the pages of the manual.")]
    return "\n".join(lines) + "\n"


def _synopsis(command: Any, has_verbs: bool) -> str:
    arguments = [
        f"[{_name_of(each)}]" if not each.required else _name_of(each)
        for each in command.params
        if each.param_type_name == "argument"
    ]
    return " ".join(["[OPTIONS]", *arguments, *(["VERB ..."] if has_verbs else [])])


def _name_of(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()).strip("[]")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        yield ".PP"
        yield from map(_escape, paragraph.splitlines())


_SPECIAL: Final = {"\\": "\\e", "-": "\\-"}


def _as_roff(letter: str) -> str:
    return letter if letter.isascii() else f"\\[u{ord(letter):04X}]"


def _escape(text: str) -> str:
    """Return a text that roff prints as it is, also at the start of a line."""
    escaped = "".join(_SPECIAL.get(letter) or _as_roff(letter) for letter in text)
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
