"""What transformers looks up by a model's class name, and does otherwise for a name unknown."""

import logging

import pytest
import torch
from tiny import KINDS, TINY, make
from torch.distributed.fsdp import fully_shard
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
    AutoModelForCausalLM,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers import logging as transformers_logging

from layermem.models.registry import lookup


@pytest.fixture(params=KINDS)
def entry(request):
    return lookup(request.param)


def in_place(model):
    model.compile(backend="eager")
    return model


def adapted(model):
    peft = pytest.importorskip("peft")
    chosen = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "lm_head"])
    return peft.get_peft_model(model, chosen)


WRAPS = {"whole": lambda model: model, "fsdp": fully_shard, "compiled": in_place, "lora": adapted}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_smoothed_labels_are_those_of_the_next_token(entry, wrap, alone, ids, tmp_path):
    """FSDP2 changes the class, and with it the name; ``model.compile()`` leaves both."""
    config = entry.config(**{**TINY, "num_hidden_layers": 1})
    bare, model = make(entry.causal_lm, config), wrap(make(entry.causal_lm, config)).eval()
    arguments = TrainingArguments(
        output_dir=str(tmp_path), label_smoothing_factor=0.1, report_to="none", use_cpu=True
    )
    trainer = Trainer(model=model if wrap is adapted else bare, args=arguments)
    got = trainer.compute_loss(model, {"input_ids": ids, "labels": ids})
    log_p = bare(ids).logits[:, :-1].log_softmax(-1)
    own = -log_p.gather(-1, ids[:, 1:, None]).mean()
    torch.testing.assert_close(got, 0.9 * own - 0.1 * log_p.mean())


def test_pipelines_know_every_head(entry, tokenizer, caplog):
    heads = {
        "text-generation": entry.causal_lm,
        "text-classification": entry.sequence_classification,
        "token-classification": entry.token_classification,
        "feature-extraction": entry.decoder,
    }
    transformers_logging.enable_propagation()
    try:
        with caplog.at_level(logging.ERROR):
            for task, head in heads.items():
                model = make(head, entry.config(**TINY, pad_token_id=0))
                pipeline(task, model=model, tokenizer=tokenizer, device="cpu")
    finally:
        transformers_logging.disable_propagation()
    assert "is not supported" not in caplog.text


def test_the_auto_classes_still_hold_the_class_itself(entry):
    """A name in transformers' own table must not send it to look for a file of its own."""
    assert MODEL_FOR_CAUSAL_LM_MAPPING[entry.config] is entry.causal_lm
    assert MODEL_MAPPING[entry.config] is entry.decoder
    assert type(AutoModelForCausalLM.from_config(entry.config(**TINY))) is entry.causal_lm
