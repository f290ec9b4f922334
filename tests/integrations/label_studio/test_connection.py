"""The connection to a project."""

import pytest

from labelahead.errors import InputError
from labelahead.integrations.label_studio.connection import Connection
from tests.support.label_studio import CONFIG, KEY, replay

UNSUPPORTED_CONFIGS = [
    (
        '<View><Image name="i" value="$i"/><RectangleLabels name="l" toName="i"/></View>',
        "RectangleLabels",
    ),
    (
        CONFIG.replace('toName="text"', 'toName="text" choice="multiple"', 1).replace(
            "</View>", '<Number name="n" toName="text"/></View>'
        ),
        "unclear which of them",
    ),
    (
        CONFIG.replace(
            "</View>", '<Choices name="b" toName="text"><Choice value="x"/></Choices></View>'
        ),
        "2 <Choices>",
    ),
    (CONFIG.replace('value="food"', 'value="Sport"'), "capital letters"),
    (CONFIG.replace('value="$text"', 'value="text"'), "one field"),
    (CONFIG.replace('<Choice value="food"/><Choice value="space"/>', ""), "two or more"),
    ('<View><Text name="t" value="$t"/></View>', "0 <Choices>"),
    ("<View>", "not valid XML"),
]


@pytest.mark.parametrize(("config", "message"), UNSUPPORTED_CONFIGS)
def test_unsupported_labelling_config_is_refused_before_a_folder_is_made(tmp_path, config, message):
    with replay() as studio:
        studio.replies["project"]["label_config"] = config
        with pytest.raises(InputError, match=message):
            Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_folder_of_another_project_is_refused(tmp_path):
    with replay() as studio:
        Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
        studio.replies["project"]["created_at"] = "2020-01-01T00:00:00Z"
        with pytest.raises(InputError, match="choose another folder"):
            Connection.open(studio.url, KEY, studio.project, tmp_path / "out")
