"""The tangent kernel of any PyTorch network: full, pseudo, single-logit and trace."""

from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor, nn

from labelahead.batching import Inputs, count_samples, take_samples
from labelahead.errors import InputError, ModelError
from labelahead.ntk.engine import (
    Engine,
    build_directions,
    check_cotangents,
    check_result,
    run_with_engine,
    should_verify,
)
from labelahead.ntk.gram import Gradients, add_gram, mirror_upper
from labelahead.ntk.limits import buffer_scale, buffer_sizes
from labelahead.ntk.premises import ParamFilter, check_inputs, move_samples
from labelahead.ntk.terms import (
    Term,
    allocate_gradients,
    count_bytes_per_sample,
    group_by_piece,
    group_terms,
    make_terms,
    write_factors,
)

__all__ = ["gradient_gram", "kernel"]

CONSTANT_SUM_MESSAGE = (
    "the outputs of every sample have a constant sum, so their pseudo-kernel is rounding noise: "
    "let the network return its logits, without the softmax, or use kind='trace', 'full' or "
    "'single'"
)


def kernel(
    model: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    kind: str = "pseudo",
    params: ParamFilter = None,
    chunk: int | None = None,
    memory: int | None = None,
    verify: bool | None = None,
    rules: bool = True,
) -> Tensor:
    """Compute the exact tangent kernel of `model` between the samples of `x` and `x2`.

    The network must be in eval mode and treat samples independently; it is not modified.

    Args:
        model: The network, with outputs (n, C).
        x: n samples.
        x2: m samples; default: `x`.
        kind: "pseudo" (n, m), of the scaled sum of outputs (PN-2); "single" (n, m), of the first
            output; "trace" (n, m), mean over the outputs of each one's kernel; "full" (n·C, m·C),
            all pairs of outputs, entry (i·C + c, j·C + d) (PN-1).
        params: Parameters to differentiate by: names, module prefixes, wildcards, or a predicate on
            (name, parameter). Default: those that require a gradient.
        chunk: Samples per forward and backward pass; default from the size of the activations.
        memory: Target in bytes for the working memory besides the result; what does not fit is
            recomputed. Buffers of a pass come on top: a residual network took twice as much.
            Default: half of what is free on a GPU, 2 GiB elsewhere.
        verify: Compare gradients with autograd's; default from LABELAHEAD_VERIFY.
        rules: False differentiates everything by torch.func: slow, for comparison.

    Returns:
        (n, m), or (n·C, m·C) for the full kernel.

    Raises:
        InputError: If the inputs or options do not fit the network.
        ModelError: If the network is random, mixes samples, or cannot be differentiated.
        NumericalError: If parameters, outputs or the result are not finite.
        VerificationError: If `verify` finds a wrong gradient.

    >>> K = la.kernel(model, x)
    >>> K.shape, bool(torch.equal(K, K.T))
    (torch.Size([6, 6]), True)
    >>> la.kernel(model, x, x[:2], kind="full").shape
    torch.Size([18, 6])
    >>> la.kernel(model, x, params=["2"]).shape  # by the last layer's weights alone
    torch.Size([6, 6])
    """
    if memory is not None and (not isinstance(memory, int) or memory < 1):
        raise InputError(f"memory is {memory!r}, expected a whole number of bytes, such as 2 << 30")
    check = should_verify(verify)
    x = move_samples(model, x)
    x2 = None if x2 is None else move_samples(model, x2)

    def run(engine: Engine) -> Tensor:
        if x2 is not None:
            check_inputs(x2, engine.chosen, "x2")
        # Outputs that sum to one come from a softmax, or from targets that are fitted exactly.
        if kind == "pseudo" and engine.plan.probabilities:
            _check_sum_varies(engine, x)
        out = check_result(_KernelComputation(engine, kind, chunk, memory, check).compute(x, x2))
        if kind == "pseudo" and engine.gradients_vanish:
            _check_sum_varies(engine, x)
        return out

    return run_with_engine(model, x, params, run, rules=rules)


def gradient_gram(
    model: nn.Module,
    x: Inputs,
    cotangents: Tensor,
    *,
    params: ParamFilter = None,
    memory: int | None = None,
    verify: bool | None = None,
) -> Tensor:
    """Compute <∇ cotangents[i]·f(x_i), ∇ cotangents[j]·f(x_j)>: (n, n); `cotangents` is (n, C).

    With cotangents = ∂loss/∂outputs these are the inner products of all per-sample loss gradients.

    >>> from labelahead.ntk import gradient_gram
    >>> first = torch.eye(3)[0].expand(6, 3)  # of the first output: kind "single"
    >>> bool(torch.allclose(gradient_gram(model, x, first), la.kernel(model, x, kind="single")))
    True
    """
    check = should_verify(verify)
    x = move_samples(model, x)

    def run(engine: Engine) -> Tensor:
        v = check_cotangents(cotangents, x, engine)
        return check_result(
            _KernelComputation(engine, "single", None, memory, check, v[:, None]).compute(x, None)
        )

    return run_with_engine(model, x, params, run)


def _check_sum_varies(engine: Engine, x: Inputs) -> None:
    """Raise if the sum of the outputs does not depend on the parameters but each output does."""
    if engine.plan.outputs == 1:
        return
    first_samples = take_samples(x, slice(0, 3))
    summed, single = (
        _KernelComputation(engine, kind, None, None, False).compute(first_samples, None)
        for kind in ("pseudo", "single")
    )
    least = min(0.03, 1e3 * engine.plan.eps) ** 2
    if float(summed.diagonal().amax()) <= least * float(single.diagonal().amax()):
        raise ModelError(CONSTANT_SUM_MESSAGE)


class _KernelComputation:
    """One kernel computation: its directions, its options and the loop over blocks."""

    def __init__(
        self,
        engine: Engine,
        kind: str,
        chunk: int | None,
        memory: int | None,
        check: bool,
        cotangents: Tensor | None = None,  # (n, K, C), instead of the kind's own
    ) -> None:
        self.cotangents = cotangents
        self.engine = engine
        self.chunk = engine.limit_batch(memory, chunk)
        self.check = check
        self.memory = engine.working_memory(memory)
        self.like = engine.like
        self.directions = build_directions(kind, engine.plan.outputs, self.like)
        self.fold = kind != "full"
        self.rows = 1 if self.fold else self.directions.shape[0]  # of the kernel, a sample

    def compute(self, x: Inputs, x2: Inputs | None) -> Tensor:
        """Compute the whole kernel, in blocks if the memory requires it."""
        K, r = self.directions.shape[0], self.rows
        n = count_samples(x)
        m = n if x2 is None else count_samples(x2)
        partners = n / 2 if x2 is None else n * m / (n + m)
        plan = self.engine.plan
        piece_bytes = buffer_scale(self.like.device) * buffer_sizes().piece_bytes
        max_piece_columns = piece_bytes / (max(n, m) * K * self.like.element_size())
        terms = make_terms(plan, self.engine.chosen, K, self.fold, partners, max_piece_columns)
        each = max(1, count_bytes_per_sample(plan, terms, K, self.like.element_size()))
        out = self.like.new_zeros(n * r, m * r)
        if x2 is None and n * each <= self.memory:
            # Layer by layer, the gradients stay in the CPU cache.
            if self.engine.fits_one_batch(n, K, self.chunk):
                return mirror_upper(self._layer_by_layer(x, n, group_by_piece(terms), out))
            gradients = self._gradients(x, slice(0, n), terms, True)
            add_gram(out, gradients, gradients, fold=self.fold)
            return mirror_upper(out)
        factor_bytes = int(
            plan.bytes_per_sample * (1 + K) / 2
        )  # the factors, before they are multiplied out
        groups = group_terms(
            plan,
            terms,
            K,
            self.like.element_size(),
            self.memory // n - factor_bytes,
            max_piece_columns,
        )
        if x2 is None and groups:
            return mirror_upper(self._layer_by_layer(x, n, groups, out))
        # One large block of rows stays in memory while small blocks of columns are recomputed.
        large = max(1, int(0.75 * self.memory) // each)
        small = max(1, int(0.25 * self.memory) // each)
        for rows in _split_evenly(0, n, large):
            left = self._gradients(x, rows, terms, rows.start == 0)
            start = 0
            if x2 is None:
                add_gram(_slice_block(out, rows, rows, r), left, left, fold=self.fold)
                start = rows.stop
            for columns in _split_evenly(start, m, small):
                right = self._gradients(x if x2 is None else x2, columns, terms, False)
                add_gram(_slice_block(out, rows, columns, r), left, right, fold=self.fold)
        return mirror_upper(out) if x2 is None else out

    def _cotangents(self, rows: slice) -> Tensor:
        if self.cotangents is not None:
            return self.cotangents[rows]
        return self.directions.expand(rows.stop - rows.start, -1, -1)

    def _layer_by_layer(self, x: Inputs, n: int, groups: list[list[Term]], out: Tensor) -> Tensor:
        """Capture every sample once as factors and multiply them out a few layers at a time."""
        K = self.directions.shape[0]
        cotangents = self._cotangents(slice(0, n))
        captured = list(
            self.engine.capture_factors(x, cotangents, chunk=self.chunk, check=self.check)
        )
        for terms in groups:
            gradients = allocate_gradients(self.engine.plan, terms, n, K, self.like)
            for batch, factors in captured:
                write_factors(gradients, terms, batch, factors)
            add_gram(out, gradients, gradients, fold=self.fold)
        return out

    def _gradients(
        self, x: Inputs, rows: slice, terms: list[Term], starts_with_probe: bool
    ) -> Gradients:
        part = take_samples(x, rows)
        n, K = rows.stop - rows.start, self.directions.shape[0]
        gradients = allocate_gradients(self.engine.plan, terms, n, K, self.like)
        cotangents = self._cotangents(rows)
        for batch, factors in self.engine.capture_factors(
            part,
            cotangents,
            chunk=self.chunk,
            check=self.check,
            starts_with_probe=starts_with_probe,
        ):
            write_factors(gradients, terms, batch, factors)
        return gradients


def _slice_block(out: Tensor, rows: slice, columns: slice, r: int) -> Tensor:
    return out[rows.start * r : rows.stop * r, columns.start * r : columns.stop * r]


def _split_evenly(start: int, stop: int, size: int) -> Iterator[slice]:
    """Split a range into slices of even size, at most `size`."""
    if stop <= start:
        return
    count = -(-(stop - start) // size)
    edges = [start + round(i * (stop - start) / count) for i in range(count + 1)]
    yield from (slice(a, b) for a, b in pairwise(edges) if b > a)
