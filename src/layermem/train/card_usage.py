"""The part of a model card that shows how the model is loaded and used.

It does not know: the other parts of the card, what was trained.
"""

import json
from typing import Any

from layermem.config import Run
from layermem.runs import RunFolder


def _is_attached(run: Run) -> bool:
    return run.host.model is not None and run.host.memory != "none"


def usage(run: Run, folder: RunFolder, model: Any) -> str:
    """Return code that loads the model and has it continue a prompt of its test set."""
    is_attached = _is_attached(run)
    if run.records.kind == "question-answering":
        return _usage_of_questions(run, folder, is_attached=is_attached)
    if run.records.source is not None:
        return _usage_of_classifier(folder, model, is_attached=is_attached)
    prompt = "The"
    load = "load_attached" if is_attached else "AutoModelForCausalLM.from_pretrained"
    imports = (
        """from layermem.retrofit import load_attached
from transformers import AutoTokenizer"""
        if is_attached
        else """import layermem  # makes the model known to transformers
from transformers import AutoModelForCausalLM, AutoTokenizer"""
    )
    if folder.attempts.exists():
        with folder.attempts.open(encoding="utf-8") as file:
            prompt = json.loads(file.readline())["prompt"]
    return f"""```python
{imports}

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}(path)
prompt = {_literal(prompt)}
# As in training: without special tokens, which some tokenizers add at both ends.
inputs = tokenizer(
    prompt, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False
)
tokens = model.generate(**inputs, max_new_tokens=64, do_sample=False)
print(tokenizer.decode(tokens[0]))
```"""


def _usage_of_classifier(folder: RunFolder, model: Any, *, is_attached: bool) -> str:
    """Return code that loads the model and has it say the class of a validation record."""
    load = "AutoModelForSequenceClassification.from_pretrained(path)"
    extra = ""
    if is_attached:
        extra = "from layermem.retrofit import load_attached\n"
        load = "load_attached(path, auto_class=AutoModelForSequenceClassification)"
    with folder.attempts.open(encoding="utf-8") as file:
        texts = list(map(_literal, json.loads(file.readline())["texts"]))
    separator = json.loads(folder.records.read_text(encoding="utf-8"))["separator"]
    inputs = ", ".join(texts)
    has_segments = separator is None and getattr(model.config, "type_vocab_size", 0) > 1
    if separator is not None:
        # As in training: this tokenizer puts nothing between two texts.
        inputs = f" {_literal(separator)} ".join(texts) + ", add_special_tokens=False"
    inputs += f", return_token_type_ids={has_segments}"
    return f"""```python
{extra}from transformers import AutoModelForSequenceClassification, AutoTokenizer

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}
inputs = tokenizer({inputs}, return_tensors="pt")
print(model.config.id2label[int(model(**inputs).logits.argmax())])
```"""


def _usage_of_questions(run: Run, folder: RunFolder, *, is_attached: bool) -> str:
    """Return code that loads the model and has it answer a validation question."""
    load = "AutoModelForQuestionAnswering.from_pretrained(path)"
    extra = ""
    if is_attached:
        extra = "from layermem.retrofit import load_attached\n"
        load = "load_attached(path, auto_class=AutoModelForQuestionAnswering)"
    with folder.predictions.open(encoding="utf-8") as file:
        first = json.loads(file.readline())
    records = run.records
    return f"""```python
{extra}from layermem.train.learning.questions import answer_questions
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

path = "path/to/this/folder"
tokenizer = AutoTokenizer.from_pretrained(path)
model = {load}
question = {_literal(first["question"])}
context = {_literal(first["context"])}
(answer,) = answer_questions(
    model,
    tokenizer,
    [(question, context)],
    max_length={records.max_length},
    stride={records.stride},
    longest_answer={records.longest_answer},
    unanswerable={records.unanswerable},
)
print(answer.text)
```"""


def _literal(text: str) -> str:
    """Return a text as a Python literal in double quotes."""
    return json.dumps(text, ensure_ascii=False)
