"""nn.LSTM as a few large products and one node of its recurrence.

The fused kernel hides where the weights enter; the same in single steps is a graph of thousands of nodes. Here the
gates of all steps, before their nonlinearities, are two plain matrix products, of the inputs and of the states
before each step; how a gate moves the states after it is the backward of one node.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

__all__ = ["OWN", "OpenLSTM"]


class OpenLSTM(TorchFunctionMode):
    """Every plain nn.LSTM runs as `_layer`; packed sequences and projections stay as torch has them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") == "lstm" and len(args) == 9 and not kwargs and _plain(*args):
            return _lstm(*args)
        return func(*args, **(kwargs or {}))


def _plain(
    x: Tensor, states: Any, weights: Any, biased: Any, layers: Any, dropout: float, train: Any, both: Any, _: Any
) -> bool:
    if isinstance(states, Tensor) or torch.is_autocast_enabled(x.device.type):  # packed: these are sizes of batches
        return False
    if torch._C._functorch.maybe_current_level() is not None:  # inside of vmap or grad
        return False
    return len(weights) == layers * (2 if both else 1) * (4 if biased else 2) and not (train and dropout)


def _lstm(
    x: Tensor,
    states: tuple[Tensor, Tensor],
    weights: list[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """As torch.lstm."""
    x = x if batch_first else x.transpose(0, 1)
    each, ways = (4 if biased else 2), (2 if both else 1)
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            own = weights[at * each : (at + 1) * each]
            out, h, c = _layer(x.flip(1) if way else x, states[0][at], states[1][at], *own)
            outputs.append(out.flip(1) if way else out)
            last.append((h, c))
        x = torch.cat(outputs, 2) if both else outputs[0]
    h, c = (torch.stack(s) for s in zip(*last, strict=True))
    return (x if batch_first else x.transpose(0, 1)), h, c


def _layer(
    x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, b: Tensor | None = None, d: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (n, T, H) and the last states (n, H) of one layer; its inputs are x (n, T, ·)."""
    n, T = x.shape[:2]
    # Rows go by steps, not by samples, as the recurrence needs them: nothing large is turned over.
    gates = _linear(x.transpose(0, 1).reshape(T * n, -1), w, b).view(T, n, -1)
    with torch.no_grad():
        ran = _run(gates.clone() if d is None else gates + d, h, c, u.t())
        before = torch.cat([h[None], ran[1][:-1]])
    recurrent = Product.apply(u, d, before.view(T * n, -1)).view(T, n, -1)  # type: ignore[no-untyped-call]
    out, state = Steps.apply(gates, recurrent, h, c, u.detach(), *ran)  # type: ignore[no-untyped-call]
    return out.transpose(0, 1), out[-1], state


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())


def _run(gates: Tensor, h: Tensor, c: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From what the inputs give the `gates` (T, n, 4H), step by step: (i, f, g, o), outputs, states, their tanh.

    `gates` are overwritten. Every tanh is taken as 2σ(2x) - 1: torch's sigmoid is several times as fast, and one
    call does all gates.
    """
    T, n, H = *gates.shape[:2], h.shape[1]
    opened, u = gates, u.clone()
    for scaled in (gates[..., 2 * H : 3 * H], u[:, 2 * H : 3 * H]):
        scaled.mul_(2)
    outputs, states, squashed = (opened.new_empty(T, n, H) for _ in range(3))
    i, f, g, o = (part.unbind() for part in opened.chunk(4, 2))
    for t, (gate, out, state, tanh) in enumerate(zip(opened, outputs, states, squashed, strict=True)):
        gate.addmm_(h, u).sigmoid_()
        g[t].mul_(2).sub_(1)
        torch.mul(f[t], c, out=state).addcmul_(i[t], g[t])
        torch.mul(state, 2, out=tanh).sigmoid_().mul_(2).sub_(1)
        torch.mul(o[t], tanh, out=out)
        h, c = out, state
    return opened, outputs, states, squashed


class Product(torch.autograd.Function):
    """Has the gradient of rows·weightᵀ + bias, and zeros for numbers: `_run` has them already."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.biased = bias is not None
        return rows.new_zeros(()).expand(rows.shape[0], weight.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return g.t() @ rows, g.sum(0) if ctx.biased else None, None


class Steps(torch.autograd.Function):
    """What inputs and states give the gates (T, n, 4H) -> outputs (T, n, H) and the last state; all was run before."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        recurrent: Tensor,
        h: Tensor,
        c: Tensor,
        u: Tensor,
        opened: Tensor,
        outputs: Tensor,
        states: Tensor,
        squashed: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(c, u, opened, states, squashed)
        ctx.steps = len(states)
        return outputs.view_as(outputs), states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor, of_state: Tensor) -> tuple[Tensor | None, ...]:
        c, u, opened, states, squashed = ctx.saved_tensors
        T, H = states.shape[0], states.shape[2]
        i, f, g, o = (part.unbind() for part in opened.chunk(4, 2))
        back = torch.empty_like(opened)
        di, df, dg, do = (part.unbind() for part in back.chunk(4, 2))
        sigmoids, tanhs = torch.ops.aten.sigmoid_backward.grad_input, torch.ops.aten.tanh_backward.grad_input
        dc, dh = of_state, of_outputs[-1]
        for t in reversed(range(T)):  # step by step, so that what is made of a step stays in the cache
            dc = dc + torch.ops.aten.tanh_backward(dh * o[t], squashed[t])
            torch.mul(dc, g[t], out=di[t])
            torch.mul(dc, states[t - 1] if t else c, out=df[t])
            torch.mul(dc, i[t], out=dg[t])
            torch.mul(dh, squashed[t], out=do[t])
            both = back[t, :, : 2 * H]
            sigmoids(both, opened[t, :, : 2 * H], grad_input=both)
            tanhs(dg[t], g[t], grad_input=dg[t])
            sigmoids(do[t], o[t], grad_input=do[t])
            dc = dc * f[t]
            dh = torch.addmm(of_outputs[t - 1], back[t], u) if t else back[t] @ u
        return back, back, dh, dc, None, None, None, None, None


OWN = (Product, Steps)
"""Nodes with a backward in Python that hide nothing."""
