"""Measures of the language of docstrings, per package."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

OPENINGS = (
    "what",
    "who",
    "whoever",
    "whose",
    "whom",
    "where",
    "wherever",
    "when",
    "how",
    "whether",
)
OF = ("a", "an", "the", "all", "each", "one", "its", "those", "these")
CLAUSE = re.compile(rf"(?:{'|'.join(OPENINGS)}|which|that|of (?:{'|'.join(OF)}))\b", re.I)

WORDS: Mapping[str, tuple[str, ...]] = {
    "who": ("what", "who", "whom", "whose", "whoever"),
    "pronouns": ("it", "its", "one", "ones", "those", "these", "such", "each", "them", "they"),
    "verbs": (
        *("say", "says", "said", "tell", "tells", "told"),
        *("know", "knows", "known", "hear", "hears", "heard"),
    ),
}
"""Counted per 1,000 words: pronouns for a missing noun, and verbs for people."""

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

GOALS: Mapping[str, float] = {"clauses": 1.0, "who": 4.0, "pronouns": 30.0, "verbs": 2.0}
"""The goal of each measure. `clauses` is the share of docstrings, in %, that begin with one."""


def measure(texts: Iterable[str]) -> dict[str, float]:
    """Return each measure of some docstrings, rounded to one place."""
    docstrings = clauses = words = 0
    counts: Counter[str] = Counter()
    for text in texts:
        found = re.findall(r"[a-z']+", text.lower())
        docstrings += 1
        clauses += bool(CLAUSE.match(text))
        words += len(found)
        counts.update(found)
    per_1000 = {
        name: round(1000 * sum(counts[word] for word in group) / max(1, words), 1)
        for name, group in WORDS.items()
    }
    return {"clauses": round(100 * clauses / max(1, docstrings), 1), **per_1000}


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, _DOCUMENTED):
            continue
        if text := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), text


def package_of(path: str) -> str:
    """Return the package of a file: two folders, or three for a protocol."""
    parts = path.split("/")[:-1]
    return "/".join(parts[: 3 if parts[:2] == ["brokerd", "protocols"] else 2])


def measures(root: Path, tops: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the measures of each package below some folders."""
    texts: dict[str, list[str]] = {}
    for top in tops:
        for path in sorted((root / top).rglob("*.py")):
            package = package_of(path.relative_to(root).as_posix())
            texts.setdefault(package, []).extend(text for _, text in docstrings_of(path))
    return {package: measure(found) for package, found in sorted(texts.items()) if found}
