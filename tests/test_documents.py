"""Tests of documents: sizes, links, and named paths."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pubsubctl.commands import app
from pubsubctl.commands.options.global_options import split_global_options

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "brokerd/GLOSSARY.md"
MANUAL = sorted((ROOT / "pubsubctl/help").glob("*.md"))
FOLDERS = ("bench", "brokerd", "fault_injection", "pubsubctl", "results", "tests")
LINKING = [
    ROOT / "README.md",
    ROOT / "brokerd/PROTOCOLS.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / name / "README.md" for name in FOLDERS),
    *MANUAL,
]
PAGE_BYTES = 8192
FOLDER_PAGE_BYTES = 6144


@pytest.mark.parametrize("page", [ROOT / "README.md", *MANUAL], ids=lambda page: page.name)
def test_a_page_is_short(page: Path) -> None:
    assert page.stat().st_size <= PAGE_BYTES


@pytest.mark.parametrize("name", sorted({*FOLDERS} - {"brokerd", "tests"}))
def test_the_page_of_a_folder_is_short(name: str) -> None:
    assert (ROOT / name / "README.md").stat().st_size <= FOLDER_PAGE_BYTES


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_links_every_page_of_the_manual() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [page.name for page in MANUAL if f"pubsubctl/help/{page.name}" not in text] == []


def test_the_glossary_has_one_entry_per_term_and_names_files_that_exist() -> None:
    rows = [line.split("|")[1:-1] for line in GLOSSARY.read_text("utf-8").splitlines()]
    entries = [[cell.strip() for cell in row] for row in rows if len(row) == 4]
    entries = [entry for entry in entries if entry[0] not in {"term", "---"}]
    terms = [entry[0] for entry in entries]
    assert len(terms) >= 100
    assert sorted(terms) == sorted(set(terms))
    assert [entry[0] for entry in entries if not entry[1].endswith(".")] == []
    places = [(entry[0], place) for entry in entries for place in re.findall("`([^`]+)`", entry[3])]
    assert [place for place in places if not (ROOT / place[1]).exists()] == []


NAMED = re.compile(r"`([\w./-]+(?:\.py|\.toml|\.md|\.html|/))`")


@pytest.mark.parametrize(
    "path", sorted({*LINKING, GLOSSARY} - {*MANUAL}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_files_and_folders_named_in_a_document_exist(path: Path) -> None:
    """A name may be relative to the document, to the project, or the end of a path."""
    found = [*ROOT.iterdir(), *(each for top in FOLDERS for each in (ROOT / top).rglob("*"))]
    known = {f"/{each.relative_to(ROOT)}" for each in found}
    names = {name.rstrip("/") for name in NAMED.findall(path.read_text("utf-8"))}
    missing = [name for name in names if not any(each.endswith(f"/{name}") for each in known)]
    assert missing == []


DOCUMENTS = [
    *LINKING,
    *sorted((ROOT / "brokerd/protocols").glob("*/PROTOCOL.md")),
    *(ROOT / name for name in ("results/MEASUREMENTS.md", "Makefile")),
]
SOURCES = [
    path
    for top in ("bench", "brokerd", "fault_injection", "pubsubctl", "results")
    for path in sorted((ROOT / top).rglob("*"))
    if path.suffix in (".py", ".toml") and "runs" not in path.parts
]
COMMAND = re.compile(r"(?:pubsubctl|\$\(BIN\)/pubsubctl) ((?:-[a-z]+ )*[a-z][^`#&|;\n]*)")


_NO_VERBS = ("is", "authority", "project")
"""Words that follow the name of the program in a sentence."""


def test_documented_commands_exist() -> None:
    """Verbs, groups and options exist; moved forms do not count."""
    wrong = [
        f"{path.relative_to(ROOT)}: {line}: {why}"
        for path in DOCUMENTS
        for line in documented(path.read_text("utf-8"))
        if (why := fault_of(line))
    ]
    assert wrong == []


def test_commands_in_docstrings_errors_and_files_exist() -> None:
    wrong = []
    for path in SOURCES:
        for text in texts_of(path):
            for line in documented(text):
                if why := fault_of(line):
                    wrong.append(f"{path.relative_to(ROOT)}: {line}: {why}")
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "benhc demo",
        "bench demo --sweep seed=1",
        "results lst",
        "plot latest --no-such",
        "simulate demo",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert fault_of(line)


def documented(text: str) -> Iterator[str]:
    """Yield the commands in a text, without the name of the program."""
    for found in COMMAND.finditer(text.replace("\\\n", " ")):
        yield re.split(r"  +(?![-\s])|\$\(|[()\[{…]|, ", found[1].strip())[0].strip(" .:'\"")


def texts_of(path: Path) -> Iterator[str]:
    """Yield the strings of a source, and the comments of any other file."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def whole_command() -> Any:
    """Return the command with all verbs; to build it takes longer than to read a line."""
    return app.command_of()


def fault_of(line: str) -> str:
    """Return the reason why a command line is invalid; "" if valid."""
    try:
        words = split_global_options(shlex.split(line))[1]
    except ValueError:
        return ""
    command = whole_command()
    while words and (commands := getattr(command, "commands", None)):
        if words[0] not in commands:
            if words[0].rstrip(":") in _NO_VERBS:
                return ""
            return f"no verb {words[0]}"
        command = commands[words.pop(0)]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and len(word) > 2]
    unknown = [word for word in unknown if word.partition("=")[0] not in {*known, "--help"}]
    return f"no option {unknown[0]}" if unknown else ""


_EXAMPLE = re.compile(r"^(?:    |```.*\n)?(?:sudo )?(pubsubctl [a-z-].*)$", re.MULTILINE)


def typed_examples(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a page, without comments and what follows in columns."""
    for line in _EXAMPLE.findall(text.replace("\\\n", " ")):
        words: list[str] = []
        for word in [*shlex.split(re.split(r" {3,}", line)[0], comments=True), "&&"]:
            if word not in ("&&", "|", "<", ">"):
                words.append(word)
                continue
            if words[:1] == ["pubsubctl"]:
                yield words[1:]
            words = []


def test_each_example_of_the_manual_is_a_whole_command() -> None:
    """No argument is missing, none is left over, and each value is of the option's kind."""
    count, wrong = 0, {}
    for page in (ROOT / "README.md", *MANUAL):
        for words in typed_examples(page.read_text("utf-8")):
            count += 1
            command = whole_command()
            left = split_global_options(words)[1]
            while left and left[0] in (getattr(command, "commands", None) or ()):
                command = command.commands[left.pop(0)]
            try:
                command.make_context("pubsubctl", left)
            except Exception as error:
                wrong[f"{page.name}: {' '.join(words)}"] = error
    assert wrong == {}
    assert count > 150


_MEASURED = re.compile(
    r"^    pubsubctl ((?:bench|sweep|compare) [a-z][^#|&\\]*?)(?: *#.*)?$", re.MULTILINE
)
_ELSEWHERE = ("external/", "tests/", "--comparison", "HEAD", "--no-check", "compare all")
"""Words of examples that need other brokers, a history of versions, or no verdict."""


def measured_examples() -> list[str]:
    """Return the examples of the manual that load brokers and judge the run."""
    found = [
        line
        for page in sorted((ROOT / "pubsubctl/help").glob("*.md"))
        for line in _MEASURED.findall(page.read_text("utf-8"))
        if not any(word in line for word in _ELSEWHERE) and f"{line} \\\n" not in page.read_text()
    ]
    return [re.sub(r" --(markdown|latex|junit) \S+", "", line) for line in dict.fromkeys(found)]


def test_no_example_of_the_manual_ends_without_a_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A newcomer who types an example learns something from it."""
    doubtful = {}
    for line in measured_examples():
        capsys.readouterr()
        status = app.run(["--dry-run", *line.split()])
        said = capsys.readouterr()
        if status != 0 or "verdict UNKNOWN" in said.out:
            doubtful[line] = (status, said.out[-300:], said.err)
    assert len(measured_examples()) > 12
    assert doubtful == {}
