"""A trained model becomes one with storage layers: exactly where it can, else as near as it can."""

import pytest
import stories
import torch
from tiny import TINY
from transformers import LlamaConfig, LlamaForCausalLM

from layermem import LimeForCausalLM, PlainForCausalLM
from layermem.convert.storage import with_storage
from layermem.models.memories import active_memories
from layermem.models.seams import LentMemory

SIZES = {k: v for k, v in TINY.items() if k in LlamaConfig().to_dict()}
HEADS, WIDTH = TINY["num_key_value_heads"], 8
ORDER = [1, 0]


@pytest.fixture
def texts():
    return torch.randint(1, 61, (4, 3, 20), generator=torch.Generator().manual_seed(0))


def a_llama(**fields):
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES, **fields)).eval().double()
    with torch.no_grad():
        for name, parameter in llama.named_parameters():
            if parameter.ndim > 1 or "bias" in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return llama


@torch.no_grad()
def make_redundant(llama, layer):
    """Make keys and values of ``layer`` maps of those of the layer below, heads exchanged."""
    below, above = llama.model.layers[layer - 1], llama.model.layers[layer]
    # The layer below leaves the residual as it is, so that both see the same.
    below.self_attn.o_proj.weight.zero_()
    below.mlp.down_proj.weight.zero_()
    above.input_layernorm.weight.copy_(below.input_layernorm.weight)
    generator = torch.Generator().manual_seed(layer)
    number = torch.randn(HEADS, WIDTH // 2, 1, 2, generator=generator, dtype=torch.float64)
    number = torch.view_as_complex(number)
    rows = below.self_attn.k_proj.weight.unflatten(0, (HEADS, 2, -1))[ORDER]
    rows = number * torch.complex(rows[:, 0], rows[:, 1])
    above.self_attn.k_proj.weight.copy_(torch.stack([rows.real, rows.imag], 1).flatten(0, 2))
    maps = torch.randn(HEADS, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    rows = below.self_attn.v_proj.weight.unflatten(0, (HEADS, -1))[ORDER]
    above.self_attn.v_proj.weight.copy_((maps @ rows).flatten(0, 1))


@pytest.mark.parametrize("fields", [{}, {"attention_bias": True}], ids=["no biases", "biases"])
def test_keys_and_values_that_are_maps_of_others_are_found(fields, texts, ids):
    llama = a_llama(**fields)
    for layer in (1, 3):
        make_redundant(llama, layer)
        if fields:
            below, above = (llama.model.layers[i].self_attn for i in (layer - 1, layer))
            for linear in (below.k_proj, below.v_proj, below.o_proj, above.k_proj, above.v_proj):
                linear.bias.data.zero_()
    model, rows = with_storage(llama, "half", texts)
    assert [(row.layer, row.heads) for row in rows] == [
        (layer, tuple((layer - 1, head) * 2 for head in ORDER)) for layer in (1, 3)
    ]
    for row in rows:
        assert row.keys == pytest.approx(1, abs=1e-9)
        assert row.values == pytest.approx(1, abs=1e-9)
    # The norms of transformers' own are in float32.
    plain = PlainForCausalLM.from_llama(llama)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=0, atol=1e-10)
    # As it was, the borrowing layer reads other keys and values.
    copied, rows = with_storage(llama, "half", texts, method="copy")
    assert all(row.keys < 0.9 and row.values < 0.9 for row in rows)
    assert (copied(ids).logits - plain(ids).logits).abs().max() > 0.01


def test_each_head_finds_the_heads_of_other_layers_that_it_is_a_map_of(texts, ids, tmp_path):
    llama = a_llama()
    layers = llama.model.layers
    with torch.no_grad():
        # All layers see the same.
        for layer in layers[:3]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for layer in layers[1:]:
            layer.input_layernorm.weight.copy_(layers[0].input_layernorm.weight)
        for part, found in (("k_proj", ((0, 1), (2, 0))), ("v_proj", ((2, 1), (0, 0)))):
            own = getattr(layers[3].self_attn, part).weight.unflatten(0, (HEADS, WIDTH))
            for head, (j, g) in enumerate(found):
                theirs = getattr(layers[j].self_attn, part).weight.unflatten(0, (HEADS, WIDTH))[g]
                mixing = -3.0 if part == "k_proj" else torch.randn(WIDTH, WIDTH)
                own[head] = mixing * theirs if part == "k_proj" else mixing.double() @ theirs
    model, rows = with_storage(llama, 3, texts, method="heads")
    assert [row.heads for row in rows] == [((0, 1, 2, 1), (2, 0, 0, 0))]
    assert rows[0].keys == pytest.approx(1) and rows[0].values == pytest.approx(1)
    plain = PlainForCausalLM.from_llama(llama)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=0, atol=1e-10)
        model.save_pretrained(tmp_path)
        loaded = LimeForCausalLM.from_pretrained(tmp_path, dtype="float64").eval()
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-10)
    # One layer alone has not all of it.
    _, rows = with_storage(llama, 3, texts)
    assert rows[0].keys < 0.9


def test_the_source_is_left_as_it_was(texts):
    llama = a_llama()
    before = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
    with_storage(llama, 2, texts, method="average")
    with_storage(llama, 2, texts)
    assert all(torch.equal(tensor, before[name]) for name, tensor in llama.state_dict().items())
    assert not any(module._forward_hooks for module in llama.modules())


def test_an_average_is_of_the_lender_and_all_that_borrow_from_it(texts):
    llama = a_llama()
    model, rows = with_storage(llama, [0, 3], texts, method="average")
    heads = tuple((0, head) * 2 for head in range(HEADS))
    assert [(row.layer, row.heads, row.keys) for row in rows] == [
        (1, heads, None),
        (2, heads, None),
    ]
    ours, theirs = model.model.layers, llama.model.layers
    for part in ("k_proj", "v_proj"):
        weights = [getattr(layer.self_attn, part).weight for layer in theirs]
        mean = torch.stack(weights[:3]).mean(0)
        torch.testing.assert_close(getattr(ours[0].self_attn, part).weight, mean)
        torch.testing.assert_close(getattr(ours[3].self_attn, part).weight, weights[3])


@pytest.mark.slow
@stories.needs_stories
def test_a_real_model_is_nearest_by_the_fit(tmp_path):
    llama = stories.stories_model()
    torch.manual_seed(0)
    # Its own stories.
    written = llama.generate(
        torch.ones(16, 1, dtype=torch.long),
        max_new_tokens=255,
        do_sample=True,
        pad_token_id=0,
    )
    fitted_on, held_out = written[:12], written[12:]

    def loss(model):
        with torch.no_grad():
            return model(held_out, labels=held_out).loss.item()

    found = {
        method: with_storage(llama, "half", [fitted_on], method=method)
        for method in ("fit", "heads", "average", "copy")
    }
    losses = {method: loss(model) for method, (model, _) in found.items()}
    assert loss(llama) < losses["fit"] < min(losses["average"], losses["copy"])
    # Which heads are free to choose is more than the best pairs of one layer.
    for row, of_heads in zip(found["fit"][1], found["heads"][1], strict=True):
        assert of_heads.keys >= row.keys - 1e-3 and of_heads.values >= row.values - 1e-3
    assert losses["heads"] < losses["average"]
    model, rows = found["fit"]
    for row, copied in zip(rows, found["copy"][1], strict=True):
        assert copied.keys < row.keys < 1 and copied.values < row.values < 1
    lent = [memory.lender for memory in active_memories(model) if isinstance(memory, LentMemory)]
    assert lent == [row.heads[0][0] for row in rows] == [0, 2]
    model.save_pretrained(tmp_path)
    assert loss(LimeForCausalLM.from_pretrained(tmp_path)) == losses["fit"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"storage": "half", "upper": "mix"}, 'got upper="mix"'),
        ({"storage": "half", "router_init": "paper"}, 'router_init="paper"'),
        ({"storage": 5}, "from 1 to 4, got|up to 3"),
        ({"storage": [1]}, "begins with 0"),
        ({"storage": 3, "method": "heads", "borrow_from": [0]}, "leave borrow_from out"),
        (
            {"storage": 2, "method": "heads", "router_sources": [[], [0], [1], [1]]},
            "leave router_sources out",
        ),
        ({"storage": 3, "method": "fitted"}, "method must be one of fit, .*, got 'fitted'"),
        ({"storage": 3, "method": None}, "method must be one of fit, .*, got None"),
        ({"storage": None}, "storage=None keeps the whole cache"),
        ({"storage": "half", "borrow_form": [0, 0]}, "did you mean borrow_from"),
        ({"storage": 2, "num_hidden_layers": 3}, "has num_hidden_layers=4, got num_hidden_layers"),
        ({"storage": 2, "tie_word_embeddings": True}, "leave tie_word_embeddings out"),
        ({"storage": 2, "num_attention_heads": 2, "head_dim": 16}, "num_attention_heads=2"),
        ({"storage": 2, "attention_bias": True}, "are not those of both models"),
        ({"storage": 2, "rms_norm_eps": 0.5}, "leave rms_norm_eps out"),
        (
            {"storage": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
            "leave rope_parameters out",
        ),
        *(
            ({"storage": 3, "method": method, "borrow_heads": "first_values"}, "borrow_heads out")
            for method in ("fit", "heads", "average", "copy")
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(fields, message, texts):
    with pytest.raises(Exception, match=message):
        with_storage(a_llama(), texts=texts, **fields)


def test_a_model_that_reads_both_ways_is_refused(texts):
    with pytest.raises(ValueError, match="is_causal=False"):
        with_storage(a_llama(is_causal=False), "half", texts)


def test_texts_are_batches_of_ids():
    for wrong in ([torch.ones(64, dtype=torch.long)], torch.ones(2, 64, dtype=torch.long), [[1]]):
        with pytest.raises(ValueError, match=r"texts must be tensors of token ids \[B, T\]"):
            with_storage(a_llama(), "half", wrong)


def test_a_text_must_be_long_enough_to_fit_on():
    with pytest.raises(ValueError, match="6 tokens is too short"):
        with_storage(a_llama(), "half", [torch.ones(2, 3, dtype=torch.long)])
