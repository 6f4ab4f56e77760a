"""Stories about the command line: options, streams, exit statuses, and data that is never lost."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from pubsubctl import errors
from pubsubctl.commands import app as command_line
from pubsubctl.commands.options.global_options import global_options_first
from pubsubctl.console.console import ColorChoice, Console
from pubsubctl.errors import PubsubctlError, combine_statuses
from tests.helpers.language import CLAUSE
from tests.helpers.patience import PATIENCE_S
from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "given, sorted_",
    [
        (["inventory", "list", "-j"], ["-j", "inventory", "list"]),
        (["-i", "x", "status", "-l", "a", "-vv"], ["-i", "x", "-l", "a", "-vv", "status"]),
        (["status", "--limit=a", "--no-progress"], ["--limit=a", "--no-progress", "status"]),
        (["bench", "demo", "-r", "5/s", "-nq"], ["-nq", "bench", "demo", "-r", "5/s"]),
        (["logs", "--", "-n", "-j"], ["logs", "--", "-n", "-j"]),
        (
            ["topology", "gen", "chain", "--delta", "-1"],
            ["topology", "gen", "chain", "--delta", "-1"],
        ),
        (["bench", "-"], ["bench", "-"]),
        (["logs", "-f", "b1"], ["logs", "-f", "b1"]),
        (["-f", "4", "logs", "b1"], ["-f", "4", "logs", "b1"]),
    ],
)
def test_global_options_are_accepted_before_and_after_the_verb(
    given: list[str], sorted_: list[str]
) -> None:
    assert global_options_first(given) == sorted_


@pytest.mark.parametrize("place", ["before", "after"])
def test_json_output_is_one_document_with_its_schema(call: Call, place: str) -> None:
    verb = ["inventory", "list"]
    answer = call(*(["--json", *verb] if place == "before" else [*verb, "--json"]))
    assert answer.status == 0
    assert answer.document["schema"] == "pubsubctl/inventory-list/1"
    assert [host["name"] for host in answer.document["hosts"]] == ["t1", "t2"]
    assert answer.err == ""


def test_json_is_one_document_when_something_is_wrong_too(call: Call) -> None:
    answer = call("inventory", "show", "t3", "-j")
    assert answer.status == 2
    assert answer.document["schema"] == "pubsubctl/error/1"
    (cause,) = answer.document["because"]
    assert (cause["kind"], cause["exit_status"]) == ("UserError", 2)
    assert "did you mean 't2'?" in cause["text"]
    assert cause["text"] in answer.err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["deplo"], "no such command 'deplo'"),
        (["inventory", "lst"], "did you mean 'list'"),
        (["inventory", "list", "--origin"], "no such option"),
        (["topology", "gen"], "missing argument"),
        (["inventory", "list", "--color", "red"], "one of auto, always, never"),
        (["inventory", "list", "--forks", "0"], "--forks"),
        (["inventory", "list", "-i", "lokal"], "did you mean 'local'?"),
        (["inventory", "list", "-i", "there/is/none.toml"], "no such file"),
        (["inventory", "list", "-l", "t9"], "did you mean"),
        (["topology", "gen", "chian"], "did you mean 'chain'?"),
        (["topology", "gen", "chain", "--delta", "-1"], "delta = -1; a whole number from 0"),
        (["topology", "gen", "chain", "--brokers", "0"], "brokers = 0; from 1 to"),
        (["topology", "gen", "tree", "--fanout", "1"], "fanout = 1"),
        (["topology", "show", "demos"], "did you mean 'demo'?"),
        (["help", "exits"], "did you mean 'exit-statuses'?"),
        (["completion", "tcsh"], "zsh"),
        (["stop"], "no such command 'stop'; did you mean 'down'?"),
        (["import", "ansible", "h"], "no such command 'import'; did you mean 'inventory import'?"),
        (["capsule", "latest"], "did you mean 'results capsule'?"),
        (["mine"], "no such command 'mine'\n"),
        (["version"], "did you mean '--version'?"),
        (["get", "pods"], "did you mean 'status'?"),
        (["workload", "lint", "mine"], "nor workload of that name; known: "),
        (["status", "-o", "json"], "no such option: -o; --json prints the result"),
        (["results", "list", "-o", "json"], "no such folder of runs; --json prints the result"),
        (["claims", "list", "-o", "absent"], "--output-dir absent: no such folder of runs"),
        (["status", "now"], "unexpected argument 'now'"),
        (["workload"], "pubsubctl workload: add lint"),
        (["bench", "demo", "--label"], "option '--label' requires"),
        (["help", "nosuch"], "`pubsubctl --help` lists the verbs"),
        (["topology", "lint", "chain3-paced"], "'chain3-paced' names a file of kind workload"),
        (["check", "chain3-paced"], "no run, but the name of a file of kind workload"),
        (["results", "list", "--since", "2026-13-01"], "no day of the calendar"),
        (["results", "list", "--since", "5"], "--since 5: an age such as 7d or 12h, or a date"),
        (["inventory", "import", "ssh", "x"], "did you mean 'ssh-config'?"),
        (["doctor", "--only", "jawa"], "did you mean 'java'?"),
    ],
)
def test_an_invalid_command_line_exits_2_with_a_specific_message(
    call: Call, arguments: list[str], said: str
) -> None:
    answer = call(*arguments)
    assert answer.status == 2
    assert said in answer.err.lower().replace(said, said)
    assert answer.out == ""
    assert "Traceback" not in answer.err


def test_init_writes_a_project_and_never_over_anything(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = call("init", "new", "-j")
    assert answer.status == 0
    files = answer.document["files"]
    assert sum("/workloads/" in name for name in files) == 3
    assert sum("/fault_injection/" in name for name in files) == 1
    assert {str(path) for path in Path("new").rglob("*") if path.is_file()} == set(files)

    changed = project / "new" / "pubsubctl.toml"
    changed.write_text(changed.read_text() + "forks = 3\n")
    (project / "new" / "inventories" / "local.toml").unlink()
    again = call("init", "new")
    assert again.status == 2
    assert "pubsubctl.toml: exists already" in again.err
    assert changed.read_text().endswith("forks = 3\n")
    assert not (project / "new" / "inventories" / "local.toml").exists()


def test_files_written_by_init_are_accepted_by_every_reader(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.spec.spec import load_experiment

    assert call("init", "new").status == 0
    monkeypatch.chdir(project / "new")
    assert call("inventory", "lint").out == "inventories/local.toml: ok, 3 hosts\n"
    for path in sorted(Path("bench/workloads").glob("*.toml")):
        assert load_experiment(path).name == path.stem
    checked = call("inject", "kill-b1", "--topology", "demo", "--lint")
    assert (checked.status, checked.err) == (0, "")
    planned = call("bench", "survive", "--faults", "kill-b1", "--dry-run")
    assert (planned.status, planned.err) == (0, "")


def test_a_dry_run_of_init_writes_nothing(call: Call, project: Path) -> None:
    answer = call("init", "new", "--dry-run")
    assert "would write new/pubsubctl.toml" in answer.out
    assert not (project / "new").exists()


def test_the_most_severe_error_decides_the_exit_status() -> None:
    order = [70, 7, 8, 143, 130, 1, 3, 5, 6, 4, 2, 0]
    for place, status in enumerate(order):
        assert combine_statuses(reversed(order[place:])) == status
    assert combine_statuses([]) == 0


def test_every_kind_of_error_has_the_status_that_the_help_names() -> None:
    from importlib import resources

    text = (resources.files("pubsubctl") / "help" / "exit-statuses.md").read_text()
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, PubsubctlError)
    ]
    assert {kind.exit_status for kind in kinds} == {1, 2, 3, 4, 5, 6, 7, 8, 70, 130, 143}
    for kind in kinds:
        assert re.search(rf"(^|  ) *{kind.exit_status}  ", text, re.MULTILINE)


def test_a_bug_of_ours_is_saved_to_a_file_and_exits_70(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, selectors: object) -> None:
        raise ZeroDivisionError("what nobody thought of")

    monkeypatch.setattr("pubsubctl.inventory.inventory.Inventory.select", broken)
    answer = call("inventory", "list")
    assert answer.status == 70
    assert "internal error: ZeroDivisionError: what nobody thought of" in answer.err
    assert "Traceback" not in answer.err
    path = Path(answer.err.split("see ")[1].strip())
    saved = path.read_text()
    assert "pubsubctl inventory list" in saved
    assert "ZeroDivisionError: what nobody thought of" in saved


def test_several_errors_are_all_reported_and_the_worst_decides_the_status(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, selectors: object) -> None:
        raise ExceptionGroup(
            "two hosts", [errors.Unreachable("host a: silent"), errors.LabDirty("host b: pid 1")]
        )

    monkeypatch.setattr("pubsubctl.inventory.inventory.Inventory.select", broken)
    answer = call("inventory", "list")
    assert answer.status == 7
    assert "host a: silent" in answer.err
    assert "host b: pid 1" in answer.err


def test_ctrl_c_exits_130(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, selectors: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pubsubctl.inventory.inventory.Inventory.select", interrupted)
    assert call("inventory", "list").status == 130
    assert call("inventory", "list", "-j").document["exit_status"] == 130


def test_ctrl_c_while_the_command_is_imported_is_no_traceback(tmp_path: Path) -> None:
    slow = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "typer.py").write_text(slow)
    process = subprocess.Popen(
        [sys.executable, "-m", "pubsubctl", "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "error: interrupted\n")
    assert process.returncode == 130


@pytest.mark.parametrize("came, status", [([], 130), ([signal.SIGTERM], 143)])
@pytest.mark.parametrize(
    "failure",
    [
        KeyboardInterrupt(),
        BaseExceptionGroup("tasks", [BaseExceptionGroup("", [KeyboardInterrupt()])]),
    ],
    ids=["alone", "among tasks"],
)
def test_a_signal_counts_whatever_libraries_make_of_it(
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    came: list[int],
    status: int,
) -> None:
    def interrupted(self: object, selectors: object) -> None:
        raise failure

    monkeypatch.setattr("pubsubctl.inventory.inventory.Inventory.select", interrupted)
    monkeypatch.setattr(command_line, "_ended_by", came)
    assert call("inventory", "list").status == status


def test_a_termination_interrupts_no_bookkeeping_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came: list[int] = []
    finished: list[str] = []
    monkeypatch.setattr(command_line, "_ended_by", came)
    before = signal.signal(signal.SIGTERM, command_line._raise_terminated)

    @trio.lowlevel.enable_ki_protection
    async def work() -> None:
        signal.raise_signal(signal.SIGTERM)
        finished.append("bookkeeping")
        await trio.sleep(PATIENCE_S)

    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (came, finished) == ([signal.SIGTERM], ["bookkeeping"])


def test_a_failure_caused_by_a_signal_is_no_bug(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, selectors: object) -> None:
        raise ConnectionResetError("the other process has had the signal, too")

    monkeypatch.setattr("pubsubctl.inventory.inventory.Inventory.select", broken)
    monkeypatch.setattr(command_line, "_ended_by", [signal.SIGTERM])
    answer = call("inventory", "list")
    assert (answer.status, answer.err) == (143, "error: terminated\n")


@pytest.mark.parametrize(
    "environment, choice, colored",
    [
        ({}, "auto", False),
        ({}, "always", True),
        ({"FORCE_COLOR": "1"}, "auto", True),
        ({"CLICOLOR_FORCE": "1"}, "auto", True),
        ({"CLICOLOR_FORCE": "0"}, "auto", False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, "auto", False),
        ({"FORCE_COLOR": "1"}, "never", False),
        ({"NO_COLOR": "1"}, "always", True),
    ],
)
def test_colour_is_there_when_it_is_wanted(
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    choice: ColorChoice,
    colored: bool,
) -> None:
    console = Console(color=choice, environment=environment)
    assert ("\x1b[" in console.colorize("VALID", "good")) is colored
    console.error("no")
    assert ("\x1b[" in capsys.readouterr().err) is colored


def test_progress_is_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    with console.progress() as progress:
        progress.phase("measure", 10.0)
        for sent in range(1000):
            progress.update({"sent": sent})
        progress.print("killed b1")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "measure (about 10 s)\nkilled b1\n"
    with Console(quiet=True).progress() as progress:
        progress.phase("measure", 10.0)
    assert capsys.readouterr().err == ""


def test_help_is_there_without_starting_anything_slow() -> None:
    program = (
        "import sys\nfrom pubsubctl.commands.app import run\nassert run(['--help']) == 0\n"
        "slow = {'pyspark', 'numpy', 'pandas', 'trio', 'paramiko', 'matplotlib', 'psutil'}\n"
        "assert not slow & set(sys.modules), slow & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout


def test_a_reader_that_closes_its_pipe_is_no_bug() -> None:
    command = (
        f"{sys.executable} -c 'from pubsubctl.commands.app import main; main()' help conventions"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_the_version_and_help_need_no_project(call: Call) -> None:
    assert call("--version").out.startswith("pubsubctl ")
    assert call().out == call("--help").out
    for verb in ("inventory", "topology"):
        assert call(verb).status == 2


def test_settings_prefer_flag_over_environment_project_user_and_default(
    call: Call, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (project / "inventories" / "local.toml").read_text()
    for name in ("flag", "environment", "ours", "user"):
        (project / "inventories" / f"{name}.toml").write_text(text.replace('"test"', f'"{name}"'))
    schema = 'schema = "pubsubctl/project/1"\n'

    def in_use(*options: str) -> str:
        return str(call("inventory", "list", "-j", *options).document["inventory"])

    assert in_use() == "test"
    (tmp_path / "config" / "pubsubctl").mkdir(parents=True)
    (tmp_path / "config" / "pubsubctl" / "config.toml").write_text(
        f'{schema}inventory = "{project}/inventories/user.toml"\n'
    )
    assert in_use() == "user"
    (project / "pubsubctl.toml").write_text(f'{schema}inventory = "inventories/ours.toml"\n')
    assert in_use() == "ours"
    (project / "below").mkdir()
    monkeypatch.chdir(project / "below")
    assert in_use() == "ours"
    monkeypatch.setenv("PUBSUBCTL_INVENTORY", "environment")
    assert in_use() == "environment"
    assert in_use("-i", "flag") == "flag"
    (project / "pubsubctl.toml").write_text(f'{schema}master = "spark://m:7077"\nforks = 3\n')
    told = call("config", "show", "-j", "-i", "flag").document["settings"]
    assert {name: row["value"] for name, row in told.items()} == {
        "inventory": "flag",
        "results": "results/runs",
        "forks": "3",
        "master": "spark://m:7077",
    }
    assert told["inventory"]["origin"] == "--inventory"
    assert told["results"]["origin"] == "default"
    monkeypatch.setenv("PUBSUBCTL_FORK", "3")
    misspelt = call("config").err
    assert "warning: PUBSUBCTL_FORK: no such variable; did you mean 'PUBSUBCTL_FORKS'?" in misspelt
    shown = call("config", "show", "--origin").out
    assert "PUBSUBCTL_INVENTORY" in shown
    assert "pubsubctl.toml" in shown


def test_a_project_file_with_an_unknown_key_is_refused(call: Call, project: Path) -> None:
    (project / "pubsubctl.toml").write_text('schema = "pubsubctl/project/1"\nresult = "x"\n')
    answer = call("inventory", "list")
    assert answer.status == 2
    assert "pubsubctl.toml:2: result: unknown key; did you mean 'results'?" in answer.err


def test_the_text_of_a_result_is_printed_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    from pubsubctl.console.console import Result

    table = Console().table(("A", "B"), [("[bold]x[/]", "[red]"), ("long " * 60, 1)])
    Console().result(Result(document={"schema": "s"}, text=table))
    out = capsys.readouterr().out
    assert "[bold]x[/]" in out
    assert "long " * 59 in out
    Console(as_json=True).result(Result(document={"schema": "s", "δ": 1}))
    assert json.loads(capsys.readouterr().out) == {"schema": "s", "δ": 1, "exit_status": 0}


@pytest.mark.parametrize(
    "topic, said",
    [
        ("faults", "slow-fsync"),
        ("clocks", "a tenth of the"),
        ("ssh", "inventory trust"),
        ("exit-codes", "UNKNOWN"),
        ("inventories", "[[hosts]]"),
        ("conventions", "NO_COLOR"),
    ],
)
def test_help_explains_the_rules_of_all_verbs(call: Call, topic: str, said: str) -> None:
    answer = call("help", topic)
    assert answer.status == 0
    assert said in answer.out
    assert "@" not in answer.out


def test_help_topics_fit_into_a_hundred_columns(call: Call) -> None:
    topics = json.loads(call("help", "--json").out)["topics"]
    assert len(topics) > 20
    wide = {
        (topic, line)
        for topic in topics
        for line in call("help", topic).out.splitlines()
        if len(line) > 100
    }
    assert wide == set()


def test_every_verb_of_a_fault_is_explained(call: Call) -> None:
    from brokerd.model.fault_verbs import VERB_TABLE

    text = call("help", "faults").out
    assert [verb for verb in VERB_TABLE if f"    {verb} " not in text] == []


def test_help_texts_are_short_sentences_that_begin_with_a_verb() -> None:
    """Help texts have at most 25 words, no clause as a noun, and no person for a process."""
    wrong = []
    persons = re.compile(
        r"\b(who|whoever|whom|whose|nobody|somebody|everybody|what|whatever)\b", re.I
    )
    for name, text in help_texts(command_line.command_of(), "pubsubctl"):
        sentences = re.split(r"(?<=[.:;])\s+", text)
        wrong += [f"{name}: {each}" for each in sentences if len(each.split()) > 25]
        if CLAUSE.match(text) or persons.search(text):
            wrong.append(f"{name}: {text}")
        is_option = " --" in name
        if is_option and not re.match(r"[A-Z][a-z]+(,| )", text):
            wrong.append(f"{name}: {text}")
    assert wrong == []


def test_each_verb_explains_itself_in_one_line_that_is_not_cut(call: Call) -> None:
    groups = ("", "results", "simulate", "topology", "inventory", "lab", "claims", "clock", "spark")
    for group in groups:
        lines = call(*group.split(), "--help").out.splitlines()
        assert [line for line in lines if line.endswith("...") and "Usage" not in line] == []


def test_help_names_each_argument_and_value_in_capitals() -> None:
    """Usage lines and lists have BROKER, [DIR], [RUN...] and N, and no type or braces."""
    wrong = []
    for context in contexts(command_line.command_of(), None, "pubsubctl"):
        lines = context.get_help().splitlines()
        wrong += [f"{context.command_path}: {each}" for each in lines if UNNAMED.search(each)]
        if not getattr(context.command, "commands", None):
            assert lines[-1].strip().startswith("Global options"), context.command_path
    assert wrong == []


UNNAMED = re.compile(r"<(str|int|list|float|path|file|dir)|Usage: .*(\{|\[\[|\.\.\.\]?\.\.\.)|: \(")
"""The name of a type, and typer's brackets around required, repeated and described values."""


def contexts(command: Any, parent: Any, name: str) -> Iterator[Any]:
    """Yield the context of a command, and of all of its subcommands."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield context
    for verb, inner in getattr(command, "commands", {}).items():
        yield from contexts(inner, context, verb)


def help_texts(command: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a command and its options, and of its subcommands, by name."""
    yield name, " ".join((command.help or "").split())
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield f"{name} {parameter.opts[-1]}", getattr(parameter, "help", None) or ""
    for verb, inner in getattr(command, "commands", {}).items():
        yield from help_texts(inner, f"{name} {verb}")


def test_options_of_a_verb_stand_in_groups(call: Call) -> None:
    sections = re.findall(r"^([A-Z][A-Za-z -]+):$", call("bench", "--help").out, re.MULTILINE)
    assert sections == [
        "Arguments", "Workload", "Repetitions", "Cluster", "Results", "Faults", "Options",
    ]  # fmt: skip


def test_an_option_has_one_declaration_in_every_verb() -> None:
    """Verbs that share an option group or an alias share the option's text."""
    command = command_line.command_of()
    texts: dict[str, set[str]] = {}
    for verb in ("bench", "sweep", "compare", "limit", "experiment"):
        for parameter in command.commands[verb].params:  # type: ignore[attr-defined]
            texts.setdefault(parameter.opts[0], set()).add(getattr(parameter, "help", "") or "")
    assert {option for option, found in texts.items() if len(found) > 1} <= {"name", "workload"}


@pytest.mark.parametrize("group", ["results", "simulate", "topology", "clock"])
def test_a_group_without_a_verb_names_its_verbs(call: Call, group: str) -> None:
    answer = call(group) if group != "simulate" else call("-q", "topology")
    assert answer.status == 2
    assert "name one of " in answer.err


def test_help_takes_the_name_of_a_verb_and_of_a_kind_of_files(call: Call) -> None:
    assert call("help", "bench").out == call("bench", "--help").out
    assert call("help", "workload").out == call("help", "workloads").out
    assert call("config").out == call("config", "show").out


def test_help_fits_a_terminal(call: Call) -> None:
    for verb in ("bench", "compare", "inject", "deploy", "logs", "experiment"):
        lines = call(verb, "--help").out.splitlines()
        assert [line for line in lines if len(line) > 80] == []


def test_help_fits_a_narrow_terminal_with_whole_sentences(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        for line in ("--help", "results --help", "bench --help"):
            rows = call(*line.split()).out.splitlines()
            assert max(map(len, rows[1:])) <= min(columns, 100)
            assert not [row for row in rows[1:] if row.endswith("...") and "ARGS" not in row]
