"""Text of values in messages, ranges of names, and TOML documents read and written.

Ranges of names: `b[1:500]`, `b[1:500:2]` for every second name, `n[01:16]` with leading zeros.

TOML is written here, because tomli-w would write each element of a list on its own line: 400 lines
for 100 links of a topology.
"""

import codecs
import json
import math
import re
import signal
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, Final

LARGEST_TOML: Final = 4 << 20
"""Characters of a TOML document from a user."""
DEEPEST: Final = 32
"""Levels of nested tables and lists in a document from a user."""
_LONGEST_KEY: Final = 4_096

MOST_NAMES: Final = 4096

BYTE_ORDER_MARK: Final = "\ufeff"
"""Editors of Windows begin files with it; it is no content."""
_SAID_OF_TOML: Final = (
    ("Cannot overwrite a value", "this key has a value already"),
    ("Cannot mutate immutable namespace", "this table has its keys already:"),
    ("Invalid statement", "neither a comment, KEY = VALUE nor [TABLE]"),
    ("Invalid value", "no value; a text stands in quotes"),
)
_TWICE: Final = re.compile(r"Cannot declare (\(.*\)) twice")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
"""Names of brokers, hosts and topologies."""
_MOST_DECIMALS: Final = 12
_RANGE = re.compile(r"\[(\d{1,20}):(\d{1,20})(?::(\d{1,20}))?\]")


def shown(value: Any, limit: int = 80) -> str:
    """Return a value for a message as files have it: in one line, of bounded length."""
    text = _shown_whole(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _shown_whole(value: Any) -> str:
    """Return a value as TOML has it, but ASCII if a character is not printable."""
    if isinstance(value, bool | date | time):  # a moment is a date, too
        return str(value).lower() if isinstance(value, bool) else value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown_whole, value))}]"
    if isinstance(value, Mapping) and value:
        pairs = (f"{_shown_key(key)} = {_shown_whole(item)}" for key, item in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return ascii(value) if not str(value).isprintable() else repr(value)


def _shown_key(key: object) -> str:
    return str(key) if isinstance(key, str) and _BARE_KEY.fullmatch(key) else _shown_whole(key)


_NOUNS: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text in quotes",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
    "dataclass": "a table",
}
_BOUNDS: Final = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_too_short": "at least {min_length} letters",
    "string_too_long": "at most {max_length} letters",
}


_QUOTED: Final = re.compile(r"'([^']*)'")


def explain_problem(problem: Mapping[str, Any]) -> str:
    """Return the valid values of a key, from a problem that pydantic found."""
    kind = str(problem["type"])
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**problem["ctx"])
    if kind == "literal_error":
        return nearest(problem["input"], _QUOTED.findall(problem["ctx"]["expected"]))[2:]
    noun = kind.partition("_")[0]
    if noun not in _NOUNS or kind.partition("_")[2] not in ("type", "parsing", "from_float"):
        return str(problem["msg"]).removeprefix("Value error, ")
    if noun == "list" and isinstance(problem["input"], Mapping):
        return "a list of tables, each with its name in two pairs of brackets"
    return _NOUNS[noun]


def named(name: str, text: str) -> str:
    """Return a text of a process with the name in front, unless the text begins with it."""
    return text if without_name(name, text) != text else f"{name}: {text}"


def without_name(name: str, text: str) -> str:
    """Return a text of a process without the name in front, for a line that has it before."""
    begin = text.removeprefix("broker ")
    if begin.startswith(f"{name}: "):
        return begin[len(name) + 2 :]
    rest = begin.removeprefix(f"{name} ")
    is_named = len(rest) < len(begin) and rest[:1].isalnum()
    return rest if is_named else text


def describe_exit(code: int | None, number: int | None) -> str:
    """Return the end of a process: `SIGKILL`, `status 1`, or "" if neither is known."""
    if number:
        names = {each.value: each.name for each in signal.Signals}
        return names.get(number, f"signal {number}")  # a real-time signal has no name
    return "" if code is None else f"status {code}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is one."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a regular noun: `brokers`, `proxies`, `losses`."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"


def format_number(value: float, digits: int = 4) -> str:
    """Return a number with so many significant digits, and all digits before the point.

    Thousands have commas, and there is no exponent: `1,545`, `26.19`, `0.01723`.
    """
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:,.{min(_MOST_DECIMALS, max(0, digits - 1 - magnitude))}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def size_text(size_bytes: int) -> str:
    """Return a size in MB with one decimal place, or in kB below 0.1 MB."""
    if size_bytes < 100_000:
        return f"{size_bytes / 1e3:,.1f} kB"
    return f"{size_bytes / 1e6:,.1f} MB"


def problem_of(error: Exception) -> str:
    """Return why a text cannot be read, without the words of a codec."""
    if isinstance(error, UnicodeDecodeError):
        is_wide = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        return f"not UTF-8 (byte {error.start}){', but UTF-16' if is_wide else ''}"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON (line {error.lineno}, column {error.colno})"
    return str(error)


def read_utf8(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ValueError: the file is not UTF-8; names the first byte that is not.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(problem_of(error)) from None


def first_word(text: str) -> str:
    """Return the first word of the first line that is neither empty nor a comment."""
    first = next((line for line in text.splitlines() if line and not line.startswith("#")), "")
    return first.split(" ")[0]


def parse_json(text: str) -> Any:
    """Return the value of a JSON text whose numbers have at most 64 bits.

    Raises:
        ValueError: the text is no JSON, too deep, or has a NaN or a number beyond 64 bits.
    """
    try:
        return _BOUNDED_JSON.decode(text)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _bounded_integer(text: str) -> int:
    if len(text) > _MOST_DIGITS or not -_END <= (number := int(text)) < _END:
        raise ValueError(f"{shown(text)} needs more than 64 bits")
    return number


def _finite_float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{shown(text)} needs more than 64 bits")
    return number


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


_END: Final = 1 << 63
_MOST_DIGITS: Final = 20
_BOUNDED_JSON: Final = json.JSONDecoder(
    parse_float=_finite_float, parse_int=_bounded_integer, parse_constant=_refuse_constant
)


def nearest(word: object, known: Sequence[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar valid word, or a list of valid words.

    Returns "" for a path, which is no misspelt name.
    """
    import difflib  # needed for a mistake only

    if "/" in str(word) and not any("/" in name for name in known):
        return ""
    # Short names, such as those of brokers, differ in half of their letters at the first slip. Long
    # ones that differ so much have to begin alike.
    text = str(word)
    close = [name for name in known if name.casefold() == text.casefold()][:1]
    if not close and len(text) > 2:
        close = [name for name in known if name.casefold().startswith(text.casefold())][:1]
        # `fig9` is the last part of `dft11.fig9`.
        close = close or [name for name in known if name.casefold().endswith(f".{text.casefold()}")]
    if not close:
        close = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
        if close and len(text) > 4 and not difflib.get_close_matches(text, close, cutoff=0.6):
            close = [each for each in close if each[:2] == text[:2]]
        elif close and len(text) <= 4:  # `mine` is no misspelt `single`
            length = len(text)
            close = [each for each in close if each[0] == text[0] or len(each) <= length + 1]
    if close:
        return f"; did you mean {close[0]!r}?"
    if not known:
        return "; there is none"
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return f"; known: {', '.join(list(known)[:12])}{more}"


def explain_schema(found: object, wanted: str) -> str:
    """Return the error of a file's `schema` that differs from the expected one; "" if equal.

    The schema of another kind of files, such as "pubsubctl/topology/2", is named as such.
    """
    if found == wanted:
        return ""
    kind = kind_of_schema(found)
    is_another = kind and kind != kind_of_schema(wanted)
    hint = f", and the file is of kind {kind}" if is_another else ""
    return f"schema = {shown(found)}; this reads {wanted!r}{hint}"


def kind_of_schema(text: object) -> str:
    """Return the kind in "pubsubctl/KIND/VERSION"; "" for another text."""
    parts = text.split("/") if isinstance(text, str) else []
    return parts[1] if len(parts) == 3 and parts[0] == "pubsubctl" else ""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML document, in bounded time and memory.

    Raises:
        ValueError: the document is not TOML, is too large or nested too deeply, or has a number
            that is not finite or does not fit into 64 bits; the text states the place and the valid
            range. A TOMLDecodeError if the document is not TOML.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    if len(text) > LARGEST_TOML:
        raise ValueError(f"larger than {LARGEST_TOML >> 20} MiB")
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".", 0, _LONGEST_KEY) > DEEPEST and _is_deep_key(line):
            raise ValueError(f"line {number}: a key with more than {DEEPEST} parts")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        for theirs, ours in _SAID_OF_TOML:
            message = message.replace(theirs, ours)
        message = _TWICE.sub(_name_repeated_table, message)
        raise tomllib.TOMLDecodeError(message) from None
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} deep") from None
    check_values(document)
    return document


def _name_repeated_table(found: re.Match[str]) -> str:
    keys = re.findall(r"'([^']*)'", found[1])
    return f"table [{'.'.join(keys)}] is there twice"


def _is_deep_key(line: str) -> bool:
    """Return True if the key of a line, or a table's name, has too many parts."""
    key = line.partition("=")[0] if not line.lstrip().startswith("[") else line
    return key.count(".") > DEEPEST and not {*key} & {'"', "'", "#"}


def check_values(document: Mapping[str, Any]) -> None:
    """Check that all of a document is within bounds.

    Raises:
        ValueError: a value is nested too deeply, or a number is not finite or does not fit into 64
            bits; the text states the place.
    """
    for place, depth, value in _walk(document):
        if depth > DEEPEST:
            raise ValueError(f"{place[:80]}: nested more than {DEEPEST} deep")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{place[:80]} = {value} is not a finite number")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{place[:80]} = {shown(value)} does not fit into 64 bits")


def _walk(document: Mapping[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yield every value of a document with its place and depth; nothing below the depth limit."""
    waiting: list[tuple[str, int, Any]] = [("", 0, document)]
    while waiting:
        place, depth, value = waiting.pop()
        yield place, depth, value
        if isinstance(value, Mapping):
            dot = "." if place else ""
            waiting += [(f"{place}{dot}{key}", depth + 1, each) for key, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{place}[{n}]", depth + 1, each) for n, each in enumerate(value)]


def expand_range(text: str) -> list[str]:
    """Return the names that a range stands for; a name without a range is returned as is.

    Raises:
        ValueError: the range is invalid; the text states the fault.
    """
    ranges = list(_RANGE.finditer(text))
    if not ranges:
        if "[" in text or "]" in text:
            raise ValueError("a range is written [1:16], [01:16] or [1:16:2]")
        return [text]
    if len(ranges) > 1:
        raise ValueError("only one range")
    found = ranges[0]
    first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
    if last < first:
        raise ValueError(f"the range runs backwards, from {first} to {last}")
    if step == 0:
        raise ValueError("a range of steps of 0 has no end")
    if (count := (last - first) // step + 1) > MOST_NAMES:
        raise ValueError(f"{count:,} names; a range has at most {MOST_NAMES:,}")
    numbers = range(first, last + 1, step)
    width = len(found[1]) if found[1].startswith("0") else 0
    before, after = text[: found.start()], text[found.end() :]
    return [f"{before}{number:0{width}d}{after}" for number in numbers]


def is_range(text: str) -> bool:
    """Return True if `expanded` returns several names."""
    return _RANGE.search(text) is not None


def expand_ranges(value: object) -> object:
    """Return a list with every range expanded; other values are left for later checks to refuse.

    Raises:
        ValueError: a range is invalid; the text states the fault.
    """
    if not isinstance(value, list):
        return value
    return [
        name for text in value for name in (expand_range(text) if isinstance(text, str) else [text])
    ]


def is_plain_name(value: object) -> bool:
    """Return True for the name of a file or a folder that leads nowhere else."""
    is_name = isinstance(value, str) and value not in ("", ".", "..")
    return is_name and "/" not in str(value) and "\0" not in str(value)


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(values: Mapping[str, Any]) -> str:
    """Return a TOML document with `values`: plain keys first, then tables, in the order given.

    Values are bool, int, float, str, nested lists of these types, tables, and lists of tables. A
    list of tables is written as [[array of tables]] if it is a table's own value, and inline deeper
    down.
    """
    lines: list[str] = []
    _write_table(lines, (), values)
    return "\n".join(lines).strip("\n") + "\n"


def _write_table(lines: list[str], path: tuple[str, ...], values: Mapping[str, Any]) -> None:
    later: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) or _is_table_list(value):
            later.append((key, value))
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in later:
        name = ".".join(map(_key, (*path, key)))
        for table in [value] if isinstance(value, Mapping) else value:
            lines.extend(("", f"[{name}]" if isinstance(value, Mapping) else f"[[{name}]]"))
            _write_table(lines, (*path, key), table)


def _is_table_list(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)  # inf and nan are spelled as TOML does
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())} }}"
    raise TypeError(f"TOML has no {type(value).__name__}: {value!r}")


def _string(text: str) -> str:
    # TOML has the escapes of JSON, but also escapes DEL and has no lone surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
