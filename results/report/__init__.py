"""The report: one HTML file that tells a person what happened in one run or several.

`reading` gathers what a run directory says, `words` puts it into sentences, `pictures` lays out
the drawings, and the templates beside them make the page. The page holds everything it shows: no
script, no request to anywhere.
"""

from results.report.page import write_report

__all__ = ["write_report"]
