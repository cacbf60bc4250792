"""Value embeddings: layers with a table, inputs without ids, tables of a larger vocabulary."""

import pytest
import torch
from tiny import TINY, make

import layermem
from layermem.models.registry import lookup
from layermem.models.stages import DecoderStage

ENTRY = lookup("value_embeddings")


@pytest.mark.parametrize(
    ("given", "layers", "tables"),
    [("alternate", 4, [1, 3]), ("alternate", 5, [0, 2, 4]), ("ends", 5, [0, 4]), ("ends", 1, [0])],
)
def test_layers_with_tables(given, layers, tables):
    model = layermem.build(
        "value_embeddings", **{**TINY, "num_hidden_layers": layers}, value_layers=given
    )
    assert [i for i, layer in enumerate(model.model.layers) if layer.self_attn.reads_ids] == tables


def test_embeddings_without_ids_are_refused(ids):
    model = layermem.build("value_embeddings", **TINY)
    with pytest.raises(ValueError, match="input_ids"):
        model(inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(ValueError, match="token ids"):
        DecoderStage(model, range(2))


def test_new_tokens_of_a_larger_vocabulary_add_no_values(ids):
    model = make(ENTRY.causal_lm, ENTRY.config(**TINY))
    with torch.no_grad():
        before = model(ids).logits
        model.resize_token_embeddings(70)
        torch.testing.assert_close(model(ids).logits[..., :61], before)
        model(ids + 9)
    table = model.model.layers[1].self_attn.memory.table
    assert table.shape == (70, 16) and not table[61:].any()


def test_with_gates_of_one_values_are_those_of_neomme(ids):
    neomme = pytest.importorskip("transformers.models.neomme.modeling_neomme")
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 32}
    config = neomme.NeoMMEConfig(
        num_hidden_layers=1,
        layer_types=["full_attention"],
        rope_parameters={"full_attention": {"partial_rotary_factor": 1.0}},
        **shape,
    )
    theirs = neomme.NeoMMEAttention(config, 0)
    model = make(ENTRY.causal_lm, ENTRY.config(**TINY, value_layers="ends"))
    ours, seen = model.model.layers[0].self_attn, []
    ours.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    ours.memory.register_forward_hook(lambda _, __, slot: seen.append(slot[1]))
    # Which is handed the output of attention and its values.
    theirs.exclusive_self_attention.register_forward_hook(lambda _, x, __: seen.append(x[1]))
    with torch.no_grad():
        theirs.v_proj.weight.copy_(ours.v_proj.weight)
        ours.memory.gate.zero_()
        model(ids)
        angles = torch.ones(1, ids.shape[1], 8)
        theirs(seen[0], (angles, angles), None, ours.memory.table[ids])
    torch.testing.assert_close(seen[1], seen[2])
