"""Kernels of third-party networks against explicit Jacobians in float64.

The tests cover every kind of kernel, pairs of input sets and every parameter. `make test-zoo` runs
them in an environment with the packages; elsewhere they are skipped. With ZOO_TABLE=file they write
the table of docs/networks.md.
"""

import importlib.util
import json
import logging
import os
import re
import time
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("timm") is None:
    pytest.skip(
        "timm and the rest of the zoo are not installed: make test-zoo", allow_module_level=True
    )

import labelahead as la
from research.competitors.zoo import ZOO, make, text, with_torchvision_names
from tests.support.reference_tangent import (
    Plain,
    errors_of,
    kernels,
    one_by_one,
    relative,
    tolerance_of,
)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.filterwarnings("ignore")
def test_kernels_equal_explicit_jacobians(name, caplog):
    model, x = make(name)
    torch.manual_seed(1)
    tolerance = tolerance_of(model, x)
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        errors = errors_of(model, x)
    assert max(errors.values()) < tolerance, errors
    if os.environ.get("ZOO_TABLE"):
        _append_table_line(
            name, x, errors, tolerance > 1e-8, [r.getMessage() for r in caplog.records]
        )


def _append_table_line(name, x, errors, coarse, messages):
    """Append a line with the error, the fallback and the loop's time over ours.

    Times are for 16 samples in float32, one run each.
    """
    model = make(name)[0].float()  # a new one: LeViT keeps float64 tables of earlier passes
    x = (x.float() if x.is_floating_point() else x).repeat(4, *[1] * (x.ndim - 1))[:16]
    params, seconds = [p for p in model.parameters() if p.requires_grad], []

    def compute_kernel_by_loop():
        rows = []
        for i in range(len(x)):
            out = Plain(model)(x[i : i + 1])
            found = torch.autograd.grad(out.sum() / out.shape[1] ** 0.5, params, allow_unused=True)
            rows.append(
                torch.cat(
                    [
                        (torch.zeros_like(p) if v is None else v).flatten()
                        for p, v in zip(params, found, strict=True)
                    ]
                )
            )
        return (G := torch.stack(rows)) @ G.T

    for run in (lambda: la.kernel(model, x, verify=False), compute_kernel_by_loop):
        try:
            run()
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        except RuntimeError:  # LeViT's loop reuses the graph of the previous pass
            seconds.append(float("nan"))
    fallback = next((s for s in messages if "no rule" in s), "")
    line = {
        "network": name,
        "parameters": sum(p.numel() for p in params),
        "error": max(errors.values()),
        "coarse": coarse,
        "fallback": fallback.split("):")[-1].strip() if fallback else "",
        "ratio": seconds[1] / seconds[0],
    }
    with Path(os.environ["ZOO_TABLE"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_recipes_of_networks_page_run():
    with_torchvision_names()
    page = (Path(__file__).resolve().parents[3] / "docs" / "networks.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names = {}
        exec(compile(block, "docs/networks.md", "exec"), names)
        assert torch.equal(names["K"], names["K"].T)


@pytest.mark.filterwarnings("ignore")
def test_lora_kernels_with_reentrant_checkpoints_equal_jacobians():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model, ids = text("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)()
    config = LoraConfig(
        r=2, lora_dropout=0.0, init_lora_weights=False, target_modules=["query", "value"]
    )
    model = get_peft_model(model, config).double().train()  # checkpoints are for training only
    J = one_by_one(Plain(model), ids)
    inner = next(
        m
        for m in model.modules()
        if hasattr(m, "gradient_checkpointing_enable") and hasattr(m, "config")
    )
    inner.gradient_checkpointing_enable({"use_reentrant": True})
    inner.enable_input_require_grads()
    assert any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
    for kind, want in kernels(J[:3], J[3:]).items():
        assert relative(la.kernel(model, ids[:3], ids[3:], kind=kind), want) < 1e-8, kind
