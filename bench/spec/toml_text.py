"""Writer for the TOML files of a run directory; `tomllib` reads the same values back.

tomli-w would write each element of a list on its own line: 400 lines for 100 links of a topology.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

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
