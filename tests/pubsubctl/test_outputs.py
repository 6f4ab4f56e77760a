"""Stories about outputs that cannot be written, and about hosts whose login scripts print."""

import errno
import io
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from pubsubctl.console.console import StandardOutput
from pubsubctl.errors import PreflightFailed, Unreachable
from pubsubctl.hosts.ssh.connections import SshConnections
from pubsubctl.hosts.ssh.errors import Garbled
from pubsubctl.hosts.ssh.file_transfers import files_on
from pubsubctl.inventory.inventory import load_inventory
from pubsubctl.runs.capsule_index import CrateFile, crate_of
from pubsubctl.runs.outputs import check_results, explain_obstacle
from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")
INVENTORY = 'schema = "pubsubctl/inventory/1"\nname = "lab"\n[[hosts]]\nname = "n1"\n'


def ended(words: str, folder: Path) -> tuple[int, str]:
    """Return the status and the errors of a shell command, in which $P is pubsubctl."""
    done = subprocess.run(
        ["/bin/sh", "-c", words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "P": f"{sys.executable} -m pubsubctl"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="needs the device /dev/full")
@pytest.mark.parametrize("words", ["$P results list --json", "$P --help", "$P --version"])
def test_a_full_standard_output_is_a_sentence_and_no_verdict(tmp_path: Path, words: str) -> None:
    status, errors = ended(f"{words} >/dev/full", tmp_path)
    assert (status, errors) == (4, "error: standard output: no space left on device\n")


@pytest.mark.skipif(not FULL.exists(), reason="needs the device /dev/full")
def test_a_failed_write_names_standard_output() -> None:
    output = StandardOutput(io.BufferedWriter(FULL.open("wb", buffering=0)), "utf-8")
    output.write("a result\n")
    try:
        with pytest.raises(OSError, match="No space left on device") as caught:
            output.flush()
        output.flush_rest()  # which would report the same error again
    finally:
        with suppress(OSError):
            output.close()
    assert caught.value.filename == "standard output"


@pytest.mark.parametrize(
    "encoding, text, wanted",
    [
        ("ascii", "1 ms · δ", r"1 ms \u00b7 \u03b4"),
        ("latin-1", "≤ 1 ms · 😀", r"\u2264 1 ms · \ud83d\ude00"),
        ("utf-8", "runs/caf\udce9 δ", r"runs/caf\udce9 δ"),
    ],
)
def test_a_character_without_an_encoding_is_written_as_an_escape(
    encoding: str, text: str, wanted: str
) -> None:
    """Such a character ended `bench` with status 70 in place of its verdict."""
    written = io.BytesIO()
    strict = io.TextIOWrapper(written, encoding, "strict")
    output = StandardOutput.replacing(strict)
    output.write(text)
    output.flush()
    assert written.getvalue().decode(encoding) == wanted
    assert json.loads(f'"{wanted}"') == text


def test_a_closed_standard_output_is_a_sentence_and_no_verdict(tmp_path: Path) -> None:
    status, errors = ended("$P --version >&- <&-", tmp_path)
    assert status == 4
    assert errors == "error: standard output is closed; redirect it to a file or to /dev/null\n"


LOGIN_TEXTS = [
    (b"Welcome to node n1!\nLast login: today\n", "Welcome to node n1!"),
    (b"hi\n", "hi"),
    (b"\n\n  Maintenance at 6.\n", "Maintenance at 6."),
]


def test_a_text_before_a_file_transfer_is_named() -> None:
    for printed, text in LOGIN_TEXTS:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(printed + b"\0\0\0\5\2\0\0\0\3")
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(Garbled, match=f"^{text}$"):
                files_on(ours)


def test_a_login_that_prints_makes_the_host_unreachable_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(f'{INVENTORY}address = "10.0.0.1"\n')
    inventory = load_inventory(path)

    class Line:
        def transfer(self, work: object) -> None:
            raise Garbled("Welcome!")

    async def line(self: SshConnections, hop: object) -> Line:
        return Line()

    monkeypatch.setattr(SshConnections, "_line", line)

    async def story() -> Unreachable:
        async with SshConnections(inventory) as connections:
            with pytest.raises(Unreachable) as caught:
                await connections.try_transfer(inventory.hosts[0])
        return caught.value

    error = trio.run(story)
    assert error.exit_status == 6
    assert str(error) == (
        "n1: its login prints 'Welcome!' into file transfers; "
        "print in terminals only, for example after `[ -t 1 ] &&` in ~/.bashrc"
    )


def test_an_archive_finds_all_recommended_fields_of_a_capsule() -> None:
    for authors in ([], ["A. Author", "B. Author"]):
        check_crate(authors)


def check_crate(authors: list[str]) -> None:
    document = {"name": "paper", "published": "2026-11-28", "made_by": ["0.1.0 (abc)"]}
    names = ["capsule.json", "runs/a/1/log.jsonl", "runs/a/1/x.rec", "runs/a/1/f.svg", "SHA256SUMS"]
    crate = crate_of(
        document, [CrateFile(names[0]), *(CrateFile(n, 1, "0") for n in names[1:])], authors
    )
    by_id = {each["@id"]: each for each in crate["@graph"]}
    root = by_id["./"]
    for field in ("name", "description", "datePublished", "license", "author", "publisher"):
        assert root[field], field
    assert [each["@id"] for each in root["hasPart"]] == names
    linked = [*root["hasPart"], *root["author"], *root["mentions"], root["publisher"]]
    for one in (root["license"], *linked):
        assert by_id[one["@id"]]["name"]
        assert by_id[one["@id"]]["@type"]
    formats = [by_id[name]["encodingFormat"] for name in names]
    assert formats == [
        *("application/json", "application/x-ndjson", "application/octet-stream"),
        *("image/svg+xml", "text/plain"),
    ]
    people = [by_id[each["@id"]]["name"] for each in root["author"]]
    assert people == (authors or ["The authors of this capsule"])


def test_a_file_of_other_bytes_names_the_byte_without_a_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.toml").write_bytes(b'name = "caf\xe9"\n')
    for line in (
        "bench w.toml --dry-run",
        "sweep w.toml --dry-run",
        "bench demo --faults w.toml --dry-run",
        "bench demo --topology w.toml --dry-run",
        "topology lint w.toml",
        "inventory import ansible w.toml",
    ):
        result = call(*line.split())
        assert result.status == 2, line
        assert result.err.splitlines()[-1] == "error: w.toml: not UTF-8 (byte 11)", line
    Path("run").mkdir()
    Path("run/manifest.json").write_bytes(b'{"a": "caf\xe9"}\n')
    result = call("results", "show", "run")
    assert (result.status, "manifest.json: not UTF-8 (byte 10)" in result.err) == (8, True)


def test_a_wrong_number_of_forks_is_refused_by_every_command(
    monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setenv("PUBSUBCTL_FORKS", "many")
    for verb in ("results list", "status", "claims", "help"):
        result = call(*verb.split())
        assert result.status == 2, verb
        assert result.err == (
            "error: PUBSUBCTL_FORKS: forks = 'many'; a number from 1 to 1024\n"
        ), verb
    assert call("help", "--forks", "4").status == 0


@pytest.mark.parametrize(
    "variables, line, status, said",
    [
        ({"XDG_STATE_HOME": "/dev/null"}, "deploy chain3", 4, "/dev/null/pubsubctl"),
        ({"XDG_STATE_HOME": "/proc"}, "deploy chain3", 4, "/proc/pubsubctl: no such file"),
        ({"XDG_STATE_HOME": "/proc/1/x/y"}, "deploy chain3", 4, "/proc/1/x: no such file"),
        ({"PUBSUBCTL_RESULTS": "/dev/null"}, "results list", 2,
         "PUBSUBCTL_RESULTS: results = '/dev/null': a file, no folder"),
        ({}, "results list -o circle", 2, "results = 'circle': a link that leads in a circle"),
        ({}, f"workload lint {'x' * 5000}", 2, "…: file name too long"),
        ({}, f"results show {'x' * 5000}", 2, "xx…"),
        ({}, "logs --since tomorrow", 2, "--since = 'tomorrow': a duration has a number"),
        ({}, "clock check --latency 5", 2, "--latency = '5': a duration has a number"),
        ({}, "simulate shrink x", 2, "simulate shrink x: takes one seed, such as 17"),
        ({}, "workload lint DEMO", 2, "did you mean 'demo'?"),
        ({}, "topology lint first.toml", 2, "'pubsubctl/workload/1'; this reads 'pubsubctl/topol"),
    ],
)  # fmt: skip
def test_a_wrong_place_or_value_is_named(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
    variables: dict[str, str],
    line: str,
    status: int,
    said: str,
) -> None:
    (project / "first.toml").write_text('schema = "pubsubctl/workload/1"\ntopology = "chain3"\n')
    (project / "circle").symlink_to("circle")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = call(*line.split())
    assert (result.status, said in result.err) == (status, True), result.err[-400:]


def test_a_folder_that_was_removed_below_a_shell_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = call("config", "show")
    assert result.status == 4
    assert result.err == "error: the current folder was removed; cd to another\n"


def test_a_link_in_a_circle_is_named(project: Path, call: Call) -> None:
    (project / "mine.toml").symlink_to("mine.toml")
    result = call("workload", "lint", "mine.toml")
    assert (result.status, "a link that leads in a circle" in result.err) == (2, True)


def test_a_path_is_not_answered_with_names_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for line in (
        *("bench ./x.toml", "bench folder", "bench x.txt", "topology lint ./x.toml"),
        *("sweep ./x.toml", "compare --comparison ./x.toml", "experiment ./x", "plot ./x.json"),
        *("bench demo --faults ./x.toml --dry-run", "simulate run ./x.toml", "check ./x"),
        *("claims explain ./x", "targets ./x.toml", "deploy folder", "check folder"),
    ):
        result = call(*line.split())
        assert result.status == 2, (line, result.err)
        assert "known: " not in result.err, line
        assert "did you mean" not in result.err, line
    Path("w.toml").write_text("")
    assert call("check", "w.toml").err == (
        "error: run 'w.toml': this is a file, and no folder of a run\n"
    )
    assert "did you mean 'demo'?" in call("bench", "demoo.toml").err


def test_a_local_host_without_a_folder_runs_commands_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    path = here / "lab.toml"
    path.write_text(f'{INVENTORY}connector = "local"\n')
    result = call("-i", str(path), "exec", "--", "pwd")
    assert result.out.strip() == f"n1 | {home}"


@pytest.mark.parametrize(
    "place, reason",
    [
        ("/proc/none", "no such file or directory"),
        ("file/inner", "file exists"),
        ("folder", "is a directory"),
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        "topology gen chain --brokers 3 -o",
        "topology show demo --svg",
        "inventory import ssh-config config -o",
        "report run -o",
        "results capsule run -o",
    ],
)
def test_an_output_that_cannot_be_written_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, line: str, place: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    Path("config").write_text("Host n1\n")
    Path("run").mkdir()
    Path("run/manifest.json").write_text("{}")
    result = call("-y", *line.split(), place)
    assert result.status == 4, result.err
    assert result.err.splitlines()[-1].endswith(f"{reason}")
    assert place.split("/inner")[0] in result.err
    assert "starting Spark" not in result.err
    assert "internal error" not in result.err


@pytest.mark.parametrize(
    "line",
    [
        *("init /proc/none", "init file/inner", "results pack run -o /proc/none"),
        *("results histograms run -o /proc/none", "results reproduce c.tar.gz -o /proc/none"),
    ],
)
def test_a_folder_that_cannot_be_created_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("run").mkdir()
    Path("run/manifest.json").write_text("{}")
    result = call(*line.split())
    assert (result.status, "cannot be created: " in result.err) == (4, True), result.err


def test_a_folder_of_runs_without_room_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def fail(path: Path, content: bytes) -> int:
        write(path, b"")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(PreflightFailed, match="no run can be written here: no space left"):
        check_results(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_dry_run_finds_results_that_cannot_be_written_and_creates_nothing(
    tmp_path: Path, call: Call
) -> None:
    before = {*tmp_path.iterdir()}
    assert explain_obstacle(tmp_path / "new" / "runs", ()) == ""
    assert {*tmp_path.iterdir()} == before
    reason = "/proc/x: no run can be written here: no such file or directory"
    assert explain_obstacle(Path("/proc/x"), ()) == reason
    plan = call("sweep", "demo", "--over", "seed=1,2", "--dry-run", "-o", "/proc/x")
    assert (plan.status, f"a run would be refused now: {reason}" in plan.err) == (0, True), plan.err


@pytest.mark.parametrize(
    "words", [["schema", "workload"], ["topology", "gen", "chain"], ["simulate", "draw", "a.plan"]]
)
def test_an_output_on_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "tests/simulator/plans/M14.plan", "a.plan")
    write = Path.write_text

    def fail(path: Path, text: str, *arguments: object, **options: object) -> int:
        write(path, text[:9], encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    result = call(*words, "-o", "out/file.svg")
    assert (result.status, "no space left on device" in result.err) == (4, True), result.err
    assert [*Path("out").iterdir()] == []


@pytest.mark.skipif(not FULL.exists(), reason="needs the device /dev/full")
def test_an_output_on_a_full_device_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("-y", *["topology", "gen", "chain", "--brokers", "3", "-o", "/dev/full"])
    assert (result.status, result.err) == (
        4,
        "error: /dev/full: cannot be written: no space left on device\n",
    )


def test_a_dash_is_standard_output_where_a_text_is_printed(call: Call, project: Path) -> None:
    (project / "c.cfg").write_text("Host n1\n  User lab\n")
    for words in (
        ("topology", "gen", "tree", "--brokers", "3"),
        ("inventory", "import", "ssh-config", "c.cfg"),
        ("schema", "workload"),
    ):
        answer = call(*words, "-o", "-")
        assert (answer.status, answer.out) == (0, call(*words).out)
    assert not (project / "-").exists()


@pytest.mark.parametrize("option", ["--svg", "-o"])
def test_a_dash_is_no_file_where_no_text_is_printed(call: Call, project: Path, option: str) -> None:
    words = {"--svg": ("topology", "show", "chain3"), "-o": ("topology", "place", "chain3")}
    answer = call(*words[option], option, "-")
    assert answer.status == 2
    assert "error: -: name a file; this output cannot go to standard output" in answer.err
    assert not (project / "-").exists()


def test_the_file_of_a_capsule_is_looked_at_before_spark_starts(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr("results.checker.spark.spark_session", start)
    path = tmp_path / "c.tar.gz"
    path.write_text("theirs")
    run = ROOT / "results" / "samples" / "delta-tree-crash"
    answer = call("results", "capsule", str(run), "-o", str(path))
    assert answer.status == 2
    assert f"error: {path} is there already; name another file" in answer.err
    assert path.read_text() == "theirs"


def test_logs_with_a_number_of_lines_as_for_tail_names_the_option(call: Call) -> None:
    answer = call("logs", "-n", "3")
    assert answer.status == 2
    assert "`logs` has no --dry-run (-n); --lines N prints the last N lines" in answer.err
