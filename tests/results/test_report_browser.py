"""Tests of the report in a real browser: Debian's chromium, without a window.

Every page is opened in a frame of a given width. The page around the frame records the width, the
requests, the colours and the complaints of the browser.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from results.checker.checks import check_run
from results.report import write_report
from tests.helpers.runs import Scenario, write_demo_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.report,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]

FLAGS = (
    "--headless",
    "--hide-scrollbars",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser's own calls home end here
    "--allow-file-access-from-files",  # so that the page around may look into the frame
    "--enable-logging=stderr",
)
SCHEMES = {"dark": 0, "light": 1}

LOOK = """<!doctype html>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<body style="margin:0"><iframe id="page" style="border:0" width="%(width)d" height="900"
  src="%(address)s"></iframe><pre id="seen"></pre>
<script>
addEventListener("load", () => {
  const frame = document.getElementById("page"), inside = frame.contentWindow;
  const page = frame.contentDocument, root = page.documentElement;
  const pictures = [...page.images];
  const shown = (element) => element.getClientRects().length > 0;
  const small = [...page.querySelectorAll("p, td, th, li, dt, dd, text")].filter(
    (element) => shown(element) && parseFloat(inside.getComputedStyle(element).fontSize) < 11);
  const inner = (element) => element.closest(".scroll, pre");
  document.getElementById("seen").textContent = JSON.stringify({
    width: root.clientWidth,
    needed: root.scrollWidth,
    too_wide: [...page.body.querySelectorAll("*")].filter((element) => !inner(element)
      && shown(element) && element.getBoundingClientRect().right > root.clientWidth + 0.5)
      .map((element) => element.tagName + "." + element.className),
    drawings: [...page.querySelectorAll(".picture svg")].filter(shown)
      .map((drawing) => [drawing.getBoundingClientRect().width, inner(drawing).clientWidth]),
    pictures: pictures.map((image) => [image.naturalWidth, image.currentSrc.slice(0, 18),
      image.currentSrc.length]),
    scripts: page.scripts.length,
    asked: inside.performance.getEntriesByType("resource").map((entry) => entry.name)
      .filter((name) => !name.startsWith("data:")),
    ground: inside.getComputedStyle(page.body).backgroundColor,
    ink: inside.getComputedStyle(page.body).color,
    small: small.map((element) => element.textContent),
    headings: [...page.querySelectorAll("h1, h2")].filter(shown).map((h) => h.textContent),
  });
});
</script>
"""


def look(page: Path, folder: Path, width: int = 1280, scheme: str = "light") -> Mapping[str, Any]:
    """Open a page and return the observations; `complaints` are the browser's console messages."""
    around = folder / f"look-{page.stem}-{width}-{scheme}.html"
    around.write_text(LOOK % {"width": width, "address": page.resolve().as_uri()})
    profile = folder / f"profile-{page.stem}-{width}-{scheme}"
    assert CHROMIUM is not None
    told = subprocess.run(
        [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={max(width, 500)},900",
            f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
            "--dump-dom",
            around.resolve().as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    shutil.rmtree(profile, ignore_errors=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', told.stdout, re.DOTALL)
    assert found is not None, told.stdout
    assert found[1], told.stderr
    complaints = [line for line in told.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(unescape(found[1])), "complaints": complaints}


@pytest.fixture(scope="module")
def report(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a report on two runs, as the demo writes it."""
    folder = tmp_path_factory.mktemp("report")
    runs = [
        write_demo_run(folder, Scenario()),
        write_demo_run(folder, Scenario(run_id="20260102T030605Z-0d4e5f", protocol="best_effort")),
    ]
    for run in runs:
        check_run(spark, run)
    return write_report(spark, runs, folder / "report.html")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [1280, 820, 390, 320])
def test_the_report_fits_is_drawn_and_asks_for_nothing(
    width: int, scheme: str, report: Path, tmp_path: Path
) -> None:
    seen = look(report, tmp_path, width, scheme)
    assert seen["width"] == width
    assert seen["needed"] == width, seen["too_wide"]
    assert seen["too_wide"] == []
    assert seen["complaints"] == []
    assert seen["scripts"] == 0
    assert seen["asked"] == []
    assert seen["small"] == []
    assert len(seen["pictures"]) == 8
    assert all(natural > 0 for natural, _, _ in seen["pictures"])
    assert {start for _, start, _ in seen["pictures"]} == {"data:image/svg+xml"}
    assert seen["headings"][0] == "The same faults: δ\N{NO-BREAK SPACE}tree and best effort"
    assert len(seen["drawings"]) == 3
    assert all(needed <= room for needed, room in seen["drawings"]), seen["drawings"]


def test_light_and_dark_are_two_schemes(report: Path, tmp_path: Path) -> None:
    light, dark = (look(report, tmp_path, scheme=scheme) for scheme in ("light", "dark"))

    def brightness(colour: str) -> int:
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(light["ground"]) > 600 > 200 > brightness(light["ink"])
    assert brightness(dark["ink"]) > 600 > 200 > brightness(dark["ground"])


def test_telephones_get_figures_of_their_own(report: Path, tmp_path: Path) -> None:
    wide, narrow = (look(report, tmp_path, width)["pictures"] for width in (1280, 390))
    assert all(a[2] != b[2] for a, b in zip(wide, narrow, strict=True))


def test_the_check_finds_planted_faults(tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text(
        "<!doctype html><body><img src='http://127.0.0.1:9/asked.png'>"
        "<p style='font-size:6px'>x</p>"
        "<div class=wide style='width:900px'>wide</div><script>nothing.at.all()</script>"
    )
    seen = look(page, tmp_path, 390)
    assert seen["needed"] >= 900
    assert "DIV.wide" in seen["too_wide"]
    assert seen["scripts"] == 1
    assert seen["asked"] == ["http://127.0.0.1:9/asked.png"]
    assert any("nothing is not defined" in line for line in seen["complaints"])
    assert seen["small"] == ["x"]
