"""Fixtures of stories that come from other folders."""

from tests.pubsubctl.conftest import call, project

__all__ = ("call", "project")
