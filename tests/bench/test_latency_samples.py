"""Stories about the sample behind the latency of a running experiment."""

from bench.load.records import PER_SECOND, LatencySamples

SECOND_NS = 1_000_000_000


def test_at_a_low_rate_every_publication_is_noted_with_its_own_stamp() -> None:
    samples = LatencySamples()
    samples.note("p1/0/1", range(7, 10), [70, 80, 90], SECOND_NS)
    assert samples.read_since(0) == {
        "sources": ["p1/0/1"],
        "rows": [[0, 7, 70], [0, 8, 80], [0, 9, 90]],
    }


def test_a_reported_sample_is_not_reported_again() -> None:
    samples = LatencySamples()
    samples.note("a", range(1, 2), 5, 100)
    samples.note("a", range(2, 3), 6, 200)
    assert samples.read_since(100)["rows"] == [[0, 2, 6]]


def test_a_run_with_gaps_samples_its_own_publications_only() -> None:
    samples = LatencySamples()
    samples.note("a", (3, 5, 9), 1, 100)
    assert [row[1] for row in samples.read_since(0)["rows"]] == [3, 5, 9]


def test_at_any_rate_about_as_much_is_noted_and_both_samples_meet() -> None:
    sent, received = LatencySamples(), LatencySamples()
    sequence = 1
    for tick in range(400):  # 4 s at 50,000/s; the receiver sees everything five times
        now_ns = SECOND_NS + tick * 10_000_000
        run = range(sequence, sequence + 500)
        sent.note("a", run, now_ns, now_ns)
        for _ in range(5):
            received.note("a", run, now_ns, now_ns)
        sequence += 500
    in_last_second = SECOND_NS * 4
    due = {row[1] for row in sent.read_since(in_last_second)["rows"]}
    came = [row[1] for row in received.read_since(in_last_second)["rows"]]
    assert PER_SECOND / 4 <= len(due) <= PER_SECOND
    assert PER_SECOND / 4 <= len(came) <= PER_SECOND
    assert len({*came} & due) >= 16


def test_the_stride_shrinks_again_after_the_rate_falls() -> None:
    samples = LatencySamples()
    samples.note("a", range(1, 100_000), 1, SECOND_NS)
    assert samples.stride > 64
    for second in range(2, 12):
        samples.note("a", range(second * 100_000, second * 100_000 + 10), 1, second * SECOND_NS)
    assert samples.stride <= 2


def test_stamps_of_the_last_seconds_are_kept_after_each_pause() -> None:
    samples = LatencySamples()
    assert samples.read_since(0) == {"sources": [], "rows": []}
    kept = {1: [1], 2: [1, 2], 30: [3], 33: [3, 4], 90: [5]}
    for number, begin_s in enumerate(kept, start=1):
        samples.note(f"s{begin_s % 2}", range(number, number + 1), number, begin_s * SECOND_NS)
        for _ in range(2):
            assert [row[1] for row in samples.read_since(0)["rows"]] == kept[begin_s]
    assert samples.read_since(0) == {"sources": ["s1", "s0"], "rows": [[1, 5, 5]]}
    assert samples.read_since(90 * SECOND_NS)["rows"] == []
