"""The weights that a round's training begins with: new ones, the last round's, or between."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from labelahead.errors import ModelError
from labelahead.models import seeded
from labelahead.train.settings import Training

__all__ = ["fresh_start"]


def fresh_start(
    model_factory: Callable[[int], nn.Module],
    previous: Mapping[str, Tensor] | None,
    training: Training,
    *,
    seed: int,
) -> nn.Module:
    """A new network with the weights that `training.start` asks for.

    "cold", and every start without a `previous` state: what the factory makes of `seed`.
    "warm": the previous state. "shrink": shrink × previous + perturb × new weights, parameter by
    parameter (Ash & Adams 2020); frozen parameters and buffers are the previous ones.
    """
    with seeded(seed):
        model = model_factory(seed)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"the factory returned a {type(model).__name__}; expected a torch.nn.Module"
        )
    if previous is None or training.start == "cold":
        return model
    new = {k: p.detach().clone() for k, p in model.named_parameters() if p.requires_grad}
    try:
        model.load_state_dict(dict(previous))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        raise ModelError(
            f"the previous weights do not fit the network ({lines[min(1, len(lines) - 1)]}); "
            "expected the same architecture and classes: use start='cold' after a change"
        ) from error
    if training.start == "shrink":
        with torch.no_grad():
            for key, p in model.named_parameters():
                if key in new:
                    p.mul_(training.shrink).add_(new[key], alpha=training.perturb)
    return model
