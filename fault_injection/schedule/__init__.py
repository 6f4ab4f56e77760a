"""Fault schedules: their file format, and the checks that find errors in a schedule."""
