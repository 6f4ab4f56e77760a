"""Application, observation and end of faults."""
