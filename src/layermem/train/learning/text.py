"""Learning text: blocks of tokens, whose loss is on every next token, judged by that loss alone.

What judges a batch of tokens and loads a model of tokens here does so for problems too.

Letters: B sequences, T tokens, V words of the vocabulary.
"""

from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from layermem.config import Run
from layermem.data.blocks import Blocks
from layermem.data.preparing import prepare
from layermem.runs import RunFolder
from layermem.train.host_models import load_host
from layermem.train.metrics import validation_row
from layermem.train.model_card import Learnt, literal
from layermem.train.sequences import IGNORED
from layermem.train.setup import build_model, load_run_tokenizer


@final
class TextLearning:
    """What a run on text learns."""

    step_loss = save = None

    def __init__(self, run: Run) -> None:
        self.run, self.tokenizer = run, load_run_tokenizer(run)
        train_tokens, validation_tokens = prepare(run.data, self.tokenizer)
        size, isolate = run.data.block_size, run.data.isolate_documents
        blocks = partial(Blocks, block_size=size, isolate=isolate)
        self.train_data = blocks(train_tokens)
        self.validation_data = blocks(validation_tokens, at_most=run.eval_blocks)
        self.collate = Blocks.collate

    def load_model(self) -> Any:
        return load_token_model(self.run, self.tokenizer)

    def judge(self, model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
        return judge_tokens(model, batch, loss_chunk)

    def metrics(self, model: Any, loss: float, judged: Tensor) -> dict[str, float]:
        return validation_row(loss)

    def describe(self, model: Any, folder: RunFolder) -> Learnt:
        data = self.run.data
        names = ", ".join(filter(None, (data.source, data.subset, data.revision)))
        return Learnt(
            task="text-generation",
            data=f"{names}; blocks of {data.block_size} tokens",
            unit="token",
            usage=usage_of_decoder(self.run, "The"),
        )


def usage_of_decoder(run: Run, prompt: str) -> str:
    """Return code that loads the model and has it continue a prompt."""
    load, imports = "AutoModelForCausalLM.from_pretrained", "AutoModelForCausalLM, AutoTokenizer"
    first = "import layermem  # makes the model known to transformers"
    if run.host.model is not None and run.host.memory != "none":
        load, imports = "load_attached", "AutoTokenizer"
        first = "from layermem.retrofit import load_attached"
    return f"""{first}
from transformers import {imports}

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}(path)
prompt = {literal(prompt)}
# As in training: without special tokens, which some tokenizers add at both ends.
inputs = tokenizer(
    prompt, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False
)
tokens = model.generate(**inputs, max_new_tokens=64, do_sample=False)
print(tokenizer.decode(tokens[0]))"""


def load_token_model(run: Run, tokenizer: Any) -> Any:
    """Return the model of a run that predicts tokens: of transformers, or a decoder of ours."""
    return load_host(run) if run.host.model is not None else build_model(run, tokenizer)


def judge_tokens(model: Any, batch: dict[str, Tensor], loss_chunk: int) -> Tensor:
    """Return the sum of the losses and the number of labels of each sequence [B, 2]."""
    labels = batch.pop("labels")
    if loss_chunk:
        output = model(**batch, labels=labels, loss_chunk=loss_chunk, use_cache=False)
        return _sum_by_sequence(output.token_losses, labels)
    return sequence_losses(model(**batch, use_cache=False).logits, labels)


def sequence_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the losses and the number of labels of each sequence [B, 2].

    ``logits`` [B, T, V] predict the next token; ``labels`` [B, T] are the tokens themselves, with
    -100 where a token has no loss.
    """
    next_tokens = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    # In float32, as in training.
    token_losses = nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), next_tokens.flatten(), reduction="none"
    )
    return _sum_by_sequence(token_losses.view_as(next_tokens), labels)


def _sum_by_sequence(token_losses: Tensor, labels: Tensor) -> Tensor:
    # A loss is zero where a token has no label.
    return torch.stack([token_losses.sum(1), (labels[:, 1:] != IGNORED).sum(1)], dim=1)
