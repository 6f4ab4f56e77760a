"""The report: one HTML file that tells a person what happened in one run or several.

`reading` gathers what the directory of a run of brokers says, `words` puts it into sentences,
`pictures` lays out the drawings, and the templates beside them make the page. `experiments` is
the page on experiments without real brokers. Either holds everything it shows: no script, no
request to anywhere.
"""

from results.report.experiments import write_experiment_report
from results.report.page import write_report

__all__ = ["write_experiment_report", "write_report"]
