"""What users of transformers expect of any causal LM, for every variant, in our own words."""

import copy
from functools import partial

import pytest
import torch
from host_models import make_attached
from tiny import KINDS, TINY, make, needs_compiler
from torch import nn

import layermem
from layermem.models.registry import lookup

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
GREEDY = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(params=KINDS)
def entry(request):
    return lookup(request.param)


@pytest.fixture
def model(entry):
    return make(entry.causal_lm, entry.config(**TINY))


# Generation


def test_assisted_decoding_equals_greedy(entry, model, ids):
    assistant = make(entry.causal_lm, entry.config(**{**TINY, "num_hidden_layers": 2}), seed=5)
    expected = model.generate(ids[:1], **GREEDY)
    assert torch.equal(model.generate(ids[:1], **GREEDY, assistant_model=assistant), expected)
    assert torch.equal(model.generate(ids[:1], **GREEDY, prompt_lookup_num_tokens=3), expected)
    # The model's own first layers as the assistant.
    assert torch.equal(model.generate(ids[:1], **GREEDY, assistant_early_exit=2), expected)


def gradients_by_hooks(model, ids, rate):
    """Return each gradient as it is accumulated, after which its weight may move at once."""
    seen = {}

    def step(name, parameter):
        seen[name] = parameter.grad.clone()
        with torch.no_grad():
            parameter.sub_(rate * parameter.grad.sign())

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(step, name))
    model(ids, labels=ids).loss.backward()
    return seen


@pytest.mark.parametrize("kind", ["attached", "lime", "mhc", "dca"])
def test_an_optimiser_may_step_inside_the_backward(kind, ids):
    """As layer-wise ones do: a weight is read once more after its own gradient is known."""
    found = []
    for rate in (0.0, 0.05):
        torch.manual_seed(0)
        model = make_attached("llama") if kind == "attached" else layermem.build(kind, **TINY)
        model = model.double().train()
        if kind in ("attached", "lime"):
            model.gradient_checkpointing_enable({"use_reentrant": False})
        found.append(gradients_by_hooks(model, ids, rate))
    still, moving = found
    for name, grad in still.items():
        torch.testing.assert_close(moving[name], grad, rtol=1e-9, atol=1e-12, msg=name)


def test_a_prompt_may_be_read_in_chunks(model, ids):
    expected = model.generate(ids, **GREEDY)
    assert torch.equal(model.generate(ids, **GREEDY, prefill_chunk_size=4), expected)


def test_the_cache_holds_routed_rotated_keys_once_per_layer(model, ids):
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    assert cache.get_seq_length() == ids.shape[1]
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(3, 2, 11, 8)] * 4


# Masks, positions, backends


def test_attention_backends_agree(model, ids, implementation="sdpa"):
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(ids, attention_mask=mask).logits[mask.bool()]
        model.set_attn_implementation(implementation)
        got = model(ids, attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask")
@pytest.mark.parametrize("entry", ["lime"], indirect=True)
def test_flex_attention_agrees(model, ids):
    """It is compiled, half a minute long, and the decoder calls every backend alike."""
    test_attention_backends_agree(model, ids, "flex_attention")


# Losses and gradients


def test_the_loss_is_the_mean_over_next_tokens(model, ids):
    labels = ids.clone()
    labels[0, :5] = -100
    with torch.no_grad():
        out = model(ids, labels=labels)
        flat = nn.functional.cross_entropy(
            out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none"
        )
        wanted = (labels[:, 1:] != -100).sum()
        torch.testing.assert_close(out.loss, flat.sum() / wanted)
        # As a Trainer that accumulates: the sum over the number of items of all micro-batches.
        counted = model(ids, labels=labels, num_items_in_batch=torch.tensor(50)).loss
        torch.testing.assert_close(counted, flat.sum() / 50)
        shifted = nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
        same = model(ids, labels=labels, shift_labels=shifted).loss
        torch.testing.assert_close(same, out.loss)


def test_gradients_reach_hidden_states_and_attention_weights(entry, ids):
    model = make(entry.causal_lm, entry.config(**TINY, attn_implementation="eager"))
    out = model(ids, output_hidden_states=True, output_attentions=True)
    for tensor in (*out.hidden_states[:-1], *out.attentions):
        tensor.retain_grad()
    out.logits.square().sum().backward()
    assert all(tensor.grad is not None for tensor in out.attentions)
    reached = [tensor.grad is not None for tensor in out.hidden_states[:-1]]
    # The first hidden state is the embedding.
    expected = [i == 0 or not model.model.stream.shows_reduction for i in range(len(reached))]
    assert reached == expected


# Heads


def test_sequence_classification_reads_the_last_real_token(entry, ids):
    model = make(entry.sequence_classification, entry.config(**TINY, num_labels=2, pad_token_id=0))
    padded = nn.functional.pad(ids, (0, 4))
    mask = (padded != 0).long()
    with torch.no_grad():
        torch.testing.assert_close(model(padded, attention_mask=mask).logits, model(ids).logits)


def test_token_classification_and_question_answering(entry, ids):
    config = entry.config(**TINY, num_labels=4)
    tokens = make(entry.token_classification, config)
    out = tokens(ids, labels=ids % 4)
    assert out.logits.shape == (3, 11, 4)
    out.loss.backward()
    answers = make(entry.question_answering, config)
    where = torch.tensor([1, 2, 3])
    out = answers(ids, start_positions=where, end_positions=where + 2)
    assert out.start_logits.shape == out.end_logits.shape == (3, 11)
    out.loss.backward()


# Embeddings and weights


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_embeddings_can_be_resized(entry, ids, tied):
    model = make(entry.causal_lm, entry.config(**TINY, tie_word_embeddings=tied))
    with torch.no_grad():
        before = model(ids).logits
        model.resize_token_embeddings(70)
        torch.testing.assert_close(model(ids).logits[..., :61], before)
    assert model.config.vocab_size == 70 and model.lm_head.weight.shape[0] == 70
    same = model.lm_head.weight is model.get_input_embeddings().weight
    assert same == tied
    model(torch.full((1, 3), 69), labels=torch.full((1, 3), 69)).loss.backward()


def test_tied_weights_are_saved_once_and_tied_again(entry, ids, tmp_path):
    model = make(entry.causal_lm, entry.config(**TINY, tie_word_embeddings=True))
    model.save_pretrained(tmp_path)
    loaded = entry.causal_lm.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_built_on_meta_and_filled_later(entry, model, ids):
    with torch.device("meta"):
        empty = entry.causal_lm(model.config)
    assert all(parameter.is_meta for parameter in empty.parameters())
    loaded, info = entry.causal_lm.from_pretrained(
        None, config=model.config, state_dict=model.state_dict(), output_loading_info=True
    )
    assert not info["missing_keys"]
    assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)
    # What no checkpoint has is computed anew, also the weights of a constant router.
    average = lookup("lime")
    average = make(average.causal_lm, average.config(**TINY, router="average"))
    for each in (model, average):
        with torch.device("meta"):
            empty = type(each)(each.config)
        empty = empty.to_empty(device="cpu")
        empty.load_state_dict(each.state_dict())
        assert torch.equal(empty.eval()(ids).logits, each(ids).logits)


# Placement


# Older transformers warn of a model whose weights rest on disk between calls.
@pytest.mark.filterwarnings("ignore:You are calling .generate")
@pytest.mark.parametrize("where", ["disk", "mixed"])
def test_placement_by_device_map(entry, model, ids, where, tmp_path):
    """Offloaded layers bring their weights in when called, and memory crosses the border."""
    accelerate = pytest.importorskip("accelerate")
    model.save_pretrained(tmp_path / "saved")
    if where == "disk":
        loaded = entry.causal_lm.from_pretrained(tmp_path / "saved")
        loaded = accelerate.disk_offload(loaded, tmp_path / "off", execution_device="cpu")
    else:
        parts = ("embed_tokens", "norm", "rotary_emb", "stream", "layers.0", "layers.2")
        device_map = {f"model.{part}": "cpu" for part in parts} | {"lm_head": "disk"}
        device_map |= {"model.layers.1": "disk", "model.layers.3": "disk"}
        loaded = entry.causal_lm.from_pretrained(
            tmp_path / "saved", device_map=device_map, offload_folder=tmp_path / "off"
        )
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, **CLOSE)
    assert torch.equal(loaded.generate(ids, **GREEDY), model.generate(ids, **GREEDY))


# Neighbours


def test_lora_trains_saves_and_merges(entry, model, ids, tmp_path):
    peft = pytest.importorskip("peft")
    base = copy.deepcopy(model)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"], modules_to_save=None
    )
    if entry.variant.inputs_by_head(model.config):
        refused = peft.get_peft_model(copy.deepcopy(model), config)
        with pytest.raises(NotImplementedError, match="leave k_proj and v_proj out"):
            refused(input_ids=ids)
        config.target_modules = {"q_proj", "up_proj"}
    adapted = peft.get_peft_model(model, config)
    adapted.train().gradient_checkpointing_enable({"use_reentrant": False})
    optimiser = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        optimiser.zero_grad()
        adapted(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimiser.step()
    adapted.eval().save_pretrained(tmp_path)
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits
        again = peft.PeftModel.from_pretrained(base, tmp_path).eval()
        torch.testing.assert_close(again(input_ids=ids).logits, expected)
        merged = again.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, expected, **CLOSE)


def test_stock_baselines_stay_stock():
    # What is asked of every variant is asked of the plain decoder first.
    assert lookup("plain").variant.overrides == ()
