"""Fixtures: a real Label Studio, and programs that end with the test."""

import os

import pytest

from tests.support.label_studio import RealStudio

PROGRAM = os.environ.get("LABELAHEAD_LABEL_STUDIO", "")


@pytest.fixture(scope="session")
def program() -> str:
    if not PROGRAM:
        pytest.skip("needs Label Studio: make test-label-studio")
    return PROGRAM


@pytest.fixture(scope="session")
def studio(program, tmp_path_factory):
    running = RealStudio(program, tmp_path_factory.mktemp("studio"))
    yield running
    running.kill()


@pytest.fixture
def start_program():
    """Start programs that are stopped after the test."""
    running = []

    def start(program_class, *args, **options):
        running.append(program_class(*args, **options))
        return running[-1]

    yield start
    for process in running:
        process.kill()
