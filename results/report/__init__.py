"""The report: an HTML file that explains the events of one or several runs to people.

`reading` gathers the content of a run's directory, `words` turns the content into sentences,
`pictures` lays out the drawings, and the templates beside the modules make the page. `experiments`
makes the page on experiments without real brokers. `delivery_trace` traces one publication to one
subscription, for `pubsubctl why`. A page contains everything it shows: no script,
and no request.
"""

from results.report.experiments import write_experiment_report
from results.report.page import write_report

__all__ = ["write_experiment_report", "write_report"]
