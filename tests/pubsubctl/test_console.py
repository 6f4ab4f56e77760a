"""What reaches a terminal, whatever files and hosts have in their names."""

import ast
import io
from pathlib import Path

import pytest

from pubsubctl.console.console import Console, Result

ROOT = Path(__file__).parents[2]
NASTY = "\x1b[31mred\x07\r\x9b2J\u202eback"
TAMED = "\\x1b[31mred\\x07\\r\\x9b2J\\u202eback"


class Terminal(io.StringIO):
    """A stream that says that it is one."""

    def isatty(self) -> bool:
        return True


def test_control_characters_are_escaped_on_a_terminal() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(stdout=out, stderr=err, verbose=1, environment={})
    for say in (console.say, console.detail, console.warn, console.error):
        say(NASTY)
    assert err.getvalue() == f"{TAMED}\n{TAMED}\nwarning: {TAMED}\nerror: {TAMED}\n"
    console.result(Result(document={"schema": "x"}, text=f"a  {NASTY}\n├── δ ≠\tb\u202f1"))
    assert out.getvalue() == f"a  {TAMED}\n├── δ ≠\tb\u202f1\n"


def test_the_colours_of_a_result_are_its_own() -> None:
    out = Terminal()
    console = Console(stdout=out, color="always", environment={})
    console.result(Result(document={}, text=f"{console.colorize('VALID', 'good')} \x1b[2Jrest"))
    assert out.getvalue() == "\x1b[32mVALID\x1b[0m \\x1b[2Jrest\n"


def test_a_message_is_not_endless() -> None:
    err = io.StringIO()
    Console(stderr=err, environment={}).error(f"filter = {'1, ' * 100_000}: cannot be read")
    assert len(err.getvalue()) < 2_100
    assert err.getvalue().endswith("… (298,025 more characters)\n")


@pytest.mark.parametrize(
    "environment, moves", [({}, True), ({"NO_COLOR": "1"}, False), ({"CI": "1"}, False)]
)
def test_a_terminal_without_colour_shows_no_animation(
    environment: dict[str, str], moves: bool
) -> None:
    err = Terminal()
    with Console(stderr=err, environment=environment).progress() as progress:
        progress.phase("measure", 10.0)
        progress.update({"sent": 1})
    assert ("\x1b" in err.getvalue() or "\r" in err.getvalue()) == moves
    if not moves:
        assert err.getvalue() == "measure (about 10 s)\n  measure: sent 1\n"


def test_no_phase_has_a_guessed_duration() -> None:
    """An estimate is of what was asked for, such as a phase's length; a number is a guess."""
    guesses = []
    for package in ("bench", "pubsubctl", "results"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "phase"
                    and any(
                        isinstance(inner, ast.Constant) and isinstance(inner.value, int | float)
                        for argument in node.args[1:]
                        for inner in ast.walk(argument)
                    )
                ):
                    guesses.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert guesses == []
