"""Attention to sums that are not formed, against sums that are formed first."""

import pytest
import torch
import torch.nn.functional as F

from layermem.ops.lent_attention import attend_by_head, attend_to_routed, exchange_pays
from layermem.ops.route import route

B, T, E = 3, 11, 6


def slots(heads, sources):
    return [(torch.randn(B, heads, T, E), torch.randn(B, heads, T, E)) for _ in range(sources)]


def masks():
    """No mask, one that hides tokens, one of each row, one that is added to scores."""
    hides = torch.arange(T).ge(4)[None, None, None]
    of_rows = torch.arange(T)[None] >= torch.tensor([0, 3, 9])[:, None]
    return {
        "none": None,
        "shared": hides,
        "of rows": of_rows[:, None, None],
        "added": torch.randn(1, 1, 1, T),
        # Rows that may read nothing, for which torch's attention gives zeros.
        "hides a row": of_rows[:, None, None] & torch.tensor([1, 1, 0]).bool()[:, None, None, None],
        "a row of -inf": torch.zeros(B, 1, 1, T).index_fill(0, torch.tensor([1]), -torch.inf),
    }


def expected(query, key, value, mask):
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=0.3, enable_gqa=True
    )


@pytest.fixture(autouse=True)
def in_float64():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("mask", masks(), ids=str)
@pytest.mark.parametrize(("query_heads", "heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize("grain", ["pair", "head", "layer"])
@pytest.mark.parametrize("sources", [1, 3])
def test_attention_to_a_sum_equals_that_to_the_sum_once_formed(
    mask, query_heads, heads, grain, sources
):
    mask, given = masks()[mask], slots(heads, sources)
    query = torch.randn(B, query_heads, 1, E)
    rows, columns = (1 if grain == "layer" else heads), (heads if grain == "pair" else 1)
    weights = torch.randn(2, rows, sources * columns).unbind()
    formed = weights
    if grain == "head":
        formed = [torch.cat([torch.diag(c) for c in w.unbind(1)], 1) for w in weights]
    with torch.no_grad():
        ours = attend_to_routed(query, given, weights, columns, mask, 0.3)
        theirs = expected(query, *route(given, *formed), mask)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", masks(), ids=str)
@pytest.mark.parametrize("query_heads", [2, 6])
def test_attention_by_heads_equals_that_to_a_copy_of_them(mask, query_heads):
    mask, (first, second) = masks()[mask], slots(3, 2)
    query = torch.randn(B, query_heads, 1, E)
    heads = [(second[0][:, 2], first[1][:, 0]), (first[0][:, 1], first[1][:, 2])]
    key, value = (torch.stack(parts, 1) for parts in zip(*heads, strict=True))
    ours = attend_by_head(query, heads, mask, 0.3)
    torch.testing.assert_close(ours, expected(query, key, value, mask), rtol=0, atol=1e-12)


def test_a_sum_is_formed_where_groups_of_queries_read_many_heads():
    # As measured: with 8 key-value heads each, 32 query heads attend faster to a sum once formed.
    assert not exchange_pays(32, 8, 8, 4)
    for query_heads, heads, columns in ((8, 8, 8), (12, 2, 2), (9, 3, 3), (32, 8, 1)):
        assert exchange_pays(query_heads, heads, columns, 4)
