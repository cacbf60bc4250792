"""Distillation: a run learns a teacher's predictions beside its own labels.

    loss = (1 - w) L + w D        L: the loss of the run, w: the teacher's weight
                                  D: mean over labels of KL(teacher || model), in nats

Hinton et al., 2015 (arXiv 1503.02531), at temperature 1: the loss of both is in nats a label. The
teacher is read with the same inputs, computes no gradients, and is no part of what is saved.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from layermem.ops.loss import IGNORE_INDEX
from layermem_bench.analysis.checkpoints import Checkpoint, load_model
from layermem_bench.config.run import Teacher
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.train.metrics import LoggedMeans, forward_flops


class Distillation:
    """A teacher, and the divergences from it that no row has yet."""

    def __init__(self, config: Teacher, tokenizer: Any, vocabulary: int, args: Any) -> None:
        self.weight, self.means = config.weight, LoggedMeans("teacher", "teacher_divergence")
        name = str(config.model)
        try:
            theirs = load_tokenizer(name)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"teacher.model={name} has no tokenizer ({str(error).splitlines()[0]}): name the "
                "folder of a saved model (of a run: RUN/final) that has the run's"
            ) from error
        if _splitting(theirs) != _splitting(tokenizer):
            raise ValueError(
                f"teacher.model={name} has another tokenizer than the run, so that its predictions "
                "are of other tokens: name a teacher with the run's tokenizer"
            )
        dtype = torch.bfloat16 if args.bf16 else torch.float32
        checkpoint = Checkpoint(name=name, location=name, tokenizer=tokenizer, run=None)
        teacher = load_model(checkpoint, with_head=True, dtype=dtype)
        predicted = teacher.config.get_text_config().vocab_size
        if predicted != vocabulary:
            raise ValueError(
                f"teacher.model={name} predicts one of {predicted} tokens, the run's model one of "
                f"{vocabulary}: name a teacher with as many"
            )
        self._teacher = teacher.to(args.device).eval().requires_grad_(False)
        self._keeps_apart = False

    def flops_per_token(self, tokens: int) -> int:
        """Return those of the teacher's forward."""
        return forward_flops(self._teacher, tokens)

    def mixed(
        self, loss: Tensor, logits: Tensor, inputs: Mapping[str, Tensor], share: float
    ) -> Tensor:
        """Return the loss of a step with the teacher's part.

        ``logits`` [B, T, V] are the model's; ``share``: what a label of the batch weighs in
        ``loss``, which is their sum so weighted.
        """
        given = {name: value for name, value in inputs.items() if name != "labels"}
        if "position_ids" in given and not self._keeps_apart:
            self._check_documents()
        with torch.no_grad():
            theirs = self._teacher(**given, use_cache=False).logits
        labelled = inputs["labels"][:, 1:] != IGNORE_INDEX
        ours, theirs = (each[:, :-1][labelled].float().log_softmax(-1) for each in (logits, theirs))
        divergence = nn.functional.kl_div(ours, theirs, reduction="sum", log_target=True)
        self.means.add(divergence, weight=int(labelled.sum()))
        return (1 - self.weight) * loss + self.weight * share * divergence

    @torch.no_grad()
    def _check_documents(self) -> None:
        """Raise if the teacher's attention crosses from one document of a row to the next."""
        second = torch.arange(4, device=self._teacher.device)
        positions = second.repeat(2)[None]
        logits = [
            self._teacher(
                input_ids=torch.cat([second + first, second])[None],
                position_ids=positions,
                use_cache=False,
            ).logits[:, 4:]
            for first in (1, 2)
        ]
        # To the last bit: what is masked weighs exactly nothing.
        if not torch.equal(*logits):
            raise ValueError(
                f"{type(self._teacher).__name__}, the teacher, does not keep the documents of a "
                "row apart, as data.isolate_documents asks: it would be heard on other text than "
                "the run's model reads; name another teacher, or leave data.isolate_documents out"
            )
        self._keeps_apart = True


def _splitting(tokenizer: Any) -> list[Any]:
    """Return what decides into which tokens a text is split: the words, and how they are found."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    steps = (backend.get(part) for part in ("normalizer", "pre_tokenizer", "model"))
    return [tokenizer.get_vocab(), *steps]
