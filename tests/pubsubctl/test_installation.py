"""Stories about installations: pages for `man`, and the image of the controller."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pubsubctl.commands.app import command_of
from pubsubctl.man_pages import man_pages
from tests.pubsubctl.conftest import Call

ROOT = Path(__file__).parents[2]
BUILDER = next((found for name in ("podman", "docker") if (found := shutil.which(name))), None)


def test_each_verb_has_a_page_with_its_options_and_arguments(tmp_path: Path, call: Call) -> None:
    answer = call("help", "--man", str(tmp_path))
    assert answer.status == 0, answer.err
    pages = {path.name: path.read_text() for path in (tmp_path / "man1").iterdir()}
    assert pages == man_pages(command_of())
    assert {"pubsubctl.1", "pubsubctl-bench.1", "pubsubctl-results-archive.1"} <= pages.keys()
    bench = pages["pubsubctl-bench.1"]
    assert bench.startswith('.TH "PUBSUBCTL-BENCH" "1"')
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "ARGUMENTS", "FAULTS"):
        assert f"\n.SH {section}\n" in bench
    assert "\\-\\-faults" in bench
    for name, text in pages.items():
        assert text.isascii(), name
        lines = text.splitlines()
        wrong = [line for line in lines if re.match(r"'|\.(?!(TH|SH|PP|TP|B|I)\b)", line)]
        assert wrong == [], name


def test_a_man_page_names_arguments_as_the_help_does() -> None:
    pages = man_pages(command_of())
    assert "\n.B WORKLOAD\n" in pages["pubsubctl-bench.1"]
    types = [name for name, text in pages.items() if re.search(r"^\.B [^-]*<\w+>", text, re.M)]
    assert types == []


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_has_no_complaint_about_a_page() -> None:
    pages = man_pages(command_of())
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"],
        input="".join(pages.values()), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""


def test_the_image_is_made_of_the_wheel_and_runs_without_root() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    starts = [line.split()[1] for line in lines if line.startswith("FROM ")]
    required = re.search(r'requires-python = ">=(\S+)"', (ROOT / "pyproject.toml").read_text())
    assert required is not None
    assert all(image.endswith(f"python:{required[1]}-slim") for image in starts)
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert {".venv", ".git", "results/runs"} <= {*ignored}, "gigabytes that the wheel leaves out"
    users = [line for line in lines if line.startswith("USER ")]
    assert users == ["USER bench"]
    assert lines.index("USER bench") < lines.index('ENTRYPOINT ["pubsubctl"]')


@pytest.mark.slow
@pytest.mark.skipif(BUILDER is None, reason="neither podman nor docker is installed")
def test_the_image_can_be_built_and_prints_its_version() -> None:
    assert BUILDER is not None
    if subprocess.run([BUILDER, "info"], capture_output=True).returncode:
        pytest.skip(f"{BUILDER} has no service here")
    build = [BUILDER, "build", "-q", "-f", str(ROOT / "Containerfile"), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True)
    if re.search("dial tcp|no such host|lookup |connection refused", built.stderr):
        pytest.skip("the base image cannot be reached")
    assert built.returncode == 0, built.stderr
    image = built.stdout.strip()
    command = [BUILDER, "run", "--rm", image, "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("pubsubctl ")
