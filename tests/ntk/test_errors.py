"""Invalid input and networks raise clear errors and leave the network unchanged."""

import pytest
import torch
from torch import nn

import labelahead as la
from labelahead.errors import (
    DeviceError,
    InputError,
    LabelaheadError,
    ModelError,
    NumericalError,
    VerificationError,
)
from tests.support import architectures
from tests.support.reference_tangent import kernels, one_by_one, relative


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).eval()


X = torch.linspace(-1, 1, 24).view(6, 4)


def expect(error, match, model, x, **options):
    with pytest.raises(error, match=match) as caught:
        la.kernel(model, x, **options)
    assert isinstance(caught.value, LabelaheadError)


def test_inputs(net):
    expect(InputError, "empty", net, X[:0])
    expect(InputError, "empty", net, X, x2=X[:0])
    expect(
        InputError, "NaN or infinity in 1 of 6", net, X.index_fill(0, torch.tensor([2]), torch.nan)
    )
    expect(InputError, "NaN or infinity", net, X / 0)
    expect(InputError, r"x2 holds NaN", net, X, x2=X * torch.nan)
    expect(InputError, r"samples of shape \(3,\)", net, X[:, :3])
    expect(InputError, "integer", net, torch.ones(6, 4, dtype=torch.long))
    expect(InputError, "one dtype", net, X.double())
    expect(InputError, "inputs are a int", net, 3)
    expect(InputError, "leading dimension", net, torch.tensor(1.0))
    expect(InputError, "leading dimension", architectures.TwoInputs(), (X[:, :4], X[:3, :3]))
    expect(DeviceError, "on meta but the network is on cpu", net, X.to("meta"))


def test_options(net):
    expect(InputError, "pseudo, full, single, trace", net, X, kind="sum")
    expect(InputError, "chunk", net, X, chunk=0)
    expect(InputError, "did you mean '0.weight'", net, X, params=["0.weigth"])
    expect(InputError, "selects no parameter", net, X, params=lambda name, p: False)


def test_networks(net):
    expect(ModelError, "torch.nn.Module", lambda x: x, X)
    expect(ModelError, "requires a gradient", net.requires_grad_(False), X)
    expect(
        ModelError,
        r"returned shape \(2, 2, 2\) for n=2",
        nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2))),
        X,
    )
    with torch.no_grad():
        net[0].weight[0, 0] = torch.nan
    expect(NumericalError, "'0.weight' holds NaN", net.requires_grad_(True), X)


def test_parameters_changed_to_nan_raise(net):
    """A network asked again is not looked through, unless its outputs are others."""
    la.kernel(net, X)
    net[0].weight.data[0, 0] = torch.nan  # past the version counter
    expect(NumericalError, "'0.weight' holds NaN", net, X)


def test_modules_that_mix_samples_raise():
    expect(
        ModelError,
        r"train mode.*model.eval\(\)",
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        X,
    )
    expect(
        ModelError,
        "running statistics",
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval(),
        X,
    )
    expect(
        ModelError, r"drops out.*model.eval\(\)", nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1)), X
    )
    transformer = architectures.Transformer(tokens=3).train()
    expect(ModelError, r"model.eval\(\)", transformer, torch.randn(4, 3, 6))


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class Mixing(nn.Linear):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class Detached(nn.Linear):
    def forward(self, x):
        return super().forward(x).detach()


class Named(nn.Linear):
    def forward(self, x):
        return {"scores": super().forward(x)}


def test_forwards_that_mix_samples_or_are_random_raise():
    expect(ModelError, "different outputs", Noisy(4, 3), X)
    expect(ModelError, "other samples of its batch", Mixing(4, 3), X)
    expect(ModelError, "no sample depend on the chosen", Detached(4, 3), X)
    expect(ModelError, "returned a dict", Named(4, 3), X)
    big = nn.Linear(4, 3)
    with torch.no_grad():
        big.weight.fill_(3e38)
    expect(NumericalError, "outputs hold NaN or infinity", big, X)


def test_checkpointed_parameters_are_included():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.inside, self.head, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 2), reentrant

        def forward(self, x):
            run = nn.Sequential(self.inside, nn.Tanh())
            return self.head(checkpoint(run, x, use_reentrant=self.reentrant))

    torch.manual_seed(0)
    plain = Checkpointed(False)
    want = la.kernel(nn.Sequential(plain.inside, nn.Tanh(), plain.head), X)
    assert torch.allclose(la.kernel(plain, X), want, rtol=1e-4)


def test_verify_detects_wrong_rule(net, monkeypatch):
    from labelahead.ntk import rules

    real = rules.RULES["AddmmBackward0"]

    def wrong(node, site, shape):
        reading = real(node, site, shape)
        return rules.Outer(reading.a * 1.2, reading.transposed) if site.argument == 2 else reading

    monkeypatch.setitem(rules.RULES, "AddmmBackward0", wrong)
    expect(VerificationError, "differs from autograd's", net, X, verify=True)
    la.kernel(net, X, verify=False)  # it is the check that notices


@pytest.mark.parametrize("name", sorted(architectures.ARCHITECTURES))
def test_kernel_leaves_network_and_input_unchanged(name):
    model, x = architectures.make(name)
    parameters = dict(model.named_parameters())
    first = next(iter(parameters.values()))
    first.grad = torch.ones_like(first)
    modes = [m.training for m in model.modules()]
    flags = {k: p.requires_grad for k, p in parameters.items()}
    hooks = [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    given = [t.clone() for t in (x if isinstance(x, tuple) else (x,))]
    for kind in ("pseudo", "full"):
        la.kernel(model, x, kind=kind)
    la.features(model, x, sketch=8)
    assert [m.training for m in model.modules()] == modes
    assert {k: p.requires_grad for k, p in model.named_parameters()} == flags
    assert [len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()] == hooks
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(
        torch.equal(t, g) for t, g in zip(x if isinstance(x, tuple) else (x,), given, strict=True)
    )
    assert torch.equal(first.grad, torch.ones_like(first))
    assert all(p.grad is None for p in parameters.values() if p is not first)


def test_in_place_first_layer_does_not_overwrite_input():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = X.clone()
    K = la.kernel(model, x)
    assert torch.equal(x, X)
    assert torch.allclose(K, la.kernel(nn.Sequential(nn.ReLU(), model[1]), X))


def test_network_is_unchanged_after_error(net):
    net.requires_grad_(True)
    net[0].bias.requires_grad_(False)
    with pytest.raises(InputError):
        la.kernel(net, X[:, :3])
    assert [p.requires_grad for p in net.parameters()] == [True, False, True, True]
    assert torch.backends.mkldnn.enabled
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.is_grad_enabled()


def test_kernel_works_under_no_grad_and_inference_mode(net):
    want = la.kernel(net, X)
    with torch.no_grad():
        assert torch.equal(la.kernel(net, X), want)
    with torch.inference_mode():
        assert torch.equal(la.kernel(net, X.clone()), want)


class BatchMax(nn.Linear):
    def forward(self, x):
        return super().forward(x / x.abs().amax())


def test_mixing_in_full_batches_raises():
    x = X.clone()
    x[5] = 100.0
    expect(ModelError, "other samples of its batch", BatchMax(4, 3), x)


def test_overwritten_input_is_detected_by_version():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2))
    x = X.clone()
    x[:2] = x[:2].abs()  # what the probe sees does not change
    before = x.clone()
    la.kernel(model, x)
    assert torch.equal(x, before)


def test_invalid_arguments_raise(net):
    net.requires_grad_(True)
    expect(InputError, "memory", net, X, memory="2GB")
    expect(InputError, "memory", net, X, memory=0)
    expect(InputError, "chunk", net, X, chunk=2.5)
    expect(InputError, "named_parameters", net, X, params=list(net[0].parameters()))
    expect(ModelError, "no shape yet", nn.Sequential(nn.LazyLinear(3)), X)
    with pytest.raises(InputError, match="seed"):
        la.features(net, X, sketch=4, seed=-1)
    with pytest.raises(InputError, match="expected a tensor"):
        la.ntk.squared_norms(net, X, [[1.0]])
    with pytest.raises(InputError, match="finite numbers"):
        la.ntk.inner_products(net, X, torch.ones(6, 3), {"0.weight": [1.0]})
    with pytest.raises(InputError, match="chunk"):
        la.ntk.squared_norms(net, X, torch.ones(6, 3), chunk=0)


def test_names_of_compiled_module_are_accepted(net):
    net.requires_grad_(True)
    want = la.kernel(net, X, params=["0.bias"])
    assert torch.equal(la.kernel(torch.compile(net), X, params=["_orig_mod.0.bias"]), want)
    la.ntk.inner_products(torch.compile(net), X, torch.ones(6, 3), {"0.bias": torch.ones(5)})


class LimitedExperts(nn.Module):
    """Each expert takes the first samples that are sent to it, and drops the others."""

    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Linear(6, 2), nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(2))

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        hidden = x.new_zeros(len(x), 4)
        for i, expert in enumerate(self.experts):
            taken = (weights.argmax(1) == i).nonzero()[:4, 0]
            hidden[taken] = torch.tanh(expert(x[taken])) * weights[taken, i : i + 1]
        return self.head(hidden)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("n", [5, 7, 9, 12, 40])
def test_experts_with_limited_capacity_are_exact_or_raise(n):
    raised = 0
    for seed in range(8):
        torch.manual_seed(seed)
        model, x = LimitedExperts().eval(), torch.randn(n, 6)
        alone = torch.cat([model(x[i : i + 1]) for i in range(n)])
        if torch.allclose(model(x), alone):
            J = one_by_one(model, x)
            assert relative(la.kernel(model, x), kernels(J, J)["pseudo"]) < 1e-10
            continue
        raised += 1
        with pytest.raises(ModelError, match="changes with the other samples"):
            la.kernel(model, x)
    assert raised or n == 5


MIXING = {
    "mean": lambda x: x - x.mean(0),
    "largest": lambda x: x / x.abs().max(),
    "norm": lambda x: x / x.norm(dim=0),
    "attention": lambda x: x + (x @ x.T).softmax(1) @ x,
}


@pytest.mark.parametrize("how", MIXING)
def test_mixing_raises_for_any_number_of_samples(how):
    class Mixing(nn.Linear):
        def forward(self, x):
            return super().forward(MIXING[how](x))

    for n in (1, 2, 3, 6, 9):
        torch.manual_seed(n)
        with pytest.raises(ModelError, match="changes with the other samples"):
            la.kernel(Mixing(6, 3), torch.rand(n, 6))


class Experts(nn.Module):
    """Each sample goes to one of four experts; a batch calls those that it needs."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        out = x.new_zeros(len(x), 3)
        for i, expert in enumerate(self.experts):
            chosen = (weights.argmax(1) == i).nonzero()[:, 0]
            if len(chosen):
                found = torch.tanh(expert(x[chosen])) * weights[chosen, i : i + 1]
                out = out.index_add(0, chosen, found)
        return out


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("options", [{}, {"rules": False}, {"verify": True}])
def test_parameters_of_an_expert_that_the_probe_does_not_meet(options):
    missed = 0
    for seed in range(3):
        torch.manual_seed(seed)
        model, x = Experts(), torch.randn(12, 6)
        used = [bool((model.gate(x).argmax(1) == i).any()) for i in range(4)]
        for i, expert in enumerate(model.experts):
            if not used[i]:
                with pytest.raises(ModelError, match="send no sample"):
                    la.kernel(model, x, params=[f"experts.{i}"], **options)
                continue
            missed += int(not (model.gate(x[:3]).argmax(1) == i).any())
            model.requires_grad_(False)
            expert.requires_grad_(True)
            J = torch.zeros(12, 3, 21)
            at = (model.gate(x).argmax(1) == i).nonzero()[:, 0]
            J[at] = one_by_one(model, x[at])
            got = la.kernel(model, x, params=[f"experts.{i}"], kind="trace", **options)
            assert relative(got, kernels(J, J)["trace"]) < 1e-10
    assert missed


class Adapted(nn.Module):
    """Takes a step of gradient descent for each sample before it answers (MAML)."""

    def __init__(self, skips):
        super().__init__()
        self.a, self.b, self.skips = nn.Linear(6, 5), nn.Linear(5, 2), skips

    def forward(self, x):
        parameters = list(self.parameters())
        outputs = []
        with torch.enable_grad():
            for item in x:
                loss = self.b(torch.tanh(self.a(item))).square().sum()
                moved = [p for p in parameters if p.requires_grad or not self.skips]
                steps = dict(
                    zip(moved, torch.autograd.grad(loss, moved, create_graph=True), strict=True)
                )
                w, v, u, c = (p - 0.1 * steps[p] if p in steps else p for p in parameters)
                outputs.append(torch.tanh(item @ w.T + v) @ u.T + c)
        return torch.stack(outputs)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("options", [{}, {"rules": False}, {"verify": True}])
def test_network_that_differentiates_by_parameters_that_were_not_chosen(options, skips):
    for seed in range(3):
        torch.manual_seed(seed)
        model, x = Adapted(skips), torch.randn(5, 6)
        J = one_by_one(model, x)[:, :, 35:]
        got = la.kernel(model, x, params=["b"], kind="trace", **options)
        assert relative(got, kernels(J, J)["trace"]) < 1e-10
        assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_gradient_names_the_sample_and_the_cause(dtype):
    class Length(nn.Linear):
        def forward(self, x):
            return super().forward(x).square().sum(1, keepdim=True).sqrt()

    model, x = Length(6, 3, bias=False).to(dtype), torch.randn(9, 6, dtype=dtype)
    x[4] = 0
    with pytest.raises(NumericalError, match=r"NaN in row 4 and 0 more of 9.*sqrt"):
        la.kernel(model, x)
    with pytest.raises(NumericalError, match="NaN in column 4"):
        la.kernel(model, x[:3], x)
    with pytest.raises(NumericalError, match="overflows") as caught:
        la.kernel(nn.Linear(6, 3).to(dtype), x * torch.finfo(dtype).max ** 0.7)
    assert ("model.double()" in str(caught.value)) == (dtype == torch.float32)


def test_networks_without_real_parameters_are_explained():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

        def forward(self, x):
            return (x.to(self.w.dtype) @ self.w).abs()

    expect(ModelError, "view_as_complex", Complex(), X)
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval()
    expect(ModelError, "jit.freeze", torch.jit.freeze(torch.jit.script(plain)), X)
    rows = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=torch.jagged)
    expect(InputError, "pad it", plain, rows)


class SharedMaximum(nn.Module):
    """Subtracts the largest logit of the batch before the exponential."""

    def __init__(self, scale, logarithm):
        super().__init__()
        self.a, self.b, self.scale, self.logarithm = (
            nn.Linear(4, 8),
            nn.Linear(8, 3),
            scale,
            logarithm,
        )

    def forward(self, x):
        z = self.b(torch.tanh(self.a(x))) * self.scale
        e = torch.exp(z - z.max())
        if self.logarithm:
            return z - z.max() - e.sum(1, keepdim=True).log()
        return e / e.sum(1, keepdim=True)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("scale", [1, 50])
def test_softmax_with_the_maximum_of_the_batch(scale, logarithm):
    for seed in range(8):
        torch.manual_seed(seed)
        model, x = SharedMaximum(scale, logarithm), torch.randn(7, 4)
        J = one_by_one(model, x)
        for options in ({}, {"rules": False}, {"verify": True}):
            got = la.kernel(model, x, kind="full", **options)
            assert relative(got, kernels(J, J)["full"]) < 1e-10


@pytest.mark.usefixtures("float64")
def test_hook_that_zeroes_large_gradients():
    class Clipped(SharedMaximum):
        def forward(self, x):
            h = torch.tanh(self.a(x))
            if h.requires_grad:
                h.register_hook(lambda g: torch.where(g.abs() > 10, torch.zeros_like(g), g))
            return self.b(h) * self.scale

    for seed in range(5):
        torch.manual_seed(seed)
        model, x = Clipped(30, False), torch.randn(9, 4)
        J = one_by_one(model, x)
        for options in ({}, {"rules": False}, {"verify": True}):
            got = la.kernel(model, x, kind="full", **options)
            assert relative(got, kernels(J, J)["full"]) < 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single_precision(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    )
    model, x = model.eval().to(dtype), torch.randn(40, 3, 8, 8).to(dtype)
    J = one_by_one(model, x).double()
    K = la.kernel(model, x, kind="single")
    assert K.dtype == torch.float32
    assert relative(K.double(), kernels(J, J)["single"]) < 1e-4
    eigenvalues = torch.linalg.eigvalsh(K.double())
    assert eigenvalues[0] > -1e-6 * eigenvalues[-1]
