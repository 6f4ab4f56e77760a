"""Fixtures that stories elsewhere get from their own folder."""

from tests.pubsubctl.conftest import call, project

__all__ = ("call", "project")
