"""Faults: their schedule, application, observation and end."""
