"""Tests of named bugs: planted in a process, removed afterwards, and robust to rewording."""

import ast
import copy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import ConfigError
from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator import named_bugs
from brokerd.simulator.anchors import AnchorLost, Edit, Source, functions_of
from brokerd.simulator.checks.protocol_checks import named_bug, simulation_of, with_bugs
from brokerd.simulator.named_bugs import NamedBug, NoCheckout, bugs_of, edit_sources, plant
from tests.helpers.drawn import MOST_CHANGED, changes, depends_on, drawn_cases, drawn_rows
from tests.named_bugs.rows import ROWS

ROOT = Path(__file__).parents[1]

SOURCE = '''
"""A till."""
from contextlib import contextmanager
PRICE = 3

def total(count):
    def each():
        return PRICE
    return each() * count

def both(first, second):
    first = first + 1
    second = second + 1
    return first, second

class Till:
    open = True

    def __init__(self):
        self.sum = 0

    @property
    def full(self):
        return self.sum > 10

    @full.setter
    def full(self, value):
        self.sum = 11 if value else 0

    @staticmethod
    def name():
        return "till"

    @contextmanager
    def day(self):
        self.sum = 1
        yield
'''


@pytest.fixture
def till(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "till.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "till", raising=False)
    monkeypatch.setattr(named_bugs, "_ROOT", tmp_path)
    uncached = named_bugs.mistaken_functions.__wrapped__
    monkeypatch.setattr(named_bugs, "mistaken_functions", lru_cache(uncached))
    return import_module("till")


def bug(function: str, find: str, replace: str, occurrence: int = 0) -> NamedBug:
    return NamedBug("some", "Nothing.", (Edit("till.py", function, find, replace, occurrence),))


def mistaken(source: str, *where: str | int) -> str:
    """Return the function `f` of a source after an edit."""
    find, replace, *occurrence = where
    edited = Source("some.py", source)
    number = int(occurrence[0]) if occurrence else 0
    edited.apply("some", Edit("some.py", "f", str(find), str(replace), number))
    return ast.unparse(edited.functions["f"]).partition("\n    ")[2]


# ---------------------------------------------------------------- planting


def test_functions_methods_and_decorators_can_be_replaced_for_a_while(till: Any) -> None:
    bugs = (
        bug("total", "each() * count", "each() + count"),
        bug("Till.full", "self.sum > 10", "self.sum > 100"),
        bug("Till.full#2", "11 if value else 0", "12 if value else 0"),
        bug("Till.name", '"till"', '"drawer"'),
        bug("Till.day", "self.sum = 1", "self.sum = 2"),
    )
    till_now, reference = till.Till(), till.total
    till_now.sum = 50
    for _ in range(2):
        with plant(bugs):
            assert (reference(4), till_now.full, till_now.name()) == (7, False, "drawer")
            with till.Till.day(till_now), plant(bugs):
                assert till_now.sum == 2
            till_now.full = True
            assert till_now.sum == 12
        assert (reference(4), till_now.full, till_now.name()) == (12, True, "till")
    with pytest.raises(AssertionError, match="are planted, so"), plant(bugs), plant(bugs[:1]):
        pass
    with pytest.raises(ZeroDivisionError), plant(bugs):
        raise ZeroDivisionError
    assert till.Till.name() == "till"


@pytest.mark.parametrize(
    "function, find, replace, why",
    [
        ("total", "each() / count", "0", "does not have 'each\\(\\) / count'"),
        ("both", "1", "2", "2 times '1'"),
        ("Till.nome", '"till"', "0", "no such function; nearest function: Till.name"),
        ("Till.day", "self.sum > 10", "0", "nearest function: Till.full"),
        ("total", "each() * count", "each()  *  count", "changes nothing"),
        ("total", "each() * count", "each() * price", "no name 'price'"),
        ("Till.name", '"till"', "__class__.open", "other names of its surroundings"),
    ],
)
def test_a_row_that_does_not_fit_is_a_lost_anchor(
    till: Any, function: str, find: str, replace: str, why: str
) -> None:
    lost = pytest.raises(AnchorLost, match=f"some: anchor lost in till.py, {function}: .*{why}")
    with lost, plant([bug(function, find, replace)]):
        pass
    assert till.total(1) == 3


def test_a_module_that_is_not_there_is_a_lost_anchor(till: Any) -> None:
    gone = NamedBug("some", "Nothing.", (Edit("drawer.py", "f", "1", "2"),))
    with pytest.raises(AnchorLost, match=r"drawer\.py, f: no such module"), plant([gone]):
        pass


# ---------------------------------------------------------------- matching


def test_formatting_comments_docstrings_and_names_do_not_matter() -> None:
    find = "for each in items:\n    found += [each.value, *(one for one in more)]"
    renamed = '''
def f(things, found, others):
    """Another sentence."""
    for thing in things:  # a comment
        found += [
            thing.value,
            *(other for other in others),
        ]
'''
    assert mistaken(renamed, find, "found += [items, more]") == "\n    ".join(
        ('"""Another sentence."""', "found += [things, others]")
    )


@pytest.mark.parametrize(
    "source, find, replace, result",
    [
        ("def f(a):\n    return a + 1", "b + 1", "b", "return a"),
        ("def f(a, b):\n    return a + 1", "b + 1", "b", ""),
        ("def f(a, b):\n    return a + 1, b + 1", "c + 1", "c", ""),
        ("def f(a):\n    return a + a", "b + c", "b", ""),
        ("def f(a, b):\n    return a + b", "c + c", "c", ""),
        ("def f(a):\n    return a.x", "b.y", "b", ""),
        ("def f(a):\n    return len(a)", "max(a)", "0", ""),
        ("def f(a):\n    return g(a)", "h(a)", "0", ""),
        ("def f(a):\n    return [x + 1 for x in a], x", "y + 1", "y", "return ([x for x in a], x)"),
        ("def f(a):\n    a.b = 1\n    return a.b", "a.b", "0", "a.b = 1\n    return 0"),
        ("def f(a):\n    if a:\n        g(a)", "g(a)", "", "if a:\n        pass"),
        ("def f(a):\n    g(a)\n    h()\n    return a", "g(a)\nh()", "", "return a"),
        (
            "def f(a):\n    g(a)\n    return a",
            "g(a)",
            "a = 1\ng(2)",
            "a = 1\n    g(2)\n    return a",
        ),
        ("def f(a):\n    return True", "1", "0", ""),
        ('def f(a):\n    return f"{a}", a', "a", "0", "return (f'{a}', 0)"),
    ],
)
def test_patterns_match_the_expected_source(
    source: str, find: str, replace: str, result: str
) -> None:
    if result:
        assert mistaken(source, find, replace) == result
        return
    with pytest.raises(AnchorLost):
        mistaken(source, find, replace)


def test_an_occurrence_is_counted_within_the_function() -> None:
    source = "def f(a):\n    g(a)\n    g(a)\n    g(a)"
    assert mistaken(source, "g(a)", "", 2) == "g(a)\n    g(a)"
    assert mistaken(source, "g(b)", "len(b)", 3) == "g(a)\n    g(a)\n    len(a)"
    with pytest.raises(AnchorLost, match="only 3 times"):
        mistaken(source, "g(a)", "", 4)
    nested = "def f(a):\n    for b in a:\n        g(a)\n    g(a)"
    assert mistaken(nested, "g(a)", "", 2) == "for b in a:\n        g(a)"


def test_context_renames_variables_of_the_replacement() -> None:
    edited = Source("some.py", "def f(one, other):\n    g(one)\n    return h(other)")
    edited.apply("some", Edit("some.py", "f", "h(b)", "b, a", context="g(a)"))
    assert ast.unparse(edited.functions["f"]).endswith("return (other, one)")
    edited = Source("some.py", "def f(one, other):\n    g(one)\n    return h(one)")
    with pytest.raises(AnchorLost, match=r"does not have 'h\(b\)'"):
        edited.apply("some", Edit("some.py", "f", "h(b)", "b, a", context="g(a)"))


# ------------------------------------------------- rewording, reformatting, renaming


def _all_bugs() -> Iterator[NamedBug]:
    for protocol in DEFINITIONS:
        yield from bugs_of(protocol).values()
    for row in ROWS:
        yield row.bug


def _most_mistaken(count: int) -> list[str]:
    counts = Counter(edit.module for bug in _all_bugs() for edit in bug.edits)
    return [module for module, _ in counts.most_common(count)]


@pytest.mark.parametrize("module", _most_mistaken(5))
def test_rewording_reformatting_and_renaming_lose_no_anchor(module: str, tmp_path: Path) -> None:
    bugs = [
        NamedBug(each.name, each.leaves_out, edits)
        for each in _all_bugs()
        if (edits := tuple(edit for edit in each.edits if edit.module == module))
    ]
    assert len(bugs) >= 5
    text = (ROOT / module).read_text(encoding="utf-8")
    reworded = _reworded(text, {edit.function for each in bugs for edit in each.edits})
    assert reworded != text
    (tmp_path / module).parent.mkdir(parents=True)
    (tmp_path / module).write_text(reworded, encoding="utf-8")
    for number, each in enumerate(bugs):
        before, after = (edit_sources([each], root)[0] for root in (ROOT, tmp_path))
        assert after.changed == before.changed
        # All other functions are the same with each of the bugs.
        for name in before.functions if number == 0 else before.changed:
            assert _shape_of(after, name) == _shape_of(before, name), each


def _shape_of(source: Source, name: str) -> str:
    return _shape(ast.parse(ast.unparse(source.functions[name])))


def _reworded(text: str, functions: set[str]) -> str:
    """Return a source with other docstrings, comments, line breaks and local variable names."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Expr(ast.Constant("Something else entirely."))
    renamed = 0
    for name, function in functions_of(tree).items():
        if name not in functions:
            continue
        counts: dict[str, int] = {}
        for each in ast.walk(function):
            if isinstance(each, ast.Name | ast.arg):
                found = each.id if isinstance(each, ast.Name) else each.arg
                counts[found] = counts.get(found, 0) + 1
        bound = [each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)]
        stored = (each for each in ast.walk(function) if isinstance(each, ast.Name))
        bound += [each.id for each in stored if isinstance(each.ctx, ast.Store)]
        local = [each for each in dict.fromkeys(bound) if each != "self"]
        if local:
            _rename(function, max(local, key=lambda each: counts[each]), "some_other_name")
            renamed += 1
    assert renamed, "no function has a local variable"
    return "# A comment.\n" + ast.unparse(tree).replace("\n    def ", "\n\n\n    # More.\n    def ")


def _rename(function: ast.AST, old: str, new: str) -> None:
    for each in ast.walk(function):
        if isinstance(each, ast.Name) and each.id == old:
            each.id = new
        elif isinstance(each, ast.arg) and each.arg == old:
            each.arg = new


def _shape(function: ast.AST) -> str:
    """Return a function without docstrings, with names numbered in order of appearance."""
    names: dict[str, str] = {}
    for each in ast.walk(function):
        if isinstance(each, ast.Name):
            each.id = names.setdefault(each.id, str(len(names)))
        elif isinstance(each, ast.arg):
            each.arg = names.setdefault(each.arg, str(len(names)))
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and " " in each.value:
            each.value = ""
    return ast.dump(function)


# ---------------------------------------------------------------- data


def test_every_named_bug_describes_its_omission_in_a_sentence() -> None:
    for protocol in DEFINITIONS:
        for bug in bugs_of(protocol).values():
            assert bug.leaves_out[0].isupper(), bug.name
            assert bug.leaves_out.endswith("."), bug.name


def test_the_names_of_rows_beside_the_protocols_are_unique() -> None:
    names = [row.name for row in ROWS]
    assert len({*names}) == len(names)


def test_canaries_and_ablations_have_rows() -> None:
    for protocol in DEFINITIONS:
        found = simulation_of(protocol)
        of_ablations = {name for each in found.ablations.values() for name in each.mutants}
        assert {*found.canaries, *of_ablations} <= {*bugs_of(protocol)}


def test_the_row_of_each_bug_beside_the_protocols_fits_its_source() -> None:
    """All rows share one tree per module: every edited function is restored."""
    sources: dict[str, Source] = {}
    for row in ROWS:
        for edit in row.bug.edits:
            if edit.module not in sources:
                text = (ROOT / edit.module).read_text(encoding="utf-8")
                sources[edit.module] = Source(edit.module, text)
        touched = {(edit.module, edit.function) for edit in row.bug.edits}
        functions = [sources[module].functions.get(name) for module, name in sorted(touched)]
        sound = [(each, copy.deepcopy(vars(each))) for each in functions if each is not None]
        for edit in row.bug.edits:
            sources[edit.module].apply(row.name, edit)  # else AnchorLost
        for function, attributes in sound:
            vars(function).update(attributes)


# ---------------------------------------------------------------- drawn rows

TABLE = {f"row {n}": {f"bug {n}", f"module_{n % 10}.py"} for n in range(100)}


def test_a_run_plants_a_third_of_the_rows_and_all_that_changed() -> None:
    first, other = (drawn_rows(TABLE, seed, []) for seed in ("1", "2"))
    assert first != other
    assert len(first) == len(other) == 34
    assert drawn_rows(TABLE, "1", []) == first
    concerned = {row for row, about in TABLE.items() if "module_3.py" in about}
    assert drawn_rows(TABLE, "1", ["module_3.py", "bug 7"]) == first | concerned | {"row 7"}
    assert drawn_rows({"row": {"bug"}}, "1", []) == {"row"}


def test_a_run_plants_some_of_very_many_changed_rows() -> None:
    table = {f"row {number}": {"module.py"} for number in range(3 * MOST_CHANGED)}
    for seed in ("1", "2"):
        third = drawn_rows(table, seed, [])
        planted = drawn_rows(table, seed, ["module.py"])
        assert third < planted
        assert MOST_CHANGED < len(planted) <= 2 * MOST_CHANGED


def test_each_row_is_drawn_by_some_seed() -> None:
    assert set().union(*(drawn_rows(TABLE, str(seed), []) for seed in range(40))) == {*TABLE}


@pytest.mark.parametrize("changed", [[], None])
def test_all_rows_are_planted_on_request(changed: Any) -> None:
    assert drawn_rows(TABLE, "all", changed) == {*TABLE}


def test_without_history_no_row_counts_as_changed() -> None:
    assert drawn_rows(TABLE, "1", None) == drawn_rows(TABLE, "1", [])


def test_a_run_takes_a_third_of_the_sampled_tests_of_each_folder() -> None:
    cases = [f"tests/{folder}/test_a.py::test[{n}]" for folder in "ab" for n in range(9)]
    first, other = (drawn_cases(cases, seed) for seed in ("1", "2"))
    assert first != other
    for folder in "ab":
        assert sum(case.startswith(f"tests/{folder}/") for case in first) == 3
    assert drawn_cases(reversed(cases), "1") == first
    assert drawn_cases(cases, "all") == {*cases}
    assert set().union(*(drawn_cases(cases, str(seed)) for seed in range(40))) == {*cases}


def test_a_row_depends_on_its_name_and_its_functions() -> None:
    bug = bugs_of("gryphon")["M01-horizon-ignored"]
    about = {bug.name, *(f"{edit.module}::{edit.function}" for edit in bug.edits)}
    assert depends_on(bug, "gryphon") == depends_on(bug.name, "durable") == about
    assert depends_on(ROWS[0], "delta_tree") >= {ROWS[0].name}
    of_an_ablation = simulation_of("delta_tree").ablations
    name, ablation = next(item for item in of_an_ablation.items() if item[1].mutants)
    assert depends_on(name, "delta_tree") >= {*ablation.mutants}


BEFORE = """\
def grown(a):
    return a

def same(a):
    return a

class Till:
    @property
    def shrunk(self):
        a = 1
        return a
"""


def test_changed_functions_and_rows_are_those_since_a_commit(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def changed(since: str) -> list[str] | None:
        names = ("grown", "same", "Till.shrunk", "Till.fresh")
        edits = [Edit(each, name, "", "") for each in ("m.py", "gone.py") for name in names]
        return changes(edits, tmp_path, since)

    assert changed("HEAD") is None
    table, module = tmp_path / "tests/named_bugs/some.toml", tmp_path / "m.py"
    table.parent.mkdir(parents=True)
    table.write_text('name = "old"\n')
    for path in (module, tmp_path / "gone.py"):
        path.write_text(BEFORE)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    assert changed("HEAD") == []
    assert changed("HEAD~1") is None
    table.write_text('name = "old"\nname = "new"\n')
    assert changed("HEAD") == ["new"]
    (tmp_path / "gone.py").unlink()
    after = BEFORE.replace("    return a\n\ndef", "    a += 1\n    return a\n\ndef")
    module.write_text(after.replace("        a = 1\n", ""))
    assert changed("HEAD") == ["m.py::grown", "m.py::Till.shrunk", "new"]
    module.write_text(BEFORE + "    def fresh(self):\n        pass\n")
    assert changed("HEAD") == ["m.py::Till.fresh", "new"]
    module.write_text(BEFORE.replace("@property", "@classmethod"))
    assert changed("HEAD") == ["m.py::Till.shrunk", "new"]
    module.write_text(BEFORE.replace("return a\n\ndef", "return min(a, 1)\n\ndef"))
    git("commit", "--quiet", "--all", "-m", "second")
    named = '(first):\n    """Names count for nothing."""\n    return min(first, 1)'
    renamed = module.read_text().replace("(a):\n    return min(a, 1)", named)
    module.write_text(renamed.replace("shrunk", "fresh"))
    assert changed("HEAD") == []
    module.write_text(renamed.replace("min", "max"))
    assert changed("HEAD") == ["m.py::grown"]


# ---------------------------------------------------------------- files that cannot be used

ROW = '[[bug]]\nname = "x"\nleaves_out = "Nothing."\n'
EDIT = '[[bug.edit]]\nmodule = "m.py"\nfunction = "f"\nfind = "1"\nreplace = ""\n'


@pytest.mark.parametrize(
    "text, why",
    [
        ("[[bug]", r"some\.toml: "),
        ("[[bug]]\n", r"some\.toml: bug 1: name = None"),
        (ROW + EDIT + ROW + EDIT, "two bugs are called 'x'"),
        (ROW, r"x: no \[\[bug\.edit\]\]"),
        ('[[bug]]\nname = "x"\n' + EDIT, "x: leaves_out = None; text is needed"),
        (ROW + EDIT.replace('"1"', "1"), "x: find = 1; text is needed"),
        (ROW + EDIT + "occurrence = -1\n", "x: occurrence = -1; a number from 1"),
        (ROW + EDIT + "occurence = 1\n", "x: no key 'occurence' of an edit"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests/named_bugs").mkdir(parents=True)
    (tmp_path / "tests/named_bugs/some.toml").write_text(text)
    monkeypatch.setattr(named_bugs, "_ROOT", tmp_path)
    with pytest.raises(ConfigError, match=why):
        bugs_of.__wrapped__("some")


def test_without_a_source_checkout_no_bug_is_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named_bugs, "_ROOT", tmp_path)
    with pytest.raises(NoCheckout, match="data of a source checkout: tests/named_bugs is not here"):
        bugs_of.__wrapped__("gryphon")
    with with_bugs((), "gryphon"):  # reads nothing
        pass


def test_a_name_is_that_of_the_own_protocol_first() -> None:
    assert named_bug("M01-horizon-ignored", "durable") is bugs_of("gryphon")["M01-horizon-ignored"]
    with pytest.raises(ConfigError, match="no named bug 'M01-horizon'; did you mean"):
        named_bug("M01-horizon", "durable")


def test_no_property_test_among_the_stories_has_a_deadline() -> None:
    """The profile of the suite must be loaded before the modules of the stories."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tests.")]
    found = {
        f"{module.__name__}.{name}": each._hypothesis_internal_use_settings
        for module in modules
        for name, each in vars(module).items()
        if hasattr(each, "_hypothesis_internal_use_settings")
    }
    assert "tests.storage.test_meta_store.test_disk_and_memory_agree" in found
    assert [name for name, settings in found.items() if settings.deadline is not None] == []
