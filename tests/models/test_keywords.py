"""The keywords of a forward: a cache under either name, and no keyword that has no effect."""

import inspect

import pytest
import torch
import transformers
from tiny import TINY, make
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AttentionInterface,
    DataCollatorWithFlattening,
    DynamicCache,
    GenerationConfig,
    LlamaForCausalLM,
    StaticCache,
)
from transformers.generation.continuous_batching.input_outputs import PagedAttentionArgs
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.utils import generic
from transformers.utils.generic import TransformersKwargs

from layermem.models.decoder import Decoder
from layermem.models.inputs import CACHE, CONTRACT, LOSS, PAGED
from layermem.models.layers import eager_attention
from layermem.models.registry import lookup
from layermem.variants.lime import LimeConfig, LimeForCausalLM
from layermem.variants.plain import PlainConfig, PlainForCausalLM

KINDS = (
    "decoder",
    "causal_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
)


@pytest.fixture
def model():
    return make(LimeForCausalLM, LimeConfig(**TINY))


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated")
def test_a_cache_is_used_under_either_name(model, ids):
    with torch.no_grad():
        expected = model(ids).logits
        for name in ("cache", "past_key_values"):
            cache = DynamicCache(config=model.config)
            first = model(ids[:, :6], **{name: cache})
            assert getattr(first, CACHE) is cache
            second = model(ids[:, 6:], **{name: cache})
            assert cache.get_seq_length() == ids.shape[1]
            got = torch.cat([first.logits, second.logits], 1)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_training_makes_no_cache_and_uses_one_that_is_given(model, ids):
    with torch.no_grad():
        expected = model(ids).logits[:, 6:]
        assert getattr(model.train()(ids[:, :6]), CACHE) is None
        cache = DynamicCache(config=model.config)
        model(ids[:, :6], cache=cache)
        torch.testing.assert_close(model(ids[:, 6:], cache=cache).logits, expected)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]])
    assert getattr(model.eval()(ids, position_ids=positions), CACHE) is None


def test_two_caches_are_refused(model, ids):
    caches = {name: DynamicCache(config=model.config) for name in ("cache", "past_key_values")}
    for one in (model, model.model):
        with pytest.raises(ValueError, match="past_key_values"):
            one(ids, **caches)


@pytest.mark.parametrize("kind", KINDS)
def test_keywords_of_other_models_are_refused(kind, ids):
    entry = lookup("lime")
    model = make(getattr(entry, kind), entry.config(**TINY))
    # The last one is the name that functions themselves give to what they do not name.
    for keyword in ("past", "layer_past", "mems", "head_mask", "output_router_logits", "kwargs"):
        with pytest.raises(TypeError, match=f"'{keyword}'"):
            model(ids, **{keyword: torch.ones_like(ids)})
        # None is how callers leave a keyword out.
        model(ids[:1], **{keyword: None})


def test_transformers_contract_is_read_or_refused():
    """A keyword that a new release adds has to be put into one of the lists."""
    taken = set(inspect.signature(Decoder.forward).parameters)
    # Those of mixtures of experts are refused.
    assert set(TransformersKwargs.__annotations__) <= taken | CONTRACT | {"output_router_logits"}
    # The others are read by transformers' decorators, whose source names them.
    source = inspect.getsource(generic)
    for name in CONTRACT - set(TransformersKwargs.__annotations__):
        assert f'"{name}"' in source, name
    loss = set(inspect.signature(ForCausalLMLoss).parameters)
    assert loss >= LOSS


def test_a_loss_keyword_without_labels_is_refused(model, ids):
    with pytest.raises(TypeError, match="shift_labels"):
        model(ids, shift_labels=ids)
    with pytest.raises(TypeError, match="shift_labels"):
        model.model(ids, shift_labels=ids)
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    with torch.no_grad():
        got = model(ids, labels=ids, shift_labels=shifted).loss
        assert got == model(ids, labels=ids).loss


def test_a_keyword_of_the_loss_reaches_it(model, ids):
    def doubled(logits, labels, vocab_size, factor=1.0, **kwargs):
        return factor * ForCausalLMLoss(logits, labels, vocab_size)

    with torch.no_grad():
        once = model(ids, labels=ids).loss
        model.loss_function = doubled
        assert model(ids, labels=ids, factor=2.0).loss == 2 * once
    with pytest.raises(TypeError, match="factr"):
        model(ids, labels=ids, factr=2.0)


def test_a_keyword_of_attention_reaches_it(model, ids):
    seen = []

    def recording(module, query, key, value, mask, scaling, dropout=0.0, note=None, **kwargs):
        seen.append(note)
        return eager_attention(module, query, key, value, mask, scaling, dropout)

    AttentionInterface.register("recording", recording)
    model.set_attn_implementation("recording")
    with torch.no_grad():
        model(ids, note="read")
    assert seen == ["read"] * model.config.num_hidden_layers
    with pytest.raises(TypeError, match="notes"):
        model(ids, notes="read")


def plain_and_llama(implementation):
    """Return our plain decoder and transformers' LLaMA with the same weights."""
    plain = make(PlainForCausalLM, PlainConfig(**TINY, attn_implementation=implementation))
    values = {**plain.config.to_dict(), "model_type": "llama"}
    llama = LlamaForCausalLM(LlamaForCausalLM.config_class(**values)).eval()
    llama.load_state_dict(plain.state_dict())
    llama.set_attn_implementation(implementation)
    return plain, llama


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_to_later_tokens_is_that_of_llama(ids, implementation):
    plain, llama = plain_and_llama(implementation)
    with torch.no_grad():
        expected = llama(ids, is_causal=False, use_cache=False).logits
        got = plain(ids, is_causal=False, use_cache=False).logits
        causal = plain(ids, use_cache=False).logits
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(got, causal)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_packed_texts_have_llamas_loss(ids, implementation):
    plain, llama = plain_and_llama(implementation)
    pack = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    texts = [ids[0, :5], ids[1], ids[2, :8]]
    batch = pack([{"input_ids": text.tolist()} for text in texts])
    assert batch["seq_idx"].max() == 2 and batch["position_ids"].max() == 10
    with torch.no_grad():
        got, expected = plain(**batch), llama(**batch, use_cache=False)
        alone = torch.cat([plain(text[None]).logits for text in texts], 1)
    torch.testing.assert_close(got.loss, expected.loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(got.logits, alone, rtol=1e-4, atol=1e-5)


def test_texts_that_attention_would_not_keep_apart_are_refused(model, ids):
    with pytest.raises(ValueError, match="position_ids"):
        model(ids, seq_idx=torch.zeros_like(ids))
    boundaries = torch.tensor([0, 5, 11], dtype=torch.int32)
    given = {"cu_seq_lens_q": boundaries, "cu_seq_lens_k": boundaries}
    positions = torch.cat([torch.arange(5), torch.arange(6)])[None]
    for others in (
        {},
        {"position_ids": torch.arange(11)[None]},
        {"position_ids": positions, "cache": DynamicCache(config=model.config)},
        {"position_ids": positions, "attention_mask": torch.ones(1, 11)},
    ):
        with pytest.raises(ValueError, match="position_ids"):
            model(ids[:1], **others, **given)
    with torch.no_grad():
        got = model(ids[:1], position_ids=positions, **given).logits
        expected = torch.cat([model(ids[:1, :5]).logits, model(ids[:1, 5:]).logits], 1)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


class NoNumbers(TorchDispatchMode):
    """No number of a tensor is looked at, for which a GPU would be waited for."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_the_next_token_waits_for_no_gpu(model, ids):
    """It can be captured in a CUDA graph (tests/test_gpu.py does)."""
    cache = StaticCache(config=model.config, max_cache_len=16)
    with torch.no_grad():
        expected = model(ids).logits[:, 6]
        model(ids[:, :6], cache=cache, use_cache=True)
        positions = torch.full((len(ids), 1), 6)
        with NoNumbers():
            out = model(ids[:, 6:7], position_ids=positions, cache=cache, use_cache=True)
    torch.testing.assert_close(out.logits[:, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["sdpa", "paged|eager"])
@pytest.mark.filterwarnings("ignore")
def test_continuous_batching_equals_greedy(model, ids, implementation):
    # Unless it is bounded, the cache fills the memory of the machine.
    config = transformers.ContinuousBatchingConfig
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **options)[:, ids.shape[1] :].tolist()
    model.set_attn_implementation(implementation)
    done = model.generate_batch(
        ids.tolist(),
        generation_config=GenerationConfig(**options, eos_token_id=-1),
        continuous_batching_config=config(num_blocks=64, max_batch_tokens=64),
        warmup=False,
        progress_bar=False,
    )
    assert [request.generated_tokens for request in done.values()] == expected


def test_what_continuous_batching_passes_is_known(model, ids):
    taken = set(inspect.signature(Decoder.forward).parameters)
    assert set(PagedAttentionArgs.__annotations__) <= taken | CONTRACT | PAGED
    with pytest.raises(TypeError, match="read_index"):
        model(ids, read_index=[ids])


def test_a_checkpointed_layer_writes_no_cache(model, ids):
    """Run twice, it would write every token twice."""
    model.train().gradient_checkpointing_enable()
    cache = DynamicCache(config=model.config)
    model(ids, labels=ids, **{CACHE: cache}).loss.backward()
    assert cache.get_seq_length() == 0
