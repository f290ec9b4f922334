"""Terms of the kernel: which form each has, and which are computed together."""

import pytest

import labelahead as la
from labelahead.ntk import terms
from labelahead.ntk.engine import open_engine
from labelahead.ntk.limits import BufferSizes, use_buffer_sizes
from tests.ntk.test_kernels import KINDS, TOLERANCE
from tests.support import architectures
from tests.support.reference_tangent import jacobian, kernels, relative

pytestmark = pytest.mark.usefixtures("float64")


def test_group_terms_fit_memory_and_hold_each_term_once():
    model, x = architectures.make("mlp")
    chosen = dict(model.named_parameters())
    with open_engine(model, chosen, x) as engine:
        every = terms.make_terms(engine.plan, chosen, 1, True, 1.0)
        sizes = [terms.count_bytes_per_sample(engine.plan, [t], 1, 8) for t in every]
        for room in (max(sizes), max(sizes) + 1, 2 * max(sizes), sum(sizes)):
            groups = terms.group_terms(engine.plan, every, 1, 8, room)
            assert [t.name for g in groups for t in g] == [t.name for t in every]
            assert all(terms.count_bytes_per_sample(engine.plan, g, 1, 8) <= room for g in groups)
        assert len(groups) == 1
        assert terms.group_terms(engine.plan, every, 1, 8, max(sizes) - 1) == []


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_mixed_forms_equal_jacobian_products(name, monkeypatch):
    """Every other layer in pairs, the others multiplied out: alone in a piece, or beside others."""
    choose, turns = terms._are_pairs_cheaper, []

    def by_turns(f, *sizes):
        turns.append(choose(f, *sizes[:-1], 0.0) and len(turns) % 2 == 1)
        return turns[-1]

    monkeypatch.setattr(terms, "_are_pairs_cheaper", by_turns)
    for apart in (True, False):
        monkeypatch.setattr(terms, "_needs_own_piece", lambda f, *_, apart=apart: apart)
        model, x = architectures.make(name)
        J = jacobian(model, x)
        for chunk in (None, 2):
            for kind in ("pseudo", "full"):
                found = la.kernel(model, x, kind=kind, chunk=chunk)
                assert relative(found, kernels(J, J)[kind]) < TOLERANCE, (kind, chunk)


@pytest.mark.parametrize("form", ["pairs", "dense"])
@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_pairs_and_dense_forms_agree(name, form, monkeypatch):
    """Sizes choose between them; here each is forced, wherever it applies."""
    choose = terms._are_pairs_cheaper

    def forced(f, *sizes):
        applies = choose(f, *sizes[:-1], 0.0)  # without partners the first form always applies
        return applies and form == "pairs"

    monkeypatch.setattr(terms, "_are_pairs_cheaper", forced)
    small = BufferSizes(tile_positions=(4, 16), patch_entries=64)  # many tiles and buffers
    model, x = architectures.make(name)
    J = jacobian(model, x)
    for kind in KINDS:
        with use_buffer_sizes(small):
            found = la.kernel(model, x, kind=kind)
        assert relative(found, kernels(J, J)[kind]) < TOLERANCE, kind
