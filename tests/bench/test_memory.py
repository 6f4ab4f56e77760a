"""How large processes were, from what they wrote down."""

from pathlib import Path

from bench.run.memory import memory_of


def test_first_largest_and_last_of_each_process_that_wrote_it_down(tmp_path: Path) -> None:
    for process, text in {
        "c1": '{"rss_bytes": 10}\n{"rss_bytes": 30}\n{"t_ns": 1}\n{"rss_bytes": 20}\n{"rss_by',
        "c2": '{"rss_bytes": 5, "queue_bytes": 7}\n{"rss_bytes": 6, "queue_bytes": 3}\n',
        "load-pub": '{"sent": 5}\n',
    }.items():
        (tmp_path / "host" / process).mkdir(parents=True)
        (tmp_path / "host" / process / "stats.jsonl").write_text(text)
    assert memory_of(tmp_path) == {
        "c1": {"first": 10, "largest": 30, "last": 20},
        "c2": {"first": 5, "largest": 6, "last": 6, "retained": 7},
    }
