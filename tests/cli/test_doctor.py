"""The doctor command."""

import importlib.metadata as metadata
import json
import shutil
from collections import namedtuple

import pytest
import torch

import labelahead
from labelahead.cli import doctor
from tests.support.command_line import invoke

DEVELOPER_EXTRAS = {"all", "demo", "test", "check", "bench", "docs", "release"}


def test_doctor_shows_versions_and_device():
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    words = result.output.split()
    assert labelahead.__version__ in words
    assert f"{torch.__version__}," in words
    assert "cpu" in result.output


def test_doctor_json_holds_a_finding_for_every_extra():
    findings = json.loads(invoke("doctor", "--json").output)
    assert {f["group"] for f in findings} == {"software", "machine", "extras", "encoders"}
    shown = {f["name"] for f in findings if f["group"] == "extras"}
    declared = set(metadata.metadata("labelahead").get_all("Provides-Extra"))
    assert shown == declared - DEVELOPER_EXTRAS


def test_doctor_names_the_command_for_missing_packages(monkeypatch):
    find_version = metadata.version

    def hide_fastapi(name: str) -> str:
        if name == "fastapi":
            raise metadata.PackageNotFoundError(name)
        return find_version(name)

    monkeypatch.setattr(metadata, "version", hide_fastapi)
    assert doctor.find_missing_packages("web") == {"fastapi>=0.110"}
    assert doctor.find_missing_packages("demo") == {"fastapi>=0.110"}  # which contains web
    assert "web: pip install 'labelahead[web]'" in invoke("doctor").output


def test_find_missing_packages_compares_versions(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    assert "typer>=0.16" in doctor.find_missing_packages("app")


@pytest.mark.parametrize(("free_gib", "warns"), [(0.5, True), (50, False)])
def test_doctor_warns_of_a_full_disk(monkeypatch, free_gib, warns):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, free_gib * 2**30))
    fixes = [f.fix for f in doctor.list_findings() if f.name == "disk here"]
    assert [bool(fix) for fix in fixes] == [warns]
