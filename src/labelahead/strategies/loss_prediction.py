"""LL4AL: a small network learns, beside the real one, to say where its loss is large."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelahead.errors import ModelError
from labelahead.inputs import Samples
from labelahead.strategies.asking import Strategy
from labelahead.strategies.situation import Situation, scored
from labelahead.train import Training, fresh_start
from labelahead.train.fit import learning_norms, settle
from labelahead.train.passes import eval_mode, forward

__all__ = ["LL4AL", "LossPredictor", "ranking_loss"]

TAPS = 4  # layers that the predictor looks at
WIDTH = 128
MARGIN = 1.0
WEIGHT = 1.0
DETACH = 0.6  # of training, after which the predictor no longer shapes the network


class LossPredictor(nn.Module):
    """Predicted loss (n,) from the outputs of some layers: pooled, a hidden layer each, joined."""

    def __init__(self, sizes: list[int], width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, width) for size in sizes)
        self.last = nn.Linear(width * len(sizes), 1)

    def forward(self, seen: list[Tensor]) -> Tensor:
        """(n,) for features (n, c) or (n, c, ...), one tensor a layer."""
        flat = [v.flatten(2).mean(2) if v.dim() > 2 else v for v in seen]
        hidden = [F.relu(layer(v)) for layer, v in zip(self.layers, flat, strict=True)]
        out: Tensor = self.last(torch.cat(hidden, 1))[:, 0]
        return out


def ranking_loss(predicted: Tensor, true: Tensor, margin: float = MARGIN) -> Tensor:
    """Pairs (i, n/2 + i): the one with the larger loss should be predicted larger by the margin."""
    half = len(true) // 2
    if half == 0:
        return predicted.sum() * 0.0
    guess = predicted[:half] - predicted[half : 2 * half]
    sign = torch.sign(true[:half] - true[half : 2 * half]).detach()
    return F.relu(margin - sign * guess).mean()


def _predicted_loss(s: Situation, rng: torch.Generator) -> Tensor:
    """Train network and predictor together on the labelled items, then ask the predictor."""
    training = s.training or Training()
    seed = int(torch.randint(2**31, (1,), generator=rng))
    model = fresh_start(s.fresh, None, training, seed=seed) if s.fresh is not None else copy.deepcopy(s.model)
    device = next(s.model.parameters()).device
    x = s.learnt.seen(s.candidates)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.to(device)
        with _tapped(model, x[:2]) as seen:
            predictor = LossPredictor([v.shape[1] for v in seen.values()]).to(next(iter(seen.values())))
            if len(s.labelled):
                _train_both(s, model, predictor, seen, training, seed)
            model.eval()
            losses = []
            with torch.no_grad():
                for start in range(0, len(x), 512):
                    seen.clear()
                    forward(model, x[start : start + 512])
                    losses.append(predictor(list(seen.values())))
    return torch.cat(losses)


def _train_both(
    s: Situation, model: nn.Module, predictor: nn.Module, seen: dict[int, Tensor], training: Training, seed: int
) -> None:
    device = next(model.parameters()).device
    x, y = s.learnt.seen(s.labelled), s.labels.to(device)
    weights = [p for p in [*model.parameters(), *predictor.parameters()] if p.requires_grad]
    optimiser: torch.optim.Optimizer
    if training.optimiser == "adam":
        optimiser = torch.optim.Adam(weights, training.rate, weight_decay=training.weight_decay)
    else:
        optimiser = torch.optim.SGD(weights, training.rate, training.momentum, weight_decay=training.weight_decay)
    steps = max(1, training.counted(len(x)).steps)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimiser, training.rate, total_steps=steps + 1)
    order = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(steps):
        at = torch.randperm(len(x), generator=order)[: training.batch]
        if len(at) == 1:  # BatchNorm needs two
            at = at.repeat(2)
        seen.clear()
        out = forward(model, x[at])
        loss = _losses(out, y[at], training.loss)
        taps = list(seen.values())
        if step >= DETACH * steps:
            taps = [v.detach() for v in taps]
        total = loss.mean() + WEIGHT * ranking_loss(predictor(taps), loss)
        optimiser.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, training.clip or 5.0)
        optimiser.step()
        cycle.step()
    settle(model, learning_norms(model), x)


def _losses(out: Tensor, y: Tensor, kind: str) -> Tensor:
    """(n,) the loss of each sample."""
    if kind == "cross-entropy":
        return F.cross_entropy(out, y, reduction="none")
    return 0.5 * (out - F.one_hot(y, out.shape[1]).to(out)).square().sum(1)


@contextmanager
def _tapped(model: nn.Module, some: Tensor | Samples) -> Iterator[dict[int, Tensor]]:
    """The outputs of a few layers, spread over the network, filled by every forward pass."""
    calls: list[nn.Module] = []
    layers = [m for m in model.modules() if not list(m.children()) and list(m.parameters(False))]

    def note(m: nn.Module, given: Any, out: Any) -> None:
        if isinstance(out, Tensor) and len(out) == len(some):  # what is the same for all samples tells none apart
            calls.append(m)

    hooks: list[Any] = [m.register_forward_hook(note) for m in layers]
    with eval_mode(model), torch.no_grad():
        forward(model, some)
    for hook in hooks:
        hook.remove()
    every = list(dict.fromkeys(calls))
    every = every[:-1] or every  # the read-out is the network's answer, not its reasons
    if not every:
        raise ModelError(
            "ll4al looks at the outputs of layers, but this network calls no module with "
            "parameters: choose another strategy"
        )
    count = min(TAPS, len(every))
    chosen = [every[round((i + 1) * len(every) / count) - 1] for i in range(count)]
    seen: dict[int, Tensor] = {}

    def keep(i: int) -> Any:
        return lambda m, a, o: seen.__setitem__(i, o)

    hooks = [m.register_forward_hook(keep(i)) for i, m in enumerate(chosen)]
    try:
        with torch.no_grad():
            forward(model, some)  # so that the sizes are known
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


LL4AL = Strategy(
    "ll4al",
    "many labels already: a module trained along with the network predicts its loss",
    "Yoo & Kweon 2019, Learning Loss for Active Learning",
    scored(_predicted_loss),
    needs_network=True,
)
