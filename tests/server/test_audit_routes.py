"""The routes of the guided audit."""

from tests.support.web_sessions import CHANGE, labelled_page


def test_audit_by_http_from_start_to_certificate(tmp_path):
    with labelled_page(tmp_path) as (client, _, _, _):
        assert client.get("/api/audit").json()["running"] is False
        assert client.get("/api/audit/question").status_code == 400
        begun = client.post("/api/audit", json={"target": 0.05}, headers=CHANGE).json()
        assert (begun["items"], begun["target"]) == (10, 0.05)
        for _ in range(3):
            found = client.get("/api/audit/question").json()
            assert set(found) == {"done", "item"}  # no prediction
            position = found["item"]["position"]
            body = {"position": position, "label": position % 2}
            described = client.post("/api/audit/answers", json=body, headers=CHANGE)
            assert described.status_code == 200
        assert described.json()["labels"] == 3
        refused = client.post("/api/audit/teach", json={}, headers=CHANGE)
        assert "certificate has not been issued" in refused.json()["error"]
        assert client.post("/api/audit/certificate", json={}, headers=CHANGE).json()["issued"]
        assert client.get("/api/audit/certificate").json()["labels"] == 3
        page = client.get("/api/audit/certificate.html")
        assert "attachment" in page.headers["content-disposition"]
        assert "right</p>" in page.text
        assert client.post("/api/audit/teach", json={}, headers=CHANGE).json()["added"] == 3


def test_bad_settings_are_refused(tmp_path):
    with labelled_page(tmp_path) as (client, _, _, _):
        assert client.post("/api/audit", json={"target": 2}, headers=CHANGE).status_code >= 400
        assert client.get("/api/audit").json()["running"] is False
