"""Naive twins of the tangent kernel: the full Jacobian by `jacrev`, then a matrix product."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import labelahead as la
from labelahead import ntk as tangent
from labelahead.ntk.capture import trace


class Plain(nn.Module):
    """The logits alone, as the Jacobian's twin wants them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        out = self.model(x)
        return getattr(out, "logits", out)


def jacobian(model: nn.Module, x, names=None) -> Tensor:
    """(n, C, P), parameters in the order of named_parameters()."""
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
    """(n, C, P) by plain autograd, a sample at a time (doubled, for layers that need two)."""
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
    """All four kinds from two Jacobians, by their definitions."""
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
    """Frobenius distance over the norm of what is wanted."""
    return float((got.detach() - want.detach()).norm() / want.detach().norm().clamp(min=1e-300))


def tolerance_of(model, x) -> float:
    """What to ask of a network in float64.

    Some compute in float32 inside, whatever they are given.
    """
    return 1e-4 if any(d != torch.float64 for d in trace(model, x[:2], {}).dtypes) else 1e-8


def errors_of(model, x) -> dict[str, float]:
    """How far the engine is from explicit Jacobians on five samples.

    Kernels, x against other x, norms, parameters.
    """
    J = one_by_one(Plain(model), x)
    one, other = J[:3], J[3:]
    errors = {}
    want, crosswise = kernels(one, one), kernels(one, other)
    for kind in want:
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
    gaps, start, whole = (
        la.features(model, x, kind="single", verify=False) - J[:, 0],
        0,
        float(J[:, 0].norm()),
    )
    for (
        k,
        d,
    ) in direction.items():  # each parameter by itself: a small one cannot hide behind a large one
        part = slice(start, start + d.numel())
        start += d.numel()
        errors[k] = float(gaps[:, part].norm()) / max(float(J[:, 0, part].norm()), 1e-6 * whole)
    return errors
