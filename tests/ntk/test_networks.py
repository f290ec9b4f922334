"""Third-party networks, nn.LSTM and cached plans against explicit Jacobians in float64."""

import pytest
import torch

from research.competitors.zoo import make
from tests.support.reference_tangent import errors_of, tolerance_of

NAMES = (
    "bert",
    "gpt2",
    "distilbert",
    "roberta",
    "electra",
    "llama",
    "t5 encoder",
    "vit",
    "swin",
    "convnext",
    "resnet",
)


@pytest.mark.parametrize("name", [*(f"hf {name}" for name in NAMES), "torch LSTM"])
@pytest.mark.filterwarnings("ignore")
def test_third_party_networks_equal_jacobian_products(name):
    pytest.importorskip("transformers")
    model, x = make(name)
    torch.manual_seed(1)
    errors = errors_of(model, x)
    assert max(errors.values()) < tolerance_of(model, x), errors
