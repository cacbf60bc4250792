"""vLLM's server with our checkpoints: the same tokens as ``generate``, and room for more.

Needs vLLM, which wants an environment of its own: ``make serve-test`` makes it and runs this file.
Nothing but loopback is used.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make serve-test")

import torch
from scripts import load_script
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import layermem
from layermem.models.registry import lookup

vllm_server = load_script("benchmarks/vllm_server.py")
ask = vllm_server.ask

# vLLM's attention on a CPU takes heads of width 32 and more.
SIZES = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    # So wide that the largest logit is far from the second.
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FIELDS = {"recipe": dict(layermem.RECIPE), "lowest": {"storage": 2}}
LONGEST, NEW_TOKENS, QUEUE = 256, 24, 8


def build(name):
    """Return a model with routers that are not their initial ones."""
    torch.manual_seed(0)
    variant, _, form = name.partition(" ")
    heads = 4 if form == "mha" else 2
    if form == "from_llama":
        llama = LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=heads))
        model = lookup(variant).causal_lm.from_llama(llama)
    else:
        entry = lookup(variant)
        config = entry.config(**SIZES, num_key_value_heads=heads, **FIELDS.get(form, {}))
        model = entry.causal_lm(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if ".memory." in parameter_name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    if form == "pruned":
        model.prune_routers(0.5)
    return model.eval()


def tokenizer():
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, SIZES["vocab_size"])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="</s>")


def save(name, folder):
    model = build(name)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return model


def serving(folder, **port):
    return vllm_server.serving(
        folder, "--max-model-len", str(LONGEST), "--max-num-seqs", str(QUEUE), **port
    )


def request(prompt, max_tokens=NEW_TOKENS, **changes):
    return vllm_server.completion(prompt, max_tokens, **changes)


def prompts(count, seed=0):
    """Return prompts of 1 to 200 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 200, (count,), generator=generator).tolist()
    lengths[:2] = 1, 200
    return [
        torch.randint(3, SIZES["vocab_size"], (length,), generator=generator).tolist()
        for length in lengths
    ]


@torch.no_grad()
def expected(model, prompt):
    """Return the greedy tokens of ``generate`` and their log-probabilities."""
    ids = torch.tensor([prompt])
    whole = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    log_probabilities = model(whole[:, :-1]).logits.log_softmax(-1)
    new = whole[0, len(prompt) :]
    given = log_probabilities[0, len(prompt) - 1 :].gather(1, new[:, None])[:, 0]
    return new.tolist(), given


def check(answer, model, prompt):
    """The served tokens are those of ``generate``, with the same log-probabilities."""
    status, body = answer
    assert status == 200, body
    (choice,) = body["choices"]
    tokens, log_probabilities = expected(model, prompt)
    assert choice["token_ids"] == tokens
    served = torch.tensor(choice["logprobs"]["token_logprobs"])
    torch.testing.assert_close(served, log_probabilities, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "name",
    [
        *("plain mha", "plain gqa", "lime mha", "lime gqa", "lime pruned", "lime from_llama"),
        *("lime_half recipe", "lime_half lowest", "cla gqa", "yoco gqa"),
    ],
)
def test_many_requests_at_once_are_answered_as_by_generate(name, tmp_path):
    """Fifty, of different lengths, so that most wait in a queue."""
    folder = tmp_path / "model"
    model = save(name, folder)
    if name == "lime pruned":
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        assert model.config.router_sources
    with serving(folder) as (_, port), ThreadPoolExecutor(50) as pool:
        asked = prompts(50)
        answers = list(pool.map(lambda prompt: ask(port, request(prompt)), asked))
        for answer, prompt in zip(answers, asked, strict=True):
            check(answer, model, prompt)
