"""Fixtures that tests with Label Studio share."""

from tests.support.label_studio_fixtures import program, start_program, studio

__all__ = ["program", "start_program", "studio"]
