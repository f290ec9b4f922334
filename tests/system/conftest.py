"""Fixtures that tests with Label Studio share."""

from tests.support.label_studio_fixtures import program, started, studio

__all__ = ["program", "started", "studio"]
