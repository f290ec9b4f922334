"""Run recurrent layers so that the graph shows where their weights enter.

nn.LSTM becomes a few large matrix products and one node for its recurrence. The fused kernel hides
where the weights enter, and single steps make a graph of thousands of nodes. Here the gates of all
steps, before their nonlinearities, are two plain matrix products, of the inputs and of the states
before each step; the effect of a gate on later states is the backward of one node.

nn.GRU and single cells are plain operations on a CPU. A GPU fuses each step with its biases, so
there the same operations are run here.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from labelahead.ntk.layers import first_derivative_only, replaces_layers
from labelahead.ntk.limits import buffer_sizes

__all__ = ["RECURRENCE_FUNCTIONS", "UnfusedRecurrence"]


class UnfusedRecurrence(TorchFunctionMode):
    """Runs every plain nn.LSTM by `_run_layer`, and on a GPU GRUs and cells by plain operations.

    Packed sequences and projections are left to torch.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        own = name == "lstm" and replaces_layers()
        if own and len(args) == len(LstmCall._fields) and not kwargs:
            call = LstmCall(*args)
            if _can_unfuse(call):
                return _run_lstm(call)
        if name in GPU_FUNCTIONS and not kwargs and args[0].device.type != "cpu":
            run, expected = GPU_FUNCTIONS[name]
            if len(args) == expected and (name != "gru" or _has_plain_weights(*args[2:8])):
                return run(*args)
        return func(*args, **(kwargs or {}))


class LstmCall(NamedTuple):
    """The arguments of torch.lstm, without packed sequences."""

    x: Tensor
    states: tuple[Tensor, Tensor]
    weights: list[Tensor]
    biased: bool
    layers: int
    dropout: float
    train: bool
    both: bool  # directions
    batch_first: bool


def _can_unfuse(call: LstmCall) -> bool:
    # For packed sequences `states` is a tensor, the batch sizes.
    if isinstance(call.states, Tensor) or _is_autocast_enabled(call.x.device.type):
        return False
    if torch._C._functorch.maybe_current_level() is not None:  # inside of vmap or grad
        return False
    return _has_plain_weights(*call[2:8])


def _is_autocast_enabled(device_type: str) -> bool:
    try:
        return torch.is_autocast_enabled(device_type)
    except RuntimeError:  # this kind of device has no autocast
        return False


def _has_plain_weights(
    weights: Any, biased: Any, layers: Any, dropout: float, train: Any, both: Any
) -> bool:
    """Whether there are no projections, no dropout and no packed sequence (`weights` a flag)."""
    return (
        isinstance(weights, list | tuple)
        and len(weights) == layers * (2 if both else 1) * (4 if biased else 2)
        and not (train and dropout)
    )


def _run_gru(
    x: Tensor, states: Tensor, weights: list[Tensor], biased: bool, layers: int, *options: Any
) -> tuple[Tensor, Tensor]:
    """Compute what torch.gru computes; options: dropout, train, both directions, batch first."""
    _, _, both, batch_first = options
    x = x.transpose(0, 1) if batch_first else x  # (T, n, ·)
    each, ways = (4 if biased else 2), (2 if both else 1)
    last: list[Tensor] = []
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            own = weights[at * each : (at + 1) * each]
            h, steps = states[at], []
            for step in (x.flip(0) if way else x).unbind(0):
                h = _run_gru_cell(step, h, *own)
                steps.append(h)
            last.append(h)
            outputs.append(torch.stack(steps[::-1] if way else steps))
        x = torch.cat(outputs, 2) if both else outputs[0]
    return (x.transpose(0, 1) if batch_first else x), torch.stack(last)


def _run_gru_cell(
    x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor | None = None, d: Tensor | None = None
) -> Tensor:
    """Compute what torch.gru_cell computes: (n, H)."""
    r, z, new = _linear(x, w, b).chunk(3, 1)
    r_state, z_state, new_state = _linear(h, u, d).chunk(3, 1)
    candidate = torch.tanh(new + torch.sigmoid(r + r_state) * new_state)
    return candidate + torch.sigmoid(z + z_state) * (h - candidate)


def _run_lstm_cell(
    x: Tensor,
    states: tuple[Tensor, Tensor],
    w: Tensor,
    u: Tensor,
    b: Tensor | None = None,
    d: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what torch.lstm_cell computes: output and state, (n, H) each."""
    h, c = states
    i, f, g, o = (_linear(x, w, b) + _linear(h, u, d)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


GPU_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int]] = {
    "gru": (_run_gru, 9),
    "gru_cell": (_run_gru_cell, 6),
    "lstm_cell": (_run_lstm_cell, 6),
}
"""Function of torch that a GPU fuses -> plain operations, number of arguments."""


def _run_lstm(call: LstmCall) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what torch.lstm computes."""
    x = call.x if call.batch_first else call.x.transpose(0, 1)
    each, ways = (4 if call.biased else 2), (2 if call.both else 1)
    last: list[tuple[Tensor, Tensor]] = []
    for layer in range(call.layers):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            own = call.weights[at * each : (at + 1) * each]
            first = call.states[0][at], call.states[1][at]
            out, h, c = _run_layer(x.flip(1) if way else x, *first, *own)
            outputs.append(out.flip(1) if way else out)
            last.append((h, c))
        x = torch.cat(outputs, 2) if call.both else outputs[0]
    h, c = (torch.stack(s) for s in zip(*last, strict=True))
    return (x if call.batch_first else x.transpose(0, 1)), h, c


def _run_layer(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    w: Tensor,
    u: Tensor,
    b: Tensor | None = None,
    d: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one layer on inputs x (n, T, ·): outputs (n, T, H) and the last states (n, H)."""
    n, T = x.shape[:2]
    # Rows are ordered by steps, not by samples, as the recurrence needs them, without a transpose.
    gates = _linear(x.transpose(0, 1).reshape(T * n, -1), w, b).view(T, n, -1)
    with torch.no_grad():
        ran = _run_steps(gates.clone() if d is None else gates + d, h, c, u.t())
        before = torch.cat([h[None], ran[1][:-1]])
    recurrent = RecurrentProduct.apply(u, d, before.view(T * n, -1)).view(T, n, -1)  # type: ignore[no-untyped-call]
    out, state = RecurrentSteps.apply(gates, recurrent, h, c, u.detach(), ran)  # type: ignore[no-untyped-call]
    return out.transpose(0, 1), out[-1], state


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())


def _run_steps(
    gates: Tensor, h: Tensor, c: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the steps, given the inputs' part of the `gates` (T, n, 4H), which is overwritten.

    Returns the gates (i, f, g, o), the outputs, the states and their tanh. Every tanh is computed
    as 2σ(2x) - 1: torch's sigmoid is several times as fast, and one call does all gates.
    """
    T, n, H = *gates.shape[:2], h.shape[1]
    opened, u = gates, u.clone()
    for scaled in (gates[..., 2 * H : 3 * H], u[:, 2 * H : 3 * H]):
        scaled.mul_(2)
    outputs, states, squashed = (opened.new_empty(T, n, H) for _ in range(3))
    i, f, g, o = (part.unbind() for part in opened.chunk(4, 2))
    for t, (gate, out, state, tanh) in enumerate(
        zip(opened, outputs, states, squashed, strict=True)
    ):
        gate.addmm_(h, u).sigmoid_()
        g[t].mul_(2).sub_(1)
        torch.mul(f[t], c, out=state).addcmul_(i[t], g[t])
        torch.mul(state, 2, out=tanh).sigmoid_().mul_(2).sub_(1)
        torch.mul(o[t], tanh, out=out)
        h, c = out, state
    return opened, outputs, states, squashed


class RecurrentProduct(torch.autograd.Function):
    """Has the gradient of rows·weightᵀ + bias; its values are zeros (`_run_steps` has them)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.biased = bias is not None
        return rows.new_zeros(()).expand(rows.shape[0], weight.shape[0])

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        return g.t() @ rows, g.sum(0) if ctx.biased else None, None


class RecurrentSteps(torch.autograd.Function):
    """Gates (T, n, 4H) -> outputs (T, n, H) and the last state, which were computed before."""

    @staticmethod
    def forward(
        ctx: Any,
        gates: Tensor,
        recurrent: Tensor,
        h: Tensor,
        c: Tensor,
        u: Tensor,
        ran: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        opened, outputs, states, squashed = ran
        ctx.save_for_backward(c, u, opened, states, squashed)
        ctx.steps = len(states)
        return outputs.view_as(outputs), states[-1].clone()

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, of_outputs: Tensor, of_state: Tensor) -> tuple[Tensor | None, ...]:
        c, u, opened, states, squashed = ctx.saved_tensors
        T, n, H = states.shape
        back = torch.empty_like(opened)
        forgets, arriving = opened[..., H : 2 * H].unbind(), of_outputs.unbind()
        dc, dh = of_state, arriving[-1]
        block = max(1, buffer_sizes().state_entries // (n * H))  # steps
        for stop in range(T, 0, -block):
            start = max(0, stop - block)
            before = (
                states[start - 1 : stop - 1] if start else torch.cat([c[None], states[: stop - 1]])
            )
            own = back[start:stop]
            through = _gate_slopes(opened[start:stop], squashed[start:stop], before, own).unbind()
            rows, of_c = own.unbind(), own[..., : 3 * H].view(-1, n, 3, H).unbind()
            of_h = own[..., 3 * H :].unbind()
            for k in reversed(range(stop - start)):
                t = start + k
                dc = torch.addcmul(dc, dh, through[k])
                of_c[k].mul_(dc[:, None])
                of_h[k].mul_(dh)
                dc.mul_(forgets[t])
                dh = torch.addmm(arriving[t - 1], rows[k], u) if t else rows[k] @ u
        return back, back, dh, dc, None, None


def _gate_slopes(opened: Tensor, squashed: Tensor, before: Tensor, out: Tensor) -> Tensor:
    """Derivatives of the state by the gates i, f, g and of the output by o, into `out`.

    `out` is (steps, n, 4H). Returns the derivative of the output by the state, (steps, n, H).
    """
    i, _, g, o = opened.chunk(4, 2)
    torch.addcmul(opened, opened, opened, value=-1, out=out)  # of a sigmoid: s - s²
    of_i, of_f, of_g, of_o = out.chunk(4, 2)
    of_i.mul_(g)
    of_f.mul_(before)
    torch.mul(g, g, out=of_g).neg_().add_(1).mul_(i)
    of_o.mul_(squashed)
    return squashed.square().neg_().add_(1).mul_(o)


RECURRENCE_FUNCTIONS = (RecurrentProduct, RecurrentSteps)
"""Functions whose backward is written in Python but is known to be plain."""
