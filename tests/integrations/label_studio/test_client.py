"""The client of Label Studio against recorded replies."""

import pytest

from labelahead.errors import InputError
from labelahead.integrations.label_studio.client import LabelStudioClient
from labelahead.integrations.label_studio.gateway import SECRET_HEADER
from labelahead.integrations.label_studio.payloads import WEBHOOK_ACTIONS
from tests.support.label_studio import KEY, replay


def test_client_refuses_wrong_tokens_projects_and_addresses(tmp_path):
    with replay() as studio:
        with pytest.raises(InputError, match="does not know the access token"):
            LabelStudioClient(studio.url, "wrong", studio.project).get_project()
        with pytest.raises(InputError, match="no project 77"):
            LabelStudioClient(studio.url, KEY, 77).get_project()
    with pytest.raises(InputError, match="expected http"):
        LabelStudioClient("localhost:8080", KEY, 1)


def test_register_webhook_excludes_project_updates_and_reuses_an_old_webhook(tmp_path):
    with replay() as studio:
        LabelStudioClient(studio.url, KEY, studio.project).register_webhook(
            "http://x/webhook", WEBHOOK_ACTIONS, {SECRET_HEADER: "s"}
        )
        (hook,) = studio.sent("POST", "/api/webhooks/")
        assert "PROJECT_UPDATED" not in hook["actions"]
        studio.replies["hooks"] = [
            {"id": 7, "url": "http://old/webhook", "headers": {SECRET_HEADER: "old"}}
        ]
        LabelStudioClient(studio.url, KEY, studio.project).register_webhook(
            "http://x/webhook", WEBHOOK_ACTIONS, {SECRET_HEADER: "s"}
        )
        assert studio.sent("PATCH", "/api/webhooks/7/")
        assert len(studio.sent("POST", "/api/webhooks/")) == 1
