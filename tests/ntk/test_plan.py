"""The plan of a kernel, and when it is made anew."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import labelahead as la
from labelahead.errors import ModelError, NumericalError
from labelahead.ntk import plan
from tests.support.reference_tangent import jacobian, kernels, relative


class Switched(nn.Module):
    """Goes by attributes, which a plan that is used again must not miss."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)
        self.mixing, self.noise, self.second, self.scale = 0.0, 0.0, False, 1.0

    def forward(self, x):
        h = torch.tanh((self.b if self.second else self.a)(x))
        h = h + self.mixing * h.mean(0) + self.noise * torch.randn(6, dtype=h.dtype)
        return self.head(h * self.scale)


def test_plan_is_reused_until_network_changes():
    torch.manual_seed(0)
    model, x = Switched().double(), torch.randn(6, 4, dtype=torch.float64)

    def right(samples=x):
        J = jacobian(copy.deepcopy(model), samples)
        return relative(la.kernel(model, samples), kernels(J, J)["pseudo"]) < 1e-10

    assert right()
    first = plan._plan_cache[model].plan
    assert right()
    assert plan._plan_cache[model].plan is first
    assert right(torch.randn(7, 4, dtype=torch.float64))
    assert plan._plan_cache[model].plan is first
    with torch.no_grad():
        model.a.weight.mul_(2)
    assert right()
    assert plan._plan_cache[model].plan is not first
    for change in ({"second": True}, {"scale": 3.0}, {"second": False}):
        vars(model).update(change)
        assert right()
    model.a.weight.data.mul_(2)  # leaves no trace in the version
    assert right()
    model.head = nn.Linear(6, 3).double()
    assert right()
    model.mixing = 0.5
    with pytest.raises(ModelError, match="other samples"):
        la.kernel(model, x)
    model.mixing, model.noise = 0.0, 0.5
    with pytest.raises(ModelError, match="random"):
        la.kernel(model, x)


def test_mixing_is_detected_with_cached_plan():
    torch.manual_seed(0)
    model, x = Switched().double(), torch.randn(6, 4, dtype=torch.float64)
    la.kernel(model, x)
    model.mixing = 0.5
    for chunk in (None, 1):
        with pytest.raises(ModelError, match="other samples"):
            la.kernel(model, torch.randn(6, 4, dtype=torch.float64), chunk=chunk)


class Branching(nn.Module):
    """A network that vmap cannot follow where it looks at its data, with a parameter that no rule
    knows.
    """

    def __init__(self, looks):
        super().__init__()
        self.looks, self.a, self.power = looks, nn.Linear(4, 3), nn.Parameter(torch.rand(3) + 1)

    def forward(self, x):
        h = self.a(x).abs() ** self.power
        return -h if self.looks and float(h.detach().sum()) < 0 else h


@pytest.mark.parametrize(("looks", "way"), [(False, "vmap"), (True, "loop")])
def test_log_reports_methods(looks, way, caplog):
    torch.manual_seed(0)
    model, x = Branching(looks).double(), torch.randn(5, 4, dtype=torch.float64)
    with caplog.at_level("INFO", logger="labelahead"):
        la.kernel(model, x)
        la.kernel(model, x)
    (said,) = [
        r.getMessage() for r in caplog.records if "gradients of the parameters" in r.getMessage()
    ]
    assert "of Branching" in said
    assert "2 by rules" in said
    assert f"1 without a rule, by {way}" in said.replace("a loop", "loop")
    assert "power (Branching: PowBackward" in said


@pytest.mark.usefixtures("float64")
def test_log_has_one_line_per_network_whatever_is_asked_of_it(caplog):
    torch.manual_seed(0)
    model, x = Branching(False), torch.randn(5, 4)
    model.a.weight.register_hook(lambda g: g)
    with caplog.at_level("INFO", logger="labelahead"):
        for _ in range(2):
            for names in (None, ["a"]):
                la.kernel(model, x, params=names)
                la.kernel(model, torch.randn(3, 4), params=names)
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 2  # one for each set of parameters
    assert all("ignored: a.weight" in line for line in said)
    assert all(r.levelname == "INFO" for r in caplog.records)


class ReadOff(nn.Module):
    """One layer of attention over tokens.

    What is read off at the end is up to `weights`, from the samples.
    """

    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
        self.up, self.down, self.norm, self.head = (
            nn.Linear(4, 9),
            nn.Linear(9, 4),
            nn.LayerNorm(4),
            nn.Linear(4, 3),
        )

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT
        h = x + scores.softmax(-1) @ self.v(x)
        h = h + self.down(torch.tanh(self.up(self.norm(h))))
        return self.head((h * self.weights(x)[..., None]).sum(1))


def positive_tokens(x):
    return (x[..., 0] > 0).to(x)


def samples(positive):
    """Eight of six tokens each; the first entry of so many tokens is positive."""
    x = torch.randn(8, 6, 4, dtype=torch.float64)
    x[..., 0] = -x[..., 0].abs()
    for i, count in enumerate(positive):
        x[i, torch.randperm(6)[:count], 0] *= -1
    return x


def test_single_position_plan_is_replaced_when_positions_spread():
    torch.manual_seed(0)
    model = ReadOff(positive_tokens).double()
    la.kernel(model, samples([1] * 8))
    assert plan._plan_cache[model].plan.single_position_sites
    la.kernel(model, samples([1, 1, 1, 1, 1, 1, 1, 4]))
    now = plan._plan_cache[model].plan
    assert not now.single_position_sites
    assert not now.fallback  # still by rules


class Hidden(torch.autograd.Function):
    """Uses a layer that it was not given, and trains it in its backward."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.save_for_backward(x)
        ctx.layer = layer
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            torch.autograd.backward(ctx.layer(x), g)
        return x.grad, None


class Nasty(nn.Module):
    """Ways to keep a parameter out of sight."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        if how == "tied":
            self.c.weight = nn.Parameter(self.b.weight.detach()[:3].clone())

    def forward(self, x):
        h = torch.tanh(self.a(x))
        if self.how == "hidden":
            return self.c(Hidden.apply(h, self.b))
        if self.how == "hidden twice":
            return self.c(Hidden.apply(torch.tanh(Hidden.apply(h, self.b)), self.b))
        if self.how == "nested":
            inner = lambda t: torch.tanh(checkpoint(self.b, t, use_reentrant=True))  # noqa: E731
            return self.c(checkpoint(inner, h, use_reentrant=True))
        if self.how == "beside":  # once in sight and once not
            return self.c(self.b(h) + checkpoint(self.b, h, use_reentrant=True))
        if self.how == "views":
            w = self.b.weight
            return (
                nn.functional.linear(h, w[:3])
                + nn.functional.linear(h, w.flip(0)[:3])
                + (h @ w.T)[:, 2:]
            )
        return nn.functional.linear(self.b(h), self.b.weight[:3]) + self.c(h)


@pytest.mark.parametrize("how", ["hidden", "hidden twice", "nested", "beside", "views", "tied"])
@pytest.mark.filterwarnings("ignore")
def test_parameters_outside_graph_are_included(how):
    torch.manual_seed(0)
    model, x = Nasty(how).double(), torch.randn(6, 4, dtype=torch.float64)
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        (model(x[i : i + 1]).sum() / 3**0.5).backward()
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
                    for p in model.parameters()
                ]
            )
        )
    J = torch.stack(rows)
    for _ in range(2):
        assert relative(la.kernel(model, x), J @ J.T) < 1e-10


class Gated(nn.Module):
    """Weights decide whether samples are mixed, whether noise is added, and which tokens count."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        for name in ("mixing", "noise", "later"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self, x):
        h = torch.tanh(self.a(x))  # (n, tokens, 6)
        h = h + self.mixing * h.mean(0) + self.noise * torch.randn(6)
        return self.head(h[:, 0] + self.later * h.sum(1))


@pytest.mark.usefixtures("float64")
def test_changed_checkpoint_keeps_the_plan_without_a_probe():
    torch.manual_seed(0)
    model, x, graphs = Gated(), torch.randn(9, 5, 4), []
    for seed in range(4):
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn_like(p))
        for given in (x, torch.randn(12, 5, 4)):
            J = jacobian(model, given)
            for kind in ("pseudo", "full"):
                got = la.kernel(model, given, kind=kind, verify=False)
                assert relative(got, kernels(J, J)[kind]) < 1e-10
        graphs.append(plan._plan_cache[model].plan.graph)
    assert all(graph is graphs[0] for graph in graphs)  # of the first probe


@pytest.mark.usefixtures("float64")
def test_changed_checkpoint_that_needs_another_plan_is_probed_again():
    torch.manual_seed(0)
    model, x = Gated(), torch.randn(9, 5, 4)
    la.kernel(model, x)
    model.later.fill_(1.0)  # gradients at all tokens, not at one
    J = jacobian(model, x)
    assert relative(la.kernel(model, x, verify=False), kernels(J, J)["pseudo"]) < 1e-10
    for name, match in (("mixing", "other samples"), ("noise", "random")):
        other = Gated()
        la.kernel(other, x)
        getattr(other, name).fill_(0.5)
        with pytest.raises(ModelError, match=match):
            la.kernel(other, x)
    with torch.no_grad():
        model.head.weight.fill_(torch.nan)
    with pytest.raises(NumericalError, match=r"head\.weight"):
        la.kernel(model, x)


class Dropping(nn.Module):
    """Gives nothing to positive samples beyond the sixth, by a mask that no gradient shows."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        positive = (x[:, 0] > 0).long()
        kept = (positive.cumsum(0) <= 6) | (positive == 0)
        return self.head(torch.tanh(self.a(x)) * kept[:, None])


@pytest.mark.usefixtures("float64")
def test_repeated_kernel_runs_one_forward():
    torch.manual_seed(0)
    model, x = Dropping(), torch.randn(9, 4)
    calls, counts = [0], []
    model.register_forward_pre_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    for given in (x, x, x.clone(), x + torch.arange(9.0)[:, None] / 9):
        before = calls[0]
        la.kernel(model, given, verify=False)
        counts.append(calls[0] - before)
    assert counts[1:] == [1, 1, 2]  # other samples are checked against a small batch
    assert counts[0] > 2


@pytest.mark.usefixtures("float64")
def test_mixing_of_other_samples_behind_the_same_first_one_is_detected():
    torch.manual_seed(0)
    model, x = Dropping(), -torch.rand(12, 4)
    la.kernel(model, x)
    la.kernel(model, x)
    x[1:] = x[1:].abs()
    with pytest.raises(ModelError, match="other samples"):
        la.kernel(model, x)
