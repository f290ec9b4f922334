"""Networks of other people against explicit Jacobians, in float64: every kind, x against other x, every parameter.

`make test-zoo` runs it, in an environment that has their packages; elsewhere it is skipped. With ZOO_TABLE=file it
writes what docs/networks.md shows.
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
    pytest.skip("timm and the rest of the zoo are not installed: make test-zoo", allow_module_level=True)

import labelahead as la
from labelahead import tangent
from labelahead.tangent.capture import trace
from peers.zoo import ZOO, make, with_torchvision_names
from tests.support.reference_tangent import kernels, one_by_one, relative

KINDS = ("pseudo", "full", "single", "trace")


class Plain(torch.nn.Module):
    """The logits alone, as the Jacobian's twin wants them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        out = self.model(x)
        return getattr(out, "logits", out)


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.filterwarnings("ignore")
def test_against_explicit_jacobians(name, caplog):
    model, x = make(name)
    torch.manual_seed(1)
    coarse = any(d != torch.float64 for d in trace(model, x[:2], {}).dtypes)  # float32 inside, whatever it is given
    tolerance = 1e-4 if coarse else 1e-8
    J = one_by_one(Plain(model), x)
    one, other = J[:3], J[3:]
    errors = {}
    want, crosswise = kernels(one, one), kernels(one, other)
    with caplog.at_level(logging.WARNING, logger="labelahead"):
        for kind in KINDS:
            errors[kind] = relative(la.kernel(model, x[:3], kind=kind, verify=False), want[kind])
            crossed = la.kernel(model, x[:3], x[3:], kind=kind, verify=False)
            errors[kind] = max(errors[kind], relative(crossed, crosswise[kind]))
    v = torch.randn(J.shape[:2])
    g = torch.einsum("nc,ncp->np", v.to(J), J)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters() if p.requires_grad}
    flat = torch.cat([d.flatten() for d in direction.values()])
    squares, products = tangent.norms_and_products(model, x, v, direction, verify=False)
    errors["norms"] = relative(squares, g.square().sum(1))
    errors["products"] = float((products - g @ flat).norm() / (g.norm() * flat.norm()))
    gaps, start, whole = la.features(model, x, kind="single", verify=False) - J[:, 0], 0, float(J[:, 0].norm())
    for k, d in direction.items():  # each parameter by itself: a small one cannot hide behind a large one
        part = slice(start, start + d.numel())
        start += d.numel()
        scale = max(float(J[:, 0, part].norm()), 1e-6 * whole)
        errors["parameter"] = max(errors.get("parameter", 0.0), float(gaps[:, part].norm()) / scale)
        assert errors["parameter"] < tolerance, k
    assert max(errors.values()) < tolerance, errors
    if os.environ.get("ZOO_TABLE"):
        _note(name, x, errors, coarse, [r.getMessage() for r in caplog.records])


def _note(name, x, errors, coarse, said):
    """A line of the table: error, path, the loop's time over ours on 16 samples in float32 (one run each)."""
    model = make(name)[0].float()  # a fresh one: LeViT keeps tables in float64 from the passes before
    x = (x.float() if x.is_floating_point() else x).repeat(4, *[1] * (x.ndim - 1))[:16]
    params, seconds = [p for p in model.parameters() if p.requires_grad], []

    def loop():
        rows = []
        for i in range(len(x)):
            out = Plain(model)(x[i : i + 1])
            found = torch.autograd.grad(out.sum() / out.shape[1] ** 0.5, params, allow_unused=True)
            rows.append(
                torch.cat(
                    [(torch.zeros_like(p) if v is None else v).flatten() for p, v in zip(params, found, strict=True)]
                )
            )
        return (G := torch.stack(rows)) @ G.T

    for run in (lambda: la.kernel(model, x, verify=False), loop):
        try:
            run()
            start = time.process_time()
            run()
            seconds.append(time.process_time() - start)
        except RuntimeError:  # LeViT's loop meets the graph of the pass before
            seconds.append(float("nan"))
    fallback = next((s for s in said if "no rule" in s), "")
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


def test_the_recipes_of_the_docs_run():
    with_torchvision_names()
    page = (Path(__file__).resolve().parents[2] / "docs" / "networks.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names = {}
        exec(compile(block, "docs/networks.md", "exec"), names)
        assert torch.equal(names["K"], names["K"].T)
