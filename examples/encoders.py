"""Attaches layer memory to an encoder and fine-tunes it on labelled records, as of GLUE.

The same encoder is trained twice, with memory and without. By default it is a tiny one with new
weights, on records that the script makes up; all takes some ten seconds on one CPU core.

    python examples/encoders.py --model roberta
    python examples/encoders.py --model path/to/bert --lr 5e-5 --data qnli_train.tsv
"""

import argparse
import random

import numpy as np
import torch
from datasets import Dataset, load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
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
THINGS, PLACES = "cat dog fox owl bear wolf", "near under behind above"
TEXTS = ("sentence", "sentence1", "sentence2", "question", "premise", "hypothesis", "text")


def made_up_records(count: int) -> Dataset:
    """Return records such as "was it a fox ?", "under the tree sat no fox ." and "no"."""
    draw, rows = random.Random(0), []
    for number in range(count):
        thing, place = (draw.choice(words.split()) for words in (THINGS, PLACES))
        label, word = (("yes", "a"), ("no", "no"))[number % 2]
        sentence = f"{place} the tree sat {word} {thing} ."
        rows.append({"question": f"was it a {thing} ?", "sentence": sentence, "label": label})
    return Dataset.from_list(rows)


def read_records(path: str) -> Dataset:
    """Return the records of a file: JSON lines, or a table with a header (.tsv), as of GLUE."""
    if path.endswith(".tsv"):
        return load_dataset("csv", data_files=path, split="train", delimiter="\t", quoting=3)
    return load_dataset("json", data_files=path, split="train")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bert", help=f"{', '.join(NEW)}, a folder or hub name")
    parser.add_argument("--data", help="records: texts and label; default: made up")
    parser.add_argument("--validation", help="validation records; default: a fifth of the others")
    parser.add_argument("--steps", type=int, default=60, help="training steps")
    parser.add_argument("--lr", type=float, default=5e-3, help="learning rate of all but routers")
    parser.add_argument("--router-lr", type=float, default=5e-3, help="learning rate of routers")
    parser.add_argument("--out", default="runs/encoder", help="folder of the model with memory")
    options = parser.parse_args()

    records = read_records(options.data) if options.data else made_up_records(300)
    sides = records.train_test_split(0.2, seed=0)
    if options.validation:
        sides = {"train": records, "test": read_records(options.validation)}
    fields = [name for name in records.column_names if name in TEXTS][:2]
    classes = sorted(set(map(str, sides["train"]["label"])))

    if options.model in NEW:
        texts = (" ".join(row[name] for name in fields) for row in sides["train"])
        tokenizer = BertTokenizerFast().train_new_from_iterator(texts, 4000)
    else:
        tokenizer = AutoTokenizer.from_pretrained(options.model)

    def encode(row: dict) -> dict:
        encoded = tokenizer(*(row[name] for name in fields), truncation=True, max_length=128)
        return {**encoded, "labels": classes.index(str(row["label"]))}

    train, test = (
        sides[name].map(encode, remove_columns=records.column_names) for name in ("train", "test")
    )
    for memory in (False, True):
        set_seed(0)
        model = make_model(options.model, tokenizer, len(classes))
        groups = [{"params": list(model.parameters())}]
        if memory:
            layermem.attach(model)
            groups.append({"params": layermem.router_parameters(model), "lr": options.router_lr})
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=f"{options.out}/checkpoints",
                max_steps=options.steps,
                per_device_train_batch_size=16,
                save_strategy="no",
                report_to="none",
                dataloader_pin_memory=torch.cuda.is_available(),
                disable_tqdm=True,
            ),
            train_dataset=train,
            eval_dataset=test,
            data_collator=DataCollatorWithPadding(tokenizer),
            optimizers=(torch.optim.AdamW(groups, lr=options.lr, weight_decay=0.0), None),
            compute_metrics=lambda p: {
                "accuracy": np.mean(p.predictions.argmax(-1) == p.label_ids)
            },
        )
        trainer.train()
        accuracy = trainer.evaluate()["eval_accuracy"]
        print(f"{'with' if memory else 'without'} memory: accuracy {accuracy:.3f}")
    trainer.save_model(options.out)
    tokenizer.save_pretrained(options.out)
    again = load_attached(options.out, auto_class=AutoModelForSequenceClassification)
    trainer.model = trainer.model_wrapped = again.to(model.device)
    print(f"loaded again from {options.out}: accuracy {trainer.evaluate()['eval_accuracy']:.3f}")


def make_model(name: str, tokenizer, classes: int):
    """Return a pretrained encoder, or a tiny one with new weights, with a head for classes."""
    if name not in NEW:
        return AutoModelForSequenceClassification.from_pretrained(name, num_labels=classes)
    config = AutoConfig.for_model(
        NEW[name],
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=160,
        pad_token_id=tokenizer.pad_token_id,
        num_labels=classes,
    )
    return AutoModelForSequenceClassification.from_config(config)


if __name__ == "__main__":
    main()
