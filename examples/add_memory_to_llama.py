"""Adds layer memory to a LLaMA and fine-tunes it with transformers' Trainer.

Before the first step the new model computes what the LLaMA computes: its routers read their own
layer only. Without a path a tiny LLaMA with random weights is built, and all takes half a minute on
one CPU core. With the path or hub name of a trained LLaMA, give a text file of your own too.

    python examples/add_memory_to_llama.py
    python examples/add_memory_to_llama.py --llama path/to/llama --text notes.txt --steps 500
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import layermem
from layermem_bench.config.run import Optim
from layermem_bench.run.optimizer import parameter_groups
from layermem_bench.text.tokenizers import load_tokenizer


def tiny_llama(vocab_size: int) -> LlamaForCausalLM:
    """Return a LLaMA of 4 layers with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    return LlamaForCausalLM(config)


def text_blocks(text: str, tokenizer, length: int) -> list[dict[str, list[int]]]:
    """Return a text as blocks of ``length`` tokens, which are their own labels."""
    tokens = tokenizer(text)["input_ids"]
    blocks = [tokens[i : i + length] for i in range(0, len(tokens) - length + 1, length)]
    return [{"input_ids": block, "labels": block} for block in blocks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", help="path or hub name of a LLaMA; default: a tiny random one")
    parser.add_argument("--text", type=Path, default=Path(json.__file__), help="text file")
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of all but routers")
    parser.add_argument("--out", type=Path, default=Path("runs/lime-llama"), help="folder to write")
    options = parser.parse_args()

    if options.llama is None:
        tokenizer = load_tokenizer("bytes")
        llama = tiny_llama(len(tokenizer))
    else:
        tokenizer = AutoTokenizer.from_pretrained(options.llama)
        llama = AutoModelForCausalLM.from_pretrained(options.llama)
    model = layermem.LimeForCausalLM.from_llama(llama)

    blocks = text_blocks(options.text.read_text(encoding="utf-8"), tokenizer, options.length)
    ids = torch.tensor([blocks[0]["input_ids"]])
    with torch.no_grad():
        change = (model.eval()(ids).logits - llama.eval()(ids).logits).abs().max().item()
    print(f"largest change of a logit before training: {change:.1e}")

    # Routers have a learning rate of their own, which the variant states.
    groups = parameter_groups(model, model.variant.overrides, Optim(lr=options.lr))
    arguments = TrainingArguments(
        output_dir=str(options.out / "checkpoints"),
        max_steps=options.steps,
        per_device_train_batch_size=4,
        logging_steps=max(1, options.steps // 5),
        save_strategy="no",
        report_to=[],
    )
    optimizer = torch.optim.AdamW(groups)
    trainer = Trainer(model, arguments, train_dataset=blocks, optimizers=(optimizer, None))
    trainer.train()

    for row in model.router_summary():
        print(row)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    print(f"saved in {options.out}: layermem.LimeForCausalLM.from_pretrained loads it")


if __name__ == "__main__":
    main()
