"""Plays scenario files: what the brokers did stands in the file, and must be what they do."""

from pathlib import Path

from brokerd.simulator.scenario import play_scenario


def scenario_files(test_file: str) -> list[Path]:
    """The scenarios beside a test file; at least one."""
    files = sorted(Path(test_file).parent.joinpath("scenarios").glob("*.txt"))
    assert files, f"no scenarios beside {test_file}"
    return files


def play(path: Path, rewrite: bool) -> None:
    """Play a scenario; with `rewrite` record today's behaviour in its file instead of judging."""
    told = path.read_text(encoding="utf-8")
    seen = play_scenario(told)
    if rewrite:
        path.write_text(seen, encoding="utf-8")
    else:
        assert seen.splitlines() == told.splitlines(), f"{path.name} tells another story"
