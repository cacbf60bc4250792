"""Attaches layer memory to an encoder and fine-tunes it to answer questions, as of SQuAD.

The same encoder is trained twice, with memory and without. By default it is a tiny one with new
weights, on questions that the script makes up; all takes some ten seconds on one CPU core. A text
is cut after 384 tokens. No answer, as in SQuAD 2.0, is the first token.

    python examples/squad.py --model deberta
    python examples/squad.py --model path/to/bert --lr 5e-5 --data train-v2.0.json
"""

import argparse
import json
import random
import re
import string
from collections import Counter
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    BertTokenizerFast,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

import layermem
from layermem.retrofit import load_attached

NEW = {"bert": "bert", "roberta": "roberta", "deberta": "deberta-v2"}
"""Names of new models, and their types."""
KINDS = {"colour": "red blue green", "animal": "owl fox cat", "city": "oslo rome lima"}
LONGEST = 30
"""Most tokens of an answer."""
CUT = {"truncation": "only_second", "max_length": 384}


def made_up_questions(count: int) -> list[dict]:
    """Return questions such as "near owl then red saw lima": "which animal ?", "owl"."""
    draw, rows = random.Random(0), []
    for _ in range(count):
        kinds = draw.sample(list(KINDS), 3)
        words = [draw.choice(KINDS[kind].split()) for kind in kinds]
        context = " ".join(f"{draw.choice(['near', 'then', 'saw'])} {word}" for word in words)
        answers = {"text": [words[0]], "answer_start": [context.index(words[0])]}
        rows.append({"context": context, "question": f"which {kinds[0]} ?", "answers": answers})
    return rows


def read_questions(path: str) -> list[dict]:
    """Return the questions of a file: SQuAD's own .json, or JSON lines."""
    text = Path(path).read_text(encoding="utf-8")
    if not path.endswith(".json"):
        return [json.loads(line) for line in text.splitlines()]
    rows = []
    for paragraph in (p for article in json.loads(text)["data"] for p in article["paragraphs"]):
        for each in paragraph["qas"]:
            names = ("text", "answer_start")
            answers = {name: [answer[name] for answer in each["answers"]] for name in names}
            rows.append({**each, "context": paragraph["context"], "answers": answers})
    return rows


def encode(row: dict, tokenizer) -> dict:
    """Return what the model reads of a question, and the first and last token of its answer."""
    encoded = tokenizer(row["question"], row["context"], **CUT)
    positions = 0, 0
    if row["answers"]["text"]:
        start, text = row["answers"]["answer_start"][0], row["answers"]["text"][0]
        ends = start, start + len(text) - 1
        tokens = [encoded.char_to_token(i, sequence_index=1) for i in ends]
        positions = (0, 0) if None in tokens else tokens
    return {**encoded, "start_positions": positions[0], "end_positions": positions[1]}


@torch.no_grad()
def answer(model, tokenizer, row: dict) -> str:
    """Return the piece of the text with the largest sum of its two logits; none where the first
    token has more."""
    inputs = tokenizer(row["question"], row["context"], return_tensors="pt", **CUT)
    outputs = model.eval()(**inputs.to(model.device))
    starts, ends = outputs.start_logits[0].cpu(), outputs.end_logits[0].cpu()
    tokens = [i for i, side in enumerate(inputs.sequence_ids()) if side == 1]
    scores = starts[tokens][:, None] + ends[tokens]
    allowed = torch.ones_like(scores).triu().tril(LONGEST - 1).bool()
    best = int(scores.masked_fill(~allowed, -torch.inf).argmax())
    first, last = (tokens[i] for i in divmod(best, len(tokens)))
    if starts[first] + ends[last] < starts[0] + ends[0]:
        return ""
    return row["context"][inputs.token_to_chars(first).start : inputs.token_to_chars(last).end]


def f1(given: str, gold: list[str]) -> float:
    """Return SQuAD's F1 of the words of an answer: the best over the gold answers."""

    def words(text: str) -> Counter:
        plain = text.lower().translate(str.maketrans("", "", string.punctuation))
        return Counter(re.sub(r"\b(a|an|the)\b", " ", plain).split())

    ours, scores = words(given), []
    for theirs in map(words, gold or [""]):
        common = 2 * (ours & theirs).total()
        scores.append(common / (ours + theirs).total() if ours and theirs else ours == theirs)
    return float(max(scores))


def make_model(name: str, tokenizer):
    """Return a pretrained encoder, or a tiny one with new weights, with a head for answers."""
    if name not in NEW:
        return AutoModelForQuestionAnswering.from_pretrained(name)
    config = AutoConfig.for_model(
        NEW[name],
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        pad_token_id=tokenizer.pad_token_id,
    )
    return AutoModelForQuestionAnswering.from_config(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bert", help=f"{', '.join(NEW)}, a folder or hub name")
    parser.add_argument("--data", help="questions: .json of SQuAD or .jsonl; default: made up")
    parser.add_argument("--validation", help="validation questions; default: a fifth of the others")
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate of all but routers")
    parser.add_argument("--router-lr", type=float, default=5e-3, help="learning rate of routers")
    parser.add_argument("--out", default="runs/reader", help="folder of the model with memory")
    options = parser.parse_args()

    train = read_questions(options.data) if options.data else made_up_questions(300)
    if options.validation:
        test = read_questions(options.validation)
    else:
        train, test = train[len(train) // 5 :], train[: len(train) // 5]
    if options.model in NEW:
        texts = (f"{row['question']} {row['context']}" for row in train)
        tokenizer = BertTokenizerFast().train_new_from_iterator(texts, 4000)
    else:
        tokenizer = AutoTokenizer.from_pretrained(options.model)

    def score(model) -> float:
        scores = [f1(answer(model, tokenizer, row), row["answers"]["text"]) for row in test]
        return sum(scores) / len(scores)

    for memory in (False, True):
        set_seed(0)
        model = make_model(options.model, tokenizer)
        groups = [{"params": list(model.parameters())}]
        if memory:
            layermem.attach(model)
            groups.append({"params": layermem.router_parameters(model), "lr": options.router_lr})
        arguments = TrainingArguments(
            output_dir=f"{options.out}/checkpoints",
            max_steps=options.steps,
            per_device_train_batch_size=16,
            save_strategy="no",
            report_to="none",
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=[encode(row, tokenizer) for row in train],
            data_collator=DataCollatorWithPadding(tokenizer),
            optimizers=(torch.optim.AdamW(groups, lr=options.lr, weight_decay=0.0), None),
        )
        trainer.train()
        print(f"{'with' if memory else 'without'} memory: F1 {score(model):.3f}")
    trainer.save_model(options.out)
    tokenizer.save_pretrained(options.out)
    again = load_attached(options.out, auto_class=AutoModelForQuestionAnswering)
    print(f"loaded again from {options.out}: F1 {score(again):.3f}")


if __name__ == "__main__":
    main()
