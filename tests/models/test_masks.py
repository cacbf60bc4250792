"""The mask of attention: none where causality is enough, one for padding, packing and caches."""

import pytest
import torch
from attention_calls import AttentionCall, record_compiled_attention, record_eager_attention
from tiny import KINDS, SLOW, TINY, make
from transformers import DynamicCache, StaticCache

from layermem.models.inputs import check_inputs
from layermem.models.registry import lookup

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
N_LAYERS = TINY["num_hidden_layers"]
# Without a mask, torch takes a single query as one that sees every key.
CAUSAL, ONE_QUERY, MASKED = (
    AttentionCall(is_causal=True, has_mask=False),
    AttentionCall(is_causal=False, has_mask=False),
    AttentionCall(is_causal=False, has_mask=True),
)
# The mask is the decoder's own: what is compiled, slowly, is one memory and one stream.
COMPILED = pytest.mark.parametrize(
    "entry", ["lime", pytest.param("mudd", marks=SLOW)], indirect=True
)
CHECKPOINTING = {"kept": None, "non-reentrant": False, "reentrant": True}


@pytest.fixture(params=KINDS)
def entry(request):
    return lookup(request.param)


@pytest.fixture
def model(entry):
    return make(entry.causal_lm, entry.config(**TINY))


@pytest.fixture
def packed(ids):
    """Two documents in each row, and the positions that separate them."""
    return ids, torch.cat([torch.arange(5), torch.arange(6)]).expand(3, -1)


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_a_mask_is_one_of_all_tokens(model, ids, kind):
    """transformers would take the tokens that it lacks, the new ones, for padding."""
    room = {"max_cache_len": ids.shape[1]} if kind is StaticCache else {}
    cache = kind(config=model.config, **room)
    with torch.no_grad():
        model(ids[:, :8], cache=cache)
        for columns in (1, 3, 10):
            with pytest.raises(ValueError, match="3 rows and 11 tokens"):
                mask = torch.ones(3, columns, dtype=torch.long)
                model(ids[:, 8:], cache=cache, attention_mask=mask)
        got = model(ids[:, 8:], cache=cache, attention_mask=torch.ones_like(ids)).logits
        torch.testing.assert_close(got, model(ids).logits[:, 8:], **CLOSE)
        for shape in ((3, 10), (1, 11), (11, 11)):
            with pytest.raises(ValueError, match="3 rows and 11 tokens"):
                model(ids, attention_mask=torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("entry", ["lime"], indirect=True)
def test_masks_and_positions_of_other_shapes_or_kinds_are_refused(model, ids):
    """By one row for all, each token would see those after it; numbers to be added hide nothing."""
    zeros = torch.zeros(3, 1, 1, 11)
    wrong = [{"attention_mask": mask} for mask in (zeros, zeros == 0, zeros.squeeze() - 1e9)]
    wrong += [{"position_ids": torch.arange(3)[:, None]}, {"position_ids": torch.arange(5)[None]}]
    for given in wrong:
        with pytest.raises(ValueError, match=next(iter(given))):
            model(ids, **given)


def test_packed_documents_beside_a_mask_of_tokens_are_refused(model, packed):
    ids, positions = packed
    mask = torch.ones_like(ids)
    with pytest.raises(ValueError, match="begin anew within a row"):
        model(ids, position_ids=positions, attention_mask=mask)
    # Padding on either side, with the positions that generate gives.
    for padding in (slice(4), slice(-4, None)):
        padded = mask.clone()
        padded[0, padding] = 0
        model(ids, position_ids=(padded.cumsum(-1) - 1).clamp(min=0), attention_mask=padded)
    # A mask may be longer than what there is, and positions may stay the same.
    longer = torch.cat([padded, torch.ones_like(ids)], 1)
    given = {"position_ids": (longer.cumsum(-1) - 1).clamp(min=0)[:, :11]}
    cache = StaticCache(config=model.config, max_cache_len=22)
    model(ids, attention_mask=longer, cache=cache, **given)
    model(ids, attention_mask=mask, position_ids=torch.arange(11)[None] // 2)
    apart = torch.ones(1, 1, 11, 11).tril().bool()
    apart[..., 5:, :5] = False
    with torch.no_grad():
        expected = model(ids, position_ids=positions).logits
        got = model(ids, position_ids=positions, attention_mask=apart.expand(3, -1, -1, -1)).logits
        torch.testing.assert_close(got, expected, **CLOSE)


ONES = torch.ones(3, 11, dtype=torch.long)
UPRIGHT = torch.arange(11).expand(3, -1)
ANEW = torch.cat([torch.arange(5), torch.arange(6)]).expand(3, -1)
ENDS = torch.tensor([0, 5, 11])
# Keywords that are right, the same with other numbers, and what is said of these.
NUMBERS = {
    "documents": (
        {"attention_mask": ONES, "position_ids": UPRIGHT},
        {"attention_mask": ONES, "position_ids": ANEW},
        "begin anew within a row",
    ),
    "ends": (
        {"position_ids": ANEW, "cu_seq_lens_q": ENDS},
        {"position_ids": UPRIGHT, "cu_seq_lens_q": ENDS},
        "cu_seq_lens_q",
    ),
}


@COMPILED
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name == "documents" else SLOW)
        for name, case in NUMBERS.items()
    ],
)
def test_what_is_traced_refuses_too(model, ids, case):
    """It asserts what could not be looked at when it was traced."""
    right, wrong, message = case
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected = model(ids, use_cache=False, **right).logits
        torch.testing.assert_close(compiled(ids, use_cache=False, **right).logits, expected)
        with pytest.raises(RuntimeError, match=message):
            compiled(ids, use_cache=False, **wrong)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["lime"], indirect=True)
def test_the_default_compiler_keeps_the_refusals(model):
    """Nothing uses what is asserted, so that a compiler may take it for dead code."""

    def check(x, ends, attention_mask=None, position_ids=None):
        given = {} if ends is None else {"cu_seq_lens_q": ends}
        check_inputs(model.config, x, attention_mask, position_ids, None, given)
        return x + 1

    torch.compiler.reset()
    compiled = torch.compile(check, fullgraph=True)
    for right, wrong, message in NUMBERS.values():
        x = torch.zeros(3, 11, 1)
        right, wrong = dict(right), dict(wrong)
        ends = right.pop("cu_seq_lens_q", None)
        wrong.pop("cu_seq_lens_q", None)
        assert torch.equal(compiled(x, ends, **right), x + 1)
        with pytest.raises(RuntimeError, match=message):
            compiled(x, ends, **wrong)


def test_eager_attention_does_not_add_a_boolean_mask(entry, ids):
    model = make(entry.causal_lm, entry.config(**TINY, attn_implementation="eager"))
    mask = torch.ones(3, 1, 11, 11).tril()
    with torch.no_grad():
        expected = model(ids).logits
        torch.testing.assert_close(model(ids, attention_mask=mask.bool()).logits, expected, **CLOSE)
        with pytest.raises(ValueError, match="bool"):
            model(ids, attention_mask=mask.long())


@pytest.mark.parametrize("reentrant", CHECKPOINTING.values(), ids=CHECKPOINTING.keys())
def test_training_is_causal_without_a_mask(model, ids, monkeypatch, reentrant):
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    calls = record_eager_attention(monkeypatch)
    model.train()(ids, labels=ids, use_cache=False).loss.backward()
    forwards = 1 if reentrant is None else 2
    assert calls == [CAUSAL] * N_LAYERS * forwards


@pytest.mark.slow
@COMPILED
def test_compiled_checkpointing_is_causal_without_a_mask(model, ids):
    model.gradient_checkpointing_enable({"use_reentrant": False})
    calls, compiled = record_compiled_attention(model.train())
    loss = compiled(ids, labels=ids, use_cache=False).loss
    loss.backward()
    assert calls == [CAUSAL] * N_LAYERS
    torch.testing.assert_close(loss, model(ids, labels=ids, use_cache=False).loss, **CLOSE)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_prompt_is_read_causally_without_a_mask(model, ids, monkeypatch, cache):
    calls = record_eager_attention(monkeypatch)
    options = {} if cache == "dynamic" else {"cache_implementation": "static"}
    model.generate(
        ids, max_new_tokens=2, do_sample=False, pad_token_id=0, disable_compile=True, **options
    )
    assert calls[:N_LAYERS] == [CAUSAL] * N_LAYERS
    # A static cache has places that are not yet filled, which the mask leaves out.
    token = ONE_QUERY if cache == "dynamic" else MASKED
    assert calls[N_LAYERS:] == [token] * N_LAYERS


def test_left_padding_has_a_mask(model, ids, monkeypatch):
    calls = record_eager_attention(monkeypatch)
    padding = torch.ones_like(ids)
    padding[1, :4] = 0
    model(ids, attention_mask=padding)
    assert calls == [MASKED] * N_LAYERS


def test_a_second_part_of_a_prompt_has_a_mask(model, ids, monkeypatch):
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        expected = model(ids).logits
        first = model(ids[:, :6], cache=cache).logits
        calls = record_eager_attention(monkeypatch)
        second = model(ids[:, 6:10], cache=cache).logits
        last = model(ids[:, 10:], cache=cache).logits
    assert calls == [MASKED] * N_LAYERS + [ONE_QUERY] * N_LAYERS
    torch.testing.assert_close(torch.cat([first, second, last], 1), expected, **CLOSE)


@pytest.mark.parametrize(
    "positions", [[0, *range(10)], [*range(5), *range(6)], [*range(5), *range(9, 15)]]
)
def test_documents_are_kept_apart_or_refused(model, ids, positions):
    """Also where the first has one token, and where the second does not begin at 0."""
    position_ids = torch.tensor([positions])
    start = next(i for i in range(1, 11) if positions[i] != positions[i - 1] + 1)
    parts = ((ids[:, :start], position_ids[:, :start]), (ids[:, start:], position_ids[:, start:]))
    with torch.no_grad():
        expected = [model(part, position_ids=at, use_cache=False).logits for part, at in parts]
        got = model(ids, position_ids=position_ids)
        torch.testing.assert_close(got.logits, torch.cat(expected, 1), **CLOSE)
        with pytest.raises(ValueError, match="those of several documents"):
            model(ids, position_ids=position_ids, cache=DynamicCache())
        # Of one document, from wherever it begins, a cache is right.
        after = torch.arange(3, 14)[None]
        model(ids, position_ids=after, cache=DynamicCache())


@pytest.mark.slow
@COMPILED
def test_compiled_packed_documents_have_a_mask(model, packed):
    row, positions = packed
    calls, compiled = record_compiled_attention(model)
    with torch.no_grad():
        expected = torch.cat([model(row[:, :5]).logits, model(row[:, 5:]).logits], 1)
        got = compiled(row, position_ids=positions, use_cache=False).logits
    assert calls == [MASKED] * N_LAYERS
    torch.testing.assert_close(got, expected, **CLOSE)
