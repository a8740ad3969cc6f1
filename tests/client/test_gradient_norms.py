"""Norms and sums of one parameter's gradients are those of the gradients themselves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secureps.client import ghost_clipping
from secureps.client.ghost_clipping import Part, Products, few, norms_and_sum


@given(
    records=st.integers(1, 4),
    places=st.integers(1, 6),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    which=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=50, deadline=None)
def test_products_are_what_their_gradients_are(
    records: int, places: int, rows: int, columns: int, which: tuple[bool, bool], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def made(words: bool, more: int) -> Products:
        shape = (records, places + more)
        left = torch.randn(*shape, rows, generator=generator, dtype=torch.float64)
        if words:
            left = torch.randint(0, rows, shape, generator=generator)
        right = torch.randn(*shape, columns, generator=generator, dtype=torch.float64)
        return Products(left, right, rows)

    one, other = made(which[0], 0), made(which[1], 2)
    weights = torch.rand(records, generator=generator, dtype=torch.float64)
    for each in (one, other):
        assert torch.allclose(weights @ each.whole(), each.weighted(weights).flatten())
        assert bool((each.lengths() >= each.whole().norm(dim=1) - 1e-12).all())
    inner = (one.whole() * other.whole()).sum(dim=1)
    assert torch.allclose(one.inner(other), inner)
    assert torch.allclose(other.inner(one), inner)


@pytest.mark.parametrize("words", [False, True])
def test_no_record_gets_past_its_clip_by_places_that_cancel(
    words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inner products of float32 are rounded: what is left of them may be less than the norm."""
    generator = torch.Generator().manual_seed(1)
    records, places, width = 200, 32, 64
    half = torch.randn(records, places // 2, width, generator=generator)
    left = torch.cat([half, half], dim=1)
    if words:
        left = torch.arange(places // 2).repeat(2).expand(records, -1)
    right = torch.randn(records, places // 2, width, generator=generator)
    right = torch.cat([right, -right], dim=1)
    right[:, 0] += 1e-4 * torch.randn(records, width, generator=generator)
    products = Products(left, right, width)
    exact = Products(left if words else left.double(), right.double(), width)
    inner = products.inner(products).clamp(min=0).sqrt().double()
    true = exact.whole().norm(dim=1)
    assert float(true.max()) < 0.1
    assert bool((inner < 0.5 * true).any()), "nothing to guard against"
    monkeypatch.setattr(ghost_clipping, "WHOLE", 1e9)
    norms = ghost_clipping._ghost_norms([products])
    assert norms is not None
    assert bool((norms.sqrt().double() >= true).all())


@pytest.mark.parametrize("kind", ["products", "words", "both", "made"])
@pytest.mark.parametrize("weight", [0.0, 1e9], ids=["whole", "ghost"])
def test_gradients_in_slices_have_the_same_norms_and_sums(
    kind: str, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more of them is there at a time than may be."""
    torch.manual_seed(1)
    left = torch.randn(7, 3, 4, dtype=torch.float64)
    if kind == "words":
        left = torch.randint(0, 4, (7, 3))
    products = Products(left, torch.randn(7, 3, 5, dtype=torch.float64), 4)
    made = torch.randn(7, 4, 5, dtype=torch.float64)
    parts: list[Part] = [products] if kind in ("products", "words") else [made]
    parts = [products, made] if kind == "both" else parts
    weights = torch.rand(7, dtype=torch.float64)
    monkeypatch.setattr(ghost_clipping, "WHOLE", weight)
    squared, added, _ = norms_and_sum(parts, 10**9)
    largest = []
    own = ghost_clipping.Products.whole

    def whole(of: Products) -> Tensor:
        found = own(of)
        largest.append(found.numel())
        return found

    monkeypatch.setattr(ghost_clipping, "VALUES", 40)
    monkeypatch.setattr(ghost_clipping.Products, "whole", whole)
    again, cut, kept = norms_and_sum(parts, 139)
    assert kept == 0
    assert torch.allclose(again, squared, rtol=1e-9)
    assert torch.allclose(cut(weights).flatten(), added(weights).flatten())
    assert max(largest, default=0) <= 40


def test_words_cost_a_comparison_and_no_product() -> None:
    """512 places of a table of 50,257 words of width 768: whole, a record is 154 MB."""
    assert few(512, 50257, 768, words=True)
    assert not few(512, 50257, 768)
    assert few(1, 4, 4)
    assert not few(64, 4, 4, words=True)
