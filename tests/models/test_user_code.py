"""A user's own networks, by module or file."""

import os
import sys

import pytest
import torch
from torch import nn

from labelahead.errors import InputError, ModelError
from labelahead.models import build_model
from labelahead.models.training import get_default_training

SOURCE = """
import torch
from torch import nn
from neighbour import SCALE

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))

def full(shape, classes, width=7, *, extra=1):
    net = nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width), nn.Linear(width, classes))
    net.extra = extra
    return net

def other_names(num_classes, input_shape):
    return nn.Linear(input_shape[0], num_classes)

def anything(**options):
    net = nn.Linear(4, 3)
    net.options = options
    return net

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.drop = nn.Dropout(0.9)
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, classes)
    def forward(self, x):
        return self.linear(self.drop(self.norm(x)))

class Nested:
    def make(classes):
        return nn.Linear(4, classes)

def tokens(classes):
    return nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, classes))

def lazy(classes):
    return nn.LazyLinear(classes)

def late(classes):
    import neighbour
    return nn.Linear(4, classes * neighbour.SCALE)

made = nn.Linear(4, 3)
number = 3

def needs(shape, secret, classes): ...
def positional(secret, /): ...
def returns_text(): return "no"
def wrong_classes(): return nn.Linear(4, 5)
class Named(nn.Linear):
    def forward(self, x): return {"scores": super().forward(x)}
def named_outputs(): return Named(4, 3)
def wrong_input(): return nn.Linear(5, 3)
def raises(): raise KeyError("boom")
"""


@pytest.fixture
def code_file(tmp_path):
    (tmp_path / "neighbour.py").write_text("SCALE = 1\n")
    path = tmp_path / "own nets.py"
    path.write_text(SOURCE)
    yield path
    sys.modules.pop("neighbour", None)


def build_from_file(code_file, factory, **options):
    return build_model(f"{code_file}:{factory}", (4,), 3, **options)


@pytest.mark.parametrize(
    "factory",
    ["plain", "full", "other_names", "anything", "Net", "Nested.make", "tokens", "lazy", "late"],
)
def test_build_user_model_accepts_many_factories(code_file, factory):
    path = list(sys.path)
    model = build_from_file(code_file, factory).eval()
    x = torch.zeros(2, 4, dtype=torch.long if factory == "tokens" else torch.float)
    assert model(x).shape == (2, 3)
    assert sys.path == path


def test_width_and_options_reach_the_factory(code_file):
    model = build_from_file(code_file, "full", width=11, extra=5)
    assert model[1].out_features == 11
    assert model.extra == 5
    assert build_from_file(code_file, "anything", depth=2).options == {"depth": 2}
    # **options does not receive `classes` and `shape`
    assert build_from_file(code_file, "anything").options == {}


def test_seed_determines_weights_and_leaves_the_generator(code_file):
    state = torch.random.get_rng_state()
    one, two, other = (build_from_file(code_file, "lazy", seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.weight, other.weight)


def test_output_check_leaves_mode_and_statistics(code_file):
    model = build_from_file(code_file, "Net")
    assert all(m.training for m in model.modules())
    assert int(model.norm.num_batches_tracked) == 0


def test_file_runs_once_until_it_changes(code_file):
    classes = {type(build_from_file(code_file, "Net")) for _ in range(3)}
    assert len(classes) == 1
    code_file.write_text(SOURCE.replace("nn.Dropout(0.9)", "nn.Dropout(0.1)"))
    assert build_from_file(code_file, "Net").drop.p == 0.1


def test_edit_of_same_size_and_second_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "net.py"
    for width in (5, 6):
        path.write_text(f"from torch import nn\ndef make():\n    return nn.Linear(4, {width})\n")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert build_model(f"{path}:make", (4,), width).out_features == width
    assert [p.name for p in tmp_path.iterdir()] == ["net.py"]  # no temporary file is left


def test_module_is_imported_from_the_working_directory(code_file, monkeypatch):
    assert build_model("torch.nn:Identity", (3,), 3)(torch.zeros(1, 3)).shape == (1, 3)
    (code_file.parent / "my_networks.py").write_text(SOURCE)
    monkeypatch.chdir(code_file.parent)
    assert isinstance(build_model("my_networks:plain", (4,), 3), nn.Module)
    del sys.modules["my_networks"]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("made", "is a network, not a function"),
        ("number", "is a int; expected a function or class"),
        ("missing", "'missing', which does not exist; the module has .*plain"),
        ("needs", "needs secret"),
        ("positional", "needs secret"),
        ("raises", r"raises\(\) raised KeyError: 'boom'"),
    ],
)
def test_invalid_factory_is_refused(code_file, factory, message):
    with pytest.raises(InputError, match=message):
        build_from_file(code_file, factory)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("returns_text", "returned a str"),
        ("wrong_classes", r"returned shape \(2, 5\).*expected \(2, 3\)"),
        ("named_outputs", "returned a dict"),
        ("wrong_input", r"failed on 2 inputs of shape \(4,\) with RuntimeError"),
    ],
)
def test_invalid_network_is_refused(code_file, factory, message):
    with pytest.raises(ModelError, match=message):
        build_from_file(code_file, factory)


def test_unknown_options_are_refused(code_file):
    with pytest.raises(InputError, match="takes no 'width'; it takes nothing"):
        build_from_file(code_file, "plain", width=3)
    with pytest.raises(InputError, match="takes no 'exta'; it takes classes, extra, shape, width"):
        build_from_file(code_file, "full", exta=3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_to_be_found:make", "no module 'nowhere_to_be_found'"),
        ("torch.nowhere:make", "no module 'torch.nowhere'"),
        ("nowhere/nets.py:make", "no file 'nowhere/nets.py'"),
        (":make", "incomplete"),
        ("torch:", "incomplete"),
        ("torch.nn:Linear", "needs in_features, out_features"),
    ],
)
def test_invalid_name_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        build_model(name, (4,), 3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import not_installed_anywhere", "ModuleNotFoundError: No module named 'not_installed"),
        ("def broken(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_import_error_includes_its_cause(tmp_path, source, message):
    path = tmp_path / "broken.py"
    path.write_text(source)
    for _ in range(2):  # a failed import leaves no module
        with pytest.raises(InputError, match=message) as caught:
            build_model(f"{path}:make", (4,), 3)
        assert "\n" not in str(caught.value)


def test_user_models_have_default_training():
    assert get_default_training("some.module:factory").steps > 0
