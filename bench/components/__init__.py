"""Components of the project, measured without brokers on a testbed."""
