"""Prompts as lm-eval's model reads them, and baselines of a task from what it logs of items."""

from dataclasses import replace

import pytest
import transformers
from tiny import TINY
from tokenizers.processors import TemplateProcessing

from layermem_bench.analysis.checkpoints import load_model, open_checkpoints
from layermem_bench.config.run import Data
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.results.eval import EvalOptions

pytest.importorskip("lm_eval")


def sample(choices, target):
    return {"arguments": [("context", f" {choice}") for choice in choices], "target": target}


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # By its place the first choice is right twice, by its text "no" three times.
        ([(["yes", "no"], 1), (["no", "yes"], 0), (["no", "yes"], 0)], (1 / 2, 1.0)),
        ([(["a", "b"], 1), (["c", "d", "e", "f"], 1), (["g", "h"], 0)], (5 / 12, 2 / 3)),
        # COPA's targets are texts.
        ([([" so it is", " no"], " no")], (1 / 2, 1.0)),
    ],
)
def test_chance_and_the_most_frequent_answer(samples, expected):
    from layermem_bench.evals.harness import baselines

    assert baselines([sample(*each) for each in samples]) == pytest.approx(expected)


@pytest.mark.parametrize("target", [-1, 2, "c", None])
def test_an_answer_that_is_no_choice_is_refused(target):
    from layermem_bench.evals.harness import baselines

    with pytest.raises(ValueError, match=f"item 5 has the answer {target!r}, which is none of its"):
        baselines([{**sample(["a", "b"], target), "doc_id": 5}])


def test_one_answer_after_two_contexts_is_not_the_most_frequent():
    from layermem_bench.evals.harness import baselines

    assert baselines([sample(["x", "x"], place) for place in (0, 1, 1)]) == (1 / 2, 2 / 3)


def adding(template):
    """Return a tokenizer of bytes that puts a text into a template, such as "<s> $A </s>"."""
    tokenizer = load_tokenizer("bytes")
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    special = [("<s>", tokenizer.bos_token_id), ("</s>", tokenizer.eos_token_id)]
    used = [each for each in special if each[0] in template]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=used
    )
    return tokenizer


def test_a_prefix_of_several_tokens_is_kept(tmp_path):
    """GLM-4 has no BOS, and puts two tokens before a text."""
    from layermem_bench.evals import harness

    tokenizer = adding("<s> </s> $A")
    tokenizer.bos_token = None
    config = transformers.LlamaConfig(**TINY | {"vocab_size": 300})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (checkpoint,) = open_checkpoints([str(tmp_path)])
    model = harness.CountingModel(load_model(checkpoint), checkpoint, EvalOptions())
    assert model.tok_encode("ab") == tokenizer("ab")["input_ids"] and len(model.begins_with) == 2


@pytest.mark.parametrize("template", ["$A", "$A </s>", "<s> $A", "<s> $A </s>"])
@pytest.mark.parametrize("trained", [False, True], ids=["not ours", "a run on text"])
def test_of_added_tokens_a_prompt_has_a_bos_that_was_learnt(template, trained, tmp_path):
    """What is scored are the answer's own tokens."""
    from layermem_bench.evals import harness

    tokenizer = adding(template)
    config = transformers.LlamaConfig(**TINY | {"vocab_size": 300})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (checkpoint,) = open_checkpoints([str(tmp_path)])
    checkpoint = replace(checkpoint, text=Data(block_size=8) if trained else None)
    assert checkpoint.tokenizer("ab")["input_ids"] == tokenizer("ab")["input_ids"]
    model = harness.CountingModel(load_model(checkpoint), checkpoint, EvalOptions())
    bos = [tokenizer.bos_token_id] if "<s>" in template and not trained else []
    assert model._encode_pair("ab:", " yes") == ([*bos, *b"ab:"], [*b" yes"])
    assert model._encode_pair("<s>ab:", " yes")[0] == [tokenizer.bos_token_id, *b"ab:"]
    assert model.prefix_token_id == (tokenizer.eos_token_id if trained else tokenizer.bos_token_id)
    model._count([(("ab:", " yes"), *model._encode_pair("ab:" * n, " yes")) for n in (1, 2, 3)])
    # Of 6, 9 and 12 tokens, as the last one is not read.
    assert model.beyond == (2 if trained else 0)
