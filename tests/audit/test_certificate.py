"""The certificate: complete, self-contained, and safe to show."""

import json
import re

from labelahead.audit.certificate import build_certificate, render_certificate, write_certificate
from labelahead.audit.folder import Audit
from tests.support.audits import make_pool


def make_audit(folder, source="test", n=60):
    predictions, truth = make_pool(300, 3, seed=0)
    audit = Audit.start(folder / "a", predictions, source=source)
    answers = [(p, predictions.classes[truth[p]]) for p in audit.list_next(n)]
    audit.record(answers, "ann")
    return audit


def test_certificate_holds_result_and_provenance(tmp_path):
    audit = make_audit(tmp_path)
    content = build_certificate(audit)
    quality = audit.estimate_quality()
    assert content["accuracy"]["low"] == quality.accuracy.low
    assert (content["labels"], content["items"]) == (60, 300)
    assert sum(row["labels"] for row in content["strata"]) == 60
    assert content["annotators"] == ["ann"]
    for name in ("model_fingerprint", "data_fingerprint", "predictions_fingerprint"):
        assert re.fullmatch("[0-9a-f]{64}", content[name])
    assert content["over_time"][-1]["high"] == quality.accuracy.high
    assert len(content["classes"]) == 3


def test_written_page_and_json_say_the_same(tmp_path):
    audit = make_audit(tmp_path)
    page, beside = write_certificate(audit)
    content = json.loads(beside.read_text())
    assert f"{content['accuracy']['value']:.1%} right" in page.read_text()
    assert Audit.open(tmp_path / "a").issued is not None


def test_page_needs_no_other_file_and_escapes_names(tmp_path):
    page = render_certificate(build_certificate(make_audit(tmp_path, "<script>alert(1)</script>")))
    assert "<script" not in page
    assert not re.search(r"(src|href)=|url\(|https?://", page)


def test_page_of_an_audit_without_answers_says_so(tmp_path):
    page = render_certificate(build_certificate(make_audit(tmp_path, n=0)))
    assert "No label yet." in page
