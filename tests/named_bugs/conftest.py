"""Fixtures that the stories of other folders obtain from their own folder."""

from tests.pubsubctl.conftest import call, project

__all__ = ("call", "project")
