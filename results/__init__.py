"""From the records of a run to verdicts, tables and figures."""
