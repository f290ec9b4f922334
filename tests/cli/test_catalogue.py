"""The list command."""

import pytest

from tests.support.command_line import invoke


@pytest.mark.parametrize("kind", ["strategies", "models", "data"])
def test_list_command_lists_every_name_of_a_kind(kind):
    from labelahead.data import DATASETS
    from labelahead.models import MODELS
    from labelahead.strategies import STRATEGIES

    members = {"strategies": STRATEGIES, "models": MODELS, "data": DATASETS}[kind]
    result = invoke("list", kind)
    assert result.exit_code == 0
    words = result.output.split()
    assert all(name in words for name in members)


def test_list_command_without_argument_lists_every_kind():
    from labelahead.strategies import STRATEGIES

    result = invoke("list")
    assert result.exit_code == 0, result.output
    words = result.output.replace(",", " ").split()
    assert {
        *STRATEGIES,
        "mlp",
        "exact",
        "digits",
        "strategies",
        "models",
        "embeddings",
        "data",
    } <= set(words)
