"""Naive twins of the tangent kernel: the full Jacobian by `jacrev`, then a matrix product."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import labelahead as la
from labelahead import ntk as tangent
from labelahead.ntk.capture import trace


class Plain(nn.Module):
    """A wrapper that returns the logits alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        out = self.model(x)
        return getattr(out, "logits", out)


def jacobian(model: nn.Module, x, names=None) -> Tensor:
    """Return the Jacobian (n, C, P), with parameters in the order of named_parameters()."""
    params = {
        k: p.detach()
        for k, p in model.named_parameters()
        if (p.requires_grad if names is None else k in names)
    }

    def outputs(p):
        args = x if isinstance(x, tuple) else (x,)
        out = functional_call(model, p, tuple(t.clone() for t in args))
        return out[:, None] if out.ndim == 1 else out

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        jac = jacrev(outputs)(params)
    return torch.cat([j.reshape(*j.shape[:2], -1) for j in jac.values()], dim=2)


def one_by_one(model, x):
    """Return the Jacobian (n, C, P) by autograd, one sample at a time.

    Each sample is duplicated for layers that need a batch of two.
    """
    rows = []
    params = [p for p in model.parameters() if p.requires_grad]
    for i in range(len(x)):
        out = model(torch.stack([x[i], x[i]]))[0]
        grads = [torch.autograd.grad(o, params, retain_graph=True, allow_unused=True) for o in out]
        flat = [
            torch.cat(
                [
                    (
                        torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
                    ).flatten()
                    for p, g in zip(params, gs, strict=True)
                ]
            )
            for gs in grads
        ]
        rows.append(torch.stack(flat))
    return torch.stack(rows)


def kernels(J: Tensor, J2: Tensor) -> dict[str, Tensor]:
    """Compute all four kinds of kernel from two Jacobians, by their definitions."""
    n, C, _ = J.shape
    m = J2.shape[0]
    full = torch.einsum("icp,jdp->icjd", J, J2)
    return {
        "full": full.reshape(n * C, m * C),
        "pseudo": full.sum((1, 3)) / C,
        "single": full[:, 0, :, 0],
        "trace": torch.einsum("icjc->ij", full) / C,
    }


def relative(got: Tensor, want: Tensor) -> float:
    """Return the Frobenius distance divided by the norm of the expected value."""
    return float((got.detach() - want.detach()).norm() / want.detach().norm().clamp(min=1e-300))


def tolerance_of(model, x) -> float:
    """Return the tolerance for a network in float64.

    Some networks compute in float32 internally.
    """
    return 1e-4 if any(d != torch.float64 for d in trace(model, x[:2], {}).dtypes) else 1e-8


def errors_of(model, x) -> dict[str, float]:
    """Return the relative errors of the engine against explicit Jacobians on five samples.

    Compares kernels, cross kernels, norms, products and the features of each parameter.
    """
    J = one_by_one(Plain(model), x)
    first, second = J[:3], J[3:]
    errors = {}
    expected, expected_cross = kernels(first, first), kernels(first, second)
    for kind in expected:
        errors[kind] = relative(la.kernel(model, x[:3], kind=kind, verify=False), expected[kind])
        cross = la.kernel(model, x[:3], x[3:], kind=kind, verify=False)
        errors[kind] = max(errors[kind], relative(cross, expected_cross[kind]))
    v = torch.randn(J.shape[:2])
    g = torch.einsum("nc,ncp->np", v.to(J), J)
    direction = {k: torch.randn_like(p) for k, p in model.named_parameters() if p.requires_grad}
    flat = torch.cat([d.flatten() for d in direction.values()])
    squares, products = tangent.norms_and_products(model, x, v, direction, verify=False)
    errors["norms"] = relative(squares, g.square().sum(1))
    errors["products"] = float((products - g @ flat).norm() / (g.norm() * flat.norm()))
    gaps, start, whole = (
        la.features(model, x, kind="single", verify=False) - J[:, 0],
        0,
        float(J[:, 0].norm()),
    )
    for (
        k,
        d,
    ) in direction.items():  # per parameter, so that a large one hides no error of a small one
        part = slice(start, start + d.numel())
        start += d.numel()
        errors[k] = float(gaps[:, part].norm()) / max(float(J[:, 0, part].norm()), 1e-6 * whole)
    return errors
