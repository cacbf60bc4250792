"""What transformers looks up by a model's class name, and does otherwise for a name unknown."""

import logging

import pytest
import torch
from tiny import KINDS, TINY, make
from torch import distributed
from torch.distributed.fsdp import fully_shard
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_MAPPING,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers import logging as transformers_logging
from transformers.modelcard import TrainingSummary

from layermem.models.causal_lm import DecoderForCausalLM
from layermem.models.registry import lookup

# Rows of a walk through 23 ids: the next id follows from the one before, and none repeats.
ROWS = [(torch.arange(16) + start) * 5 % 23 + 3 for start in range(46)]


@pytest.fixture(params=KINDS)
def entry(request):
    return lookup(request.param)


def smooth(model, folder, **options):
    """Train with label smoothing; return the share of next ids it then knows."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        label_smoothing_factor=0.1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    rows = [{"input_ids": row, "labels": row} for row in ROWS]
    torch.manual_seed(0)
    Trainer(model=model.train(), args=arguments, train_dataset=rows).train()
    ids = torch.stack(ROWS)
    with torch.no_grad():
        guess = model.eval()(input_ids=ids).logits.argmax(-1)
    return (guess[:, 1:-1] == ids[:, 2:]).float().mean()


def adapted(model):
    peft = pytest.importorskip("peft")
    # A projection with inputs for each head takes no adapter.
    by_head = isinstance(model, DecoderForCausalLM) and model.variant.inputs_by_head(model.config)
    layers = ["q_proj", "up_proj" if by_head else "v_proj", "down_proj", "lm_head", "embed_tokens"]
    return peft.get_peft_model(
        model, peft.LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=64, target_modules=layers)
    )


WRAPS = {"whole": lambda model: model, "lora": adapted}


@pytest.fixture(scope="module", params=WRAPS)
def long_enough(request, tmp_path_factory):
    """How a model is wrapped that the recipe teaches, if it is transformers' own."""
    torch.manual_seed(0)
    theirs = WRAPS[request.param](LlamaForCausalLM(LlamaConfig(**TINY)))
    assert smooth(theirs, tmp_path_factory.mktemp("llama")) > 0.9, "the recipe is too short to tell"
    return WRAPS[request.param]


def test_smoothed_labels_are_those_of_the_next_token(entry, long_enough, tmp_path):
    ours = long_enough(make(entry.causal_lm, entry.config(**TINY)))
    assert smooth(ours, tmp_path) > 0.9


@pytest.fixture
def alone(tmp_path):
    """A process group of this process and no other."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def in_place(model):
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize("wrap", [fully_shard, in_place], ids=["fsdp", "compiled"])
def test_a_wrapped_model_shifts_its_smoothed_labels_too(entry, wrap, alone, tmp_path):
    """FSDP2 changes the class, and with it the name; ``model.compile()`` leaves both."""
    config = entry.config(**{**TINY, "num_hidden_layers": 1})
    bare, model = make(entry.causal_lm, config), wrap(make(entry.causal_lm, config))
    arguments = TrainingArguments(
        output_dir=str(tmp_path), label_smoothing_factor=0.1, report_to="none", use_cpu=True
    )
    ids = torch.stack(ROWS[:4])
    got = Trainer(model=bare, args=arguments).compute_loss(model, {"input_ids": ids, "labels": ids})
    log_p = bare(ids).logits[:, :-1].log_softmax(-1)
    own = -log_p.gather(-1, ids[:, 1:, None]).mean()
    torch.testing.assert_close(got, 0.9 * own - 0.1 * log_p.mean())


def test_a_model_card_names_the_task(entry, tmp_path):
    heads = {
        "text-generation": entry.causal_lm,
        "text-classification": entry.sequence_classification,
        "token-classification": entry.token_classification,
        "question-answering": entry.question_answering,
    }
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to="none", use_cpu=True)
    for task, head in heads.items():
        trainer = Trainer(model=make(head, entry.config(**TINY)), args=arguments)
        assert TrainingSummary.from_trainer(trainer).tasks == task


def test_serving_takes_a_causal_lm_for_a_language_model(entry):
    manager = pytest.importorskip("transformers.cli.serving.model_manager")
    model = make(entry.causal_lm, entry.config(**TINY))
    modality = manager.ModelManager.get_model_modality(model)
    assert modality == manager.Modality.LLM


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
