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
def started():
    """Starts programs that end with the test."""
    running = []

    def start(kind, *args, **more):
        running.append(kind(*args, **more))
        return running[-1]

    yield start
    for one in running:
        one.kill()
