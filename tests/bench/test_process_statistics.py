"""Tests of the records of process sizes and sessions."""

from pathlib import Path

from bench.run.run_statistics import statistics_of


def test_first_largest_and_last_of_each_process_that_wrote_it_down(tmp_path: Path) -> None:
    for process, text in {
        "c1": '{"rss_bytes": 10}\n{"rss_bytes": 30}\n{"t_ns": 1}\n{"rss_bytes": 20}\n{"rss_by',
        "c2": '{"rss_bytes": 5, "queue_bytes": 7}\n'
        '{"rss_bytes": 6, "queue_bytes": 3, "private_bytes": 2}\n',
        "load-pub": '{"sent": 5}\n',
    }.items():
        (tmp_path / "host" / process).mkdir(parents=True)
        (tmp_path / "host" / process / "stats.jsonl").write_text(text)
    assert statistics_of(tmp_path).memory_bytes == {
        "c1": {"first": 10, "largest": 30, "last": 20},
        "c2": {"first": 5, "largest": 6, "last": 6, "retained": 7, "private": 2},
    }


def test_sessions_that_brokers_lost_while_the_run_was_recorded(tmp_path: Path) -> None:
    for broker, counts in {"c1": (2, 2, 3), "c2": (5, 6, 0, 1), "c3": (4,)}.items():
        (tmp_path / "host" / broker).mkdir(parents=True)
        (tmp_path / "host" / broker / "stats.jsonl").write_text(
            "".join(
                # Clients that leave at the end are no loss.
                f'{{"sessions_lost": {2 * count + 1}, "broker_sessions_lost": {count}}}\n'
                for count in counts
            )
        )
    assert statistics_of(tmp_path).sessions_lost == 3, "c2 was started again in between"


def test_last_totals_are_of_all_brokers(tmp_path: Path) -> None:
    for broker, resent in {"c1": (1, 4), "c2": (2, 3)}.items():
        (tmp_path / "host" / broker).mkdir(parents=True)
        (tmp_path / "host" / broker / "stats.jsonl").write_text(
            "".join(f'{{"resent_publications": {n}, "duplicates_received": 1}}\n' for n in resent)
        )
    found = statistics_of(tmp_path)
    assert (found.resent_publications, found.duplicates_received) == (7, 2)
