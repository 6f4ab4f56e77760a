"""Tests of terminal output, for any names in files and hosts."""

import ast
import io
import json
import platform
import re
from pathlib import Path

import pytest

from brokerd.text import counted, format_number
from pubsubctl.console.console import Console, Result
from pubsubctl.console.progress_text import estimate_left, fit_numbers, share_of
from pubsubctl.console.waits import (
    DEPLOYING,
    ENDING,
    LOADING,
    RunTime,
    WaitTimes,
    describe_series,
)

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ROOT = Path(__file__).parents[2]
NASTY = "\x1b[31mred\x07\r\x9b2J\u202eback"
TAMED = "\\x1b[31mred\\x07\\r\\x9b2J\\u202eback"


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_control_characters_are_escaped_on_a_terminal() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(stdout=out, stderr=err, verbose=1, environment={})
    for say in (console.print, console.detail, console.warn, console.error):
        say(NASTY)
    assert err.getvalue() == f"{TAMED}\n{TAMED}\nwarning: {TAMED}\nerror: {TAMED}\n"
    console.result(Result(document={"schema": "x"}, text=f"a  {NASTY}\n├── δ ≠\tb\u202f1"))
    assert out.getvalue() == f"a  {TAMED}\n├── δ ≠\tb\u202f1\n"


def test_the_colours_of_a_result_are_its_own() -> None:
    out = Terminal()
    console = Console(stdout=out, color="always", environment={})
    console.result(Result(document={}, text=f"{console.colorize('VALID', 'good')} \x1b[2Jrest"))
    assert out.getvalue() == "\x1b[32mVALID\x1b[0m \\x1b[2Jrest\n"


def test_a_grouped_table_has_a_title_above_the_rows_of_a_group() -> None:
    console = Console(stdout=io.StringIO(), environment={})
    text = console.grouped_table(("NUMBER", "MEAN"), {"a, 3 runs": [("p50", "1")], "b": []})
    assert text == "NUMBER  MEAN\na, 3 runs\n  p50   1\nb"


def test_a_warning_of_many_runs_is_written_once() -> None:
    err = Terminal()
    console = Console(stdout=Terminal(), stderr=err, color="never")
    for text in ("step roam", "step kill", "step roam"):
        console.warn_once(text)
    assert err.getvalue() == "warning: step roam\nwarning: step kill\n"


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1_394, 4, "1,394"),
        (25_812.4, 4, "25,812"),
        (1_545.2, 3, "1,545"),
        (26.194, 4, "26.19"),
        (0.017234, 4, "0.01723"),
        (120.0, 2, "120"),
        (-0.04, 1, "-0.04"),
        (-0.0, 4, "0"),
        (1.0, 4, "1"),
        (0.0000012, 2, "0.0000012"),
    ],
)
def test_a_number_has_commas_and_no_exponent(value: float, digits: int, text: str) -> None:
    assert format_number(value, digits) == text


def test_a_count_agrees_with_its_noun() -> None:
    nouns = ("broker", "proxy", "delivery", "day", "loss", "branch")
    assert [counted(1, noun) for noun in nouns] == [f"1 {noun}" for noun in nouns]
    assert [counted(2_000, noun) for noun in nouns] == [
        *("2,000 brokers", "2,000 proxies", "2,000 deliveries"),
        *("2,000 days", "2,000 losses", "2,000 branches"),
    ]


def test_one_formatter_writes_the_numbers_of_messages() -> None:
    folders = ("pubsubctl", "bench/run", "bench/spec", "results/rules", "results/report")
    files = [path for each in folders for path in (ROOT / each).rglob("*.py")]
    other = re.compile(r"""\.[0-9]+g\}|replace\(",", " "\)""")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if other.search(line)
    ]
    assert len(files) > 100
    assert not found, found


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
    """An estimate comes from the request, such as a phase's length; a constant is a guess."""
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


def test_a_wait_has_a_share_and_the_time_left_by_count_or_by_earlier_commands() -> None:
    assert share_of({"ready": "3/12", "sessions": "11/22", "waiting for": "b1"}) == 0.25
    assert share_of({"sent": 3}) is None
    assert estimate_left(3.0, None, 0.25) == (0.25, "9 s left")
    assert estimate_left(3.0, 12.0, None) == (0.25, "9 s left")
    assert estimate_left(3.0, None, None) == (None, "")
    share, left = estimate_left(30.0, 12.0, None)
    assert (share or 0) < 1
    assert left == "longer than usual (12 s)"


def test_a_command_expects_the_waits_of_earlier_commands_on_this_machine(tmp_path: Path) -> None:
    def wait(waits_s: dict[str, float], machine: str) -> str:
        return json.dumps({"kind": "waits", "machine": machine, "waits": waits_s}) + "\n"

    here = platform.node()
    (tmp_path / "index.jsonl").write_text(
        '{"run_id": "x", "labels": {}}\nnot json\n'
        + "".join(wait({"checking": seconds, "drain": "soon"}, here) for seconds in (9, 12, 30))
        + wait({"checking": 500.0}, "another machine")
    )
    err = io.StringIO()
    console = Console(stderr=err, environment={})
    console.results = tmp_path
    with console.progress() as progress:
        progress.phase("checking 2 of 6: 20261128T221718Z-c1a285")
        progress.phase("drain")
    assert err.getvalue().splitlines() == [
        "checking 2 of 6: 20261128T221718Z-c1a285 (about 12 s)",
        "drain",
    ]
    last = json.loads((tmp_path / "index.jsonl").read_text().splitlines()[-1])
    assert {*last["waits"]} == {"checking", "drain"}
    took = RunTime.expect(WaitTimes.read(tmp_path), load_s=20.0)
    assert took.checking_s < 12
    assert "check" in took.describe()
    assert "check" not in took.describe(check=False)


def test_the_time_of_a_run_is_the_sum_of_its_waits() -> None:
    """Each wait has a bit of its own, so that a sum shows its waits."""
    keys = (*DEPLOYING, *LOADING, *ENDING, "starting Spark", "checking")
    took = RunTime.expect(WaitTimes({key: 2.0**place for place, key in enumerate(keys)}), 4096.0)
    assert (took.deploying_s, took.loading_s, took.ending_s) == (7, 4096 + 0b11111000, 0b1100000000)
    assert (took.starting_spark_s, took.checking_s, took.is_learnt) == (1024, 2048, True)
    assert took.run_s == 4096 + 1023
    short = RunTime(10, 20, 5, 3, 4, is_learnt=False)
    assert short.describe() == (
        "takes about 42 s (deployment 10 s, load 20 s, collection and teardown 5 s, check 7 s; "
        "from usual times)"
    )
    assert short.describe(check=False) == (
        "takes about 35 s (deployment 10 s, load 20 s, collection and teardown 5 s; "
        "from usual times)"
    )
    assert describe_series([short, short]) == "2 runs, about 70 s, and 11 s to check them"
    assert describe_series([short], check=False) == "1 run, about 35 s"


@pytest.mark.parametrize(
    "width, shown",
    [
        (80, "45% · 12 s left · sent 1,234,567 · delivered 12,345,678 · backlog 1,234"),
        (62, "45% · 12 s left · sent 1.2M · delivered 12.3M · backlog 1,234"),
        (60, "45% · 12 s left · sent 1.2M · delivered 12.3M"),
        (30, "45% · 12 s left · sent 1.2M"),
        (20, "45% · 12 s left"),
    ],
)
def test_a_number_is_rounded_or_left_out_and_never_cut(width: int, shown: str) -> None:
    numbers = {"sent": 1_234_567, "delivered": 12_345_678, "backlog": 1_234}
    assert fit_numbers(["45%", "12 s left"], numbers, width) == shown


@pytest.mark.parametrize("stream, lines", [(io.StringIO, 0), (Terminal, 1)])
def test_a_wait_is_one_line_in_a_pipe(stream: type[io.StringIO], lines: int) -> None:
    err = stream()
    with Console(stderr=err, environment={"TERM": "dumb"}).progress() as progress:
        progress.phase("exploring gryphon")
        for states in range(3):
            progress.update({"states": states})
    expected = ["exploring gryphon", *["  exploring gryphon: states 0"] * lines]
    assert err.getvalue().splitlines() == expected


@pytest.mark.parametrize("columns", [80, 200])
def test_a_wait_fits_the_width_of_the_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    err = Terminal()
    with Console(stderr=err, environment={}).progress() as progress:
        progress.phase("waiting for sessions", 40.0)
        numbers = {"ready": "3/12", "sessions": "11/22", "waiting for": "b1, b2, b4 and 2 more"}
        progress.update(numbers)
        progress._live.refresh()
    lines = [CONTROL.sub("", line) for line in re.split(r"[\r\n]", err.getvalue())]
    shown = [line for line in lines if "waiting for sessions" in line]
    assert shown
    assert all(len(line) <= columns for line in shown), shown
    assert "25% · " in shown[-1]
    assert "left" in shown[-1]
    assert ("and 2 more" in shown[-1]) == (columns == 200)
    assert shown[-1].rstrip().endswith("…") == (columns == 80)
