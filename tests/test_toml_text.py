"""Tests of TOML documents that are too deep or too large, and of suggested names."""

from pathlib import Path

import pytest

from brokerd.text import DEEPEST, LARGEST_TOML, nearest, parse_toml
from pubsubctl.hosts.files import load_toml


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("a = [{ b = nan }]", "a[0].b = nan is not a finite number"),
        ("a.b = -inf", "a.b = -inf is not a finite number"),
        (f"a = {1 << 70}", "does not fit into 64 bits"),
        (f"a = {'9' * 10_000}", "digits"),
        (f"a = {'[' * 100_000}{']' * 100_000}", "nested more than"),
        (f"a = {'[' * 40}{']' * 40}", "nested more than"),
        ("a." * 20_000 + "a = 1", "a key with more than"),
        ("[" + "a." * 20_000 + "a]", "a key with more than"),
        ("#" * (LARGEST_TOML + 1), "larger than"),
    ],
    ids=range(9),
)
def test_a_value_out_of_bounds_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  its text is looked at
        parse_toml(text)
    assert complaint in str(caught.value)


def test_a_document_within_the_limits_is_parsed() -> None:
    text = f"a = {'[' * (DEEPEST - 1)}{']' * (DEEPEST - 1)}\nb = {(1 << 63) - 1}\nc.d.e = 1.5\n"
    assert parse_toml(text)["b"] == (1 << 63) - 1


def test_a_key_in_the_text_of_a_string_has_no_line(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    for quote in ('"""', "'''"):
        path.write_text(
            f"# {quote}\nnote = {quote}\n[hosts]\nname = 1\n{quote}\nshort = {quote}x{quote}\n"
            '[hosts]\nname = "a"\n'
        )
        lines = load_toml(path)
        places = (("note",), ("short",), ("hosts",), ("hosts", "name"))
        assert [lines.line_of(place) for place in places] == [2, 6, 7, 8]


def test_a_name_is_suggested_by_its_last_part() -> None:
    known = ["gd02.fig6", "dft11.fig9", "fig9.old"]
    assert nearest("FIG6", known) == "; did you mean 'gd02.fig6'?"
    assert nearest("fig9", known) == "; did you mean 'fig9.old'?", "a beginning is more"
