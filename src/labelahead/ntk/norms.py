"""Per-sample gradient norms and directional derivatives, without per-sample gradients."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from labelahead.batching import Inputs, count_samples
from labelahead.errors import InputError, VerificationError
from labelahead.ntk.derivatives import join_direction, push_forward
from labelahead.ntk.engine import (
    Engine,
    build_directions,
    check_cotangents,
    check_result,
    run_with_engine,
    should_verify,
)
from labelahead.ntk.factors import Factor, OuterFactor, PlainFactor
from labelahead.ntk.gram import sum_shifts
from labelahead.ntk.layout import is_close
from labelahead.ntk.limits import buffer_scale
from labelahead.ntk.premises import COMPILED_PREFIX, ParamFilter, move_samples, unwrap_compiled

__all__ = ["directional", "inner_products", "norms_and_products", "squared_norms"]

GRADIENT_BUFFER_ENTRIES = 1 << 19


def squared_norms(
    model: nn.Module,
    x: Inputs,
    cotangents: Tensor,
    *,
    params: ParamFilter = None,
    chunk: int | None = None,
    verify: bool | None = None,
) -> Tensor:
    """Compute |∇ cotangents[i]·f(x_i)|² for every sample: (n,); `cotangents` is (n, C).

    With cotangents = ∂loss/∂outputs these are the squared norms of the per-sample loss gradients.

    >>> loss = model(x).softmax(1).detach() - torch.eye(3)[[0, 1, 2, 0, 1, 2]]  # ∂ cross-entropy / ∂ outputs
    >>> norms = la.ntk.squared_norms(model, x, loss)
    >>> norms.shape, bool((norms >= 0).all())
    (torch.Size([6]), True)
    """
    return _sum_over_parameters(
        model, x, cotangents, params, lambda _, f: _squared_norm(f), chunk, verify
    )


def inner_products(
    model: nn.Module,
    x: Inputs,
    cotangents: Tensor,
    direction: Mapping[str, Tensor],
    *,
    chunk: int | None = None,
    verify: bool | None = None,
) -> Tensor:
    """Compute <∇ cotangents[i]·f(x_i), direction> for every sample, (n,), without a gradient.

    `direction` maps names of parameters to tensors of their shape; those left out count as zero.

    >>> ones = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    >>> products = la.ntk.inner_products(model, x, torch.ones(6, 3), ones)
    >>> bool(torch.allclose(products, la.ntk.directional(model, x, ones).sum(1), atol=1e-5))
    True
    """
    direction = _check_direction(model, direction)

    def product(name: str, f: Factor) -> Tensor:
        return _inner_product(f, direction[name].detach())

    return _sum_over_parameters(model, x, cotangents, list(direction), product, chunk, verify)


def norms_and_products(
    model: nn.Module,
    x: Inputs,
    cotangents: Tensor,
    direction: Mapping[str, Tensor],
    *,
    chunk: int | None = None,
    verify: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `squared_norms` and `inner_products`, (n,) each, in one pass over the samples.

    Both are sums over the parameters that `direction` names.

    >>> from labelahead.ntk import norms_and_products
    >>> step = {name: -p.detach() for name, p in model.named_parameters()}
    >>> norms, products = norms_and_products(model, x, torch.ones(6, 3), step)
    >>> norms.shape, products.shape
    (torch.Size([6]), torch.Size([6]))
    """
    direction = _check_direction(model, direction)

    def both(name: str, f: Factor) -> Tensor:
        return torch.stack(_squares_and_products(f, direction[name].detach()))

    squares, products = _sum_over_parameters(
        model, x, cotangents, list(direction), both, chunk, verify, kinds=(2,)
    )
    return squares, products


def _sum_over_parameters(
    model: nn.Module,
    x: Inputs,
    cotangents: Tensor,
    params: ParamFilter,
    each: Callable[[str, Factor], Tensor],
    chunk: int | None,
    verify: bool | None,
    kinds: tuple[int, ...] = (),
) -> Tensor:
    """Sum each(name, factor), (*kinds, n, 1), over the parameters: (*kinds, n)."""
    x = move_samples(model, x)

    def run(engine: Engine) -> Tensor:
        v = check_cotangents(cotangents, x, engine)
        out = v.new_zeros(*kinds, v.shape[0])
        for batch, factors in engine.capture_factors(
            x, v[:, None], chunk=chunk, check=should_verify(verify)
        ):
            for name, f in factors.items():
                out[..., batch] += each(name, f)[..., 0]
        return check_result(out)

    return run_with_engine(model, x, params, run)


def directional(
    model: nn.Module,
    x: Inputs,
    direction: Mapping[str, Tensor],
    *,
    chunk: int | None = None,
    verify: bool | None = None,
) -> Tensor:
    """Compute J(x_i)·v, the derivative of the outputs along `direction`: (n, C).

    `direction` maps names of parameters to tensors of their shape; those left out count as zero.
    It takes a forward, a backward and the derivative of that backward, which is linear in its
    cotangents; one backward per output where a backward cannot be differentiated. If only
    cotangents[i]·J(x_i) v is needed, `inner_products` takes a single backward.

    >>> along = {"2.bias": torch.tensor([1.0, 0.0, 0.0])}  # the last layer's bias of the first output
    >>> la.ntk.directional(model, x, along)[0].tolist()
    [1.0, 0.0, 0.0]
    """
    direction = _check_direction(model, direction)
    x = move_samples(model, x)

    def run(engine: Engine) -> Tensor:
        n, C = count_samples(x), engine.plan.outputs
        found = None
        if C > 2:
            found = push_forward(engine, x, join_direction(engine, direction)[None], chunk=chunk)
        if found is not None and not should_verify(verify):
            return check_result(found[:, 0])
        out = engine.like.new_zeros(n, C)
        eye = build_directions("full", C, engine.like).expand(n, -1, -1)
        for batch, factors in engine.capture_factors(
            x, eye, chunk=chunk, check=should_verify(verify)
        ):
            for name, f in factors.items():
                out[batch] += _inner_product(f, direction[name].detach())
        if found is not None and not is_close(found[:, 0], out, 0.0, engine.plan.eps):
            raise VerificationError(
                "the derivative of the backward differs from the products with gradients: a "
                "backward that was written by hand is not linear"
            )
        return check_result(out)

    return run_with_engine(model, x, list(direction), run)


def _check_direction(model: nn.Module, direction: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Check a direction and return it by the names of the plain module, not of a compiled one."""
    direction = {name.removeprefix(COMPILED_PREFIX): v for name, v in direction.items()}
    parameters = dict(unwrap_compiled(model).named_parameters())
    for name, v in direction.items():
        if not isinstance(v, Tensor) or not bool(torch.isfinite(v).all()):
            raise InputError(f"direction[{name!r}] must be a tensor of finite numbers")
        if name not in parameters or v.shape != parameters[name].shape:
            shape = tuple(parameters[name].shape) if name in parameters else "no such parameter"
            raise InputError(
                f"direction[{name!r}] has shape {tuple(v.shape)}, the network has {shape}: "
                "give a tensor for each named parameter, of its shape"
            )
    return direction


def _squares_and_products(f: Factor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """(n, K) each: squared norms, and products with `direction`.

    A gradient that is built for its norm yields the product by one more read. With pairs of
    positions the product takes a pass through the layer, about half the work of the gradient.
    """
    if isinstance(f, OuterFactor) and _is_gradient_cheaper(f, beside=0.5):
        squares, products = _norms_from_gradients(f, direction)
        assert products is not None
        return squares, products
    return _squared_norm(f), _inner_product(f, direction)


def _squared_norm(f: Factor) -> Tensor:
    """(n, K) from pairs of positions or from the gradient, whichever is cheaper."""
    if not isinstance(f, OuterFactor):
        return f.v.square().sum(2)
    if _is_rank_one(f):
        return f.a.square().sum((1, 2))[:, None] * f.g.square().sum((2, 3))
    return _norms_from_gradients(f)[0] if _is_gradient_cheaper(f) else _norms_from_pairs(f)


def _is_rank_one(f: OuterFactor) -> bool:
    """Whether there is one position per sample: the norm is then the product of two norms."""
    return not f.lookup and f.geometry is None and f.a.shape[1] == 1


def _is_gradient_cheaper(f: OuterFactor, beside: float = 0.0) -> bool:
    """Whether building the gradient is cheaper than pairs of positions.

    beside: further work that pairs need, in units of the gradient's work.
    """
    if f.lookup or _is_rank_one(f):
        return False
    S, d, T, o = f.sizes
    window = f.geometry
    if window is not None and (window.groups > 1 or f.a.shape[1] > 1):
        return True  # pairs are written for one group and one image a sample
    pairs = S * S * (d + (10 * sum(window.size) if window else 0)) + T * T * (o + 10)
    return pairs > (1 - beside) * T * math.prod(f.shape)


def _norms_from_gradients(
    f: OuterFactor, direction: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Squared norms, and products with `direction` if given, (n, K) each.

    A few gradients at a time are built in one buffer that fits into the CPU cache: a new buffer for
    all would cost more in page faults than the gradients themselves.
    """
    n, K = f.g.shape[:2]
    P = math.prod(f.shape)
    squares = f.g.new_empty(n, K)
    products = None if direction is None else f.g.new_empty(n, K)
    flat = None if direction is None else _reorder_direction(f, direction.to(f.g)).reshape(-1)
    step = max(1, buffer_scale(f.g.device) * GRADIENT_BUFFER_ENTRIES // (K * P))
    buffer = f.g.new_empty(min(step, n), K, P)
    for i in range(0, n, step):
        part = f.select_samples(slice(i, i + step))
        v = part.product(buffer[: part.samples])
        squares[i : i + step] = torch.linalg.vector_norm(v, dim=2).square_()
        if products is not None and flat is not None:
            products[i : i + step] = v @ flat
    return squares, products


def _reorder_direction(f: OuterFactor, direction: Tensor) -> Tensor:
    """Reorder the entries of the direction as in `f.product()`."""
    direction = direction.reshape(f.shape)
    if f.geometry is None:
        return direction.mT if f.transposed else direction
    return direction if f.is_channels_first else direction.movedim(1, -1)


def _norms_from_pairs(f: OuterFactor) -> Tensor:
    """(n, K): Σ over pairs of positions (t, t') of (a_t·a_t')(g_t·g_t')."""
    T = f.sizes[2]
    window = f.geometry
    if f.lookup:
        inputs = ((f.a[:, :, None] == f.a[:, None, :]) & (f.a >= 0)[:, None]).to(f.g)
    elif window is None:
        inputs = f.a @ f.a.mT
    else:
        pixels = f.a[:, 0].flatten(2)
        products = (pixels.mT @ pixels).permute(1, 2, 0)  # S, S, n: long runs over the samples
        products = products.reshape(*window.space, 1, *window.space, -1)
        inputs = sum_shifts(products, window).reshape(T, T, -1).permute(2, 0, 1)
    g = f.g if window is None else f.g[:, :, 0].flatten(3).mT
    return ((g @ g.mT) * inputs[:, None]).sum((2, 3))


def _inner_product(f: Factor, direction: Tensor) -> Tensor:
    """(n, K): the layer's output with `direction` as its weight, times the arriving gradient."""
    direction = direction.to(f.v if isinstance(f, PlainFactor) else f.g)
    if isinstance(f, PlainFactor):
        return f.v @ direction.flatten()
    direction = direction.reshape(f.shape)
    if f.lookup:
        rows = direction[f.a.clamp(min=0)] * (f.a >= 0)[..., None]
        return (f.g * rows[:, None]).sum((2, 3))
    if f.geometry is None:
        answer = f.a @ (direction if f.transposed else direction.mT)
        return (f.g * answer[:, None]).sum((2, 3))
    window = f.geometry
    convolve = (nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d)[
        len(window.size) - 1
    ]
    answer = convolve(
        f.a.flatten(0, 1),
        direction,
        None,
        window.stride,
        window.padding,
        window.dilation,
        window.groups,
    )
    answer = answer.view(f.g.shape[0], 1, *f.g.shape[2:])
    return (f.g * answer).flatten(2).sum(2)
