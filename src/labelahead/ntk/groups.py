"""Kernels of groups of parameters, such as layers, from one pass over the samples."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor, nn

from labelahead.batching import Inputs, count_samples
from labelahead.errors import InputError
from labelahead.ntk.engine import Engine, build_directions, check_result, run_with_engine
from labelahead.ntk.gram import add_gram, mirror_upper
from labelahead.ntk.plan import Plan
from labelahead.ntk.premises import ParamFilter, choose_parameters, move_samples, unwrap_compiled
from labelahead.ntk.terms import allocate_gradients, make_terms, write_factors

__all__ = ["kernels_by_group"]


def kernels_by_group(
    model: nn.Module,
    x: Inputs,
    groups: Mapping[str, Iterable[str]] | None = None,
    *,
    kind: str = "pseudo",
    params: ParamFilter = None,
    chunk: int | None = None,
) -> dict[str, Tensor]:
    """Compute the kernel of every group of parameters; they add up to the kernel of all.

    All samples pass through the network once, and the factors of their gradients stay in memory.

    Args:
        model: The network.
        x: n samples.
        groups: Name -> names, module prefixes or wildcards of parameters, as in `kernel`. Default:
            the modules that own parameters. No parameter may be in two groups.
        kind: As in `kernel`.
        params: As in `kernel`; without effect on `groups` that are given.
        chunk: As in `kernel`.

    >>> layers = la.ntk.kernels_by_group(model, x)
    >>> sorted(layers)
    ['0', '2']
    >>> bool(torch.allclose(layers["0"] + layers["2"], la.kernel(model, x), atol=1e-5))
    True
    """
    x = move_samples(model, x)
    plain = unwrap_compiled(model)
    if groups is None:
        members: dict[str, list[str]] = {}
        for name in choose_parameters(plain, params):
            members.setdefault(name.rpartition(".")[0], []).append(name)
    else:
        members = {k: list(choose_parameters(plain, list(own))) for k, own in groups.items()}
    names = [name for own in members.values() for name in own]
    if len(names) != len(set(names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"parameter {twice[0]!r} is in two groups; expected each in one")
    kernels: list[Tensor] = []

    def run(engine: Engine) -> Tensor:
        kernels[:] = _compute_groups(engine, x, list(members.values()), kind, chunk)
        return check_result(sum(kernels[1:], start=kernels[0]))

    run_with_engine(model, x, names, run)
    return dict(zip(members, kernels, strict=True))


def _compute_groups(
    engine: Engine, x: Inputs, members: list[list[str]], kind: str, chunk: int | None
) -> list[Tensor]:
    n, like = count_samples(x), engine.like
    directions = build_directions(kind, engine.plan.outputs, like)
    K = directions.shape[0]
    fold = kind != "full"
    captured = list(engine.capture_factors(x, directions.expand(n, -1, -1), chunk=chunk))
    kernels = []
    for own in members:
        plan = _restrict_plan(engine.plan, own)
        out = like.new_zeros(*[n if fold else n * K] * 2)
        # Pieces of one parameter: the gradients of a group need not fit into memory.
        for term in make_terms(plan, engine.chosen, K, fold, n / 2):
            gradients = allocate_gradients(plan, [replace(term, offset=0, piece=0)], n, K, like)
            for rows, factors in captured:
                write_factors(gradients, [replace(term, offset=0, piece=0)], rows, factors)
            add_gram(out, gradients, gradients, fold=fold)
        kernels.append(mirror_upper(out))
    return kernels


def _restrict_plan(plan: Plan, names: Iterable[str]) -> Plan:
    """The plan for some of the parameters."""
    own = set(names)
    return replace(
        plan,
        ruled=tuple(p for p in plan.ruled if p.name in own),
        fallback=tuple(k for k in plan.fallback if k in own),
        biases={w: b for w, b in plan.biases.items() if w in own and b in own},
        forms={},
    )
