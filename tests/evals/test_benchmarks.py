"""`layermem eval` from checkpoints and records to its result and page, and what it refuses."""

import importlib.util
import json
import logging
import shutil
from functools import partial

import pytest
import torch
import transformers
from eval_fixtures import docs
from stories import FOLDER, needs_stories, stories_model, stories_tokenizer
from tiny import TINY
from tokenizers import Tokenizer, models, pre_tokenizers

import layermem
from layermem_bench import cli
from layermem_bench.data.tokenizers import load_tokenizer
from layermem_bench.evals import benchmarks
from layermem_bench.evals.benchmarks import MEAN, RIGHT, RIGHT_NORM
from layermem_bench.evals.prepared_tasks import local_definition
from layermem_bench.evals.task_catalog import TASKS
from layermem_bench.evals.task_records import expected_file
from layermem_bench.results.eval import EvalResult
from layermem_bench.results.files import read_result

needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval (the extra eval) is not installed"
)
REAL = FOLDER.parents[1] / "evals"
FIVE = ("arc_easy", "copa", "hellaswag", "qnli", "bigbench_implicit_relations_multiple_choice")


def save_llama(path, seed=1, tokenizer=None, **fields):
    torch.manual_seed(seed)
    sizes = {**TINY, "vocab_size": 300, "max_position_embeddings": 2048, **fields}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(path)
    (tokenizer or load_tokenizer("bytes")).save_pretrained(path)
    return path


def write_records(folder, names=TASKS, count=12, train=True):
    folder.mkdir(exist_ok=True)
    for name in names:
        task = TASKS[name]
        for split, items in docs(name, count).items():
            if split == task.split or train:
                file = expected_file(task).replace(f"_{task.split}.", f"_{split}.")
                lines = "".join(json.dumps(item) + "\n" for item in items)
                (folder / file).write_text(lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Records that lm-eval has read are kept nowhere else."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def evaluate(folder, *words):
    cli.main(["eval", *map(str, words), "--out", str(folder / "out")])
    return read_result(EvalResult, folder / "out")


@needs_lm_eval
def test_two_models_are_compared_and_a_second_start_goes_on(llama, tmp_path, monkeypatch, capsys):
    other = save_llama(tmp_path / "other", seed=2)
    records = write_records(tmp_path / "records", ["copa", "arc_easy"])
    command = (llama, other, "--tasks", "copa,arc_easy", "--records", records, "--seeds", "2")
    result = evaluate(tmp_path, *command)
    shown = capsys.readouterr().out
    assert "against llama" in shown and MEAN in shown
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "Evaluation of llama and other" in page and "acc_norm" in page
    assert "75.8% / 74.0% / 75.2%" in page
    rows = result.of(RIGHT)
    copa, arc = rows["copa"], rows["arc_easy"]
    assert (copa.scores["llama"].count, copa.unit, copa.chance) == (12, "items", 0.5)
    assert copa.about["items from"] == "copa_validation.jsonl"
    assert copa.about["examples from"] == "copa_train.jsonl"
    labels = [item["label"] for item in docs("copa")["validation"]]
    assert copa.most_frequent == max(labels.count(0), labels.count(1)) / 12
    assert {model: round(100 * share, 2) for model, share in copa.paper.items()} == {
        **{"LLaMA": 75.8, "HC": 74.0, "LIMe": 75.2},
    }
    assert set(result.of(RIGHT_NORM)) == {"arc_easy"}
    score, first, difference = arc.scores["other"], arc.scores["llama"], arc.differences["other"]
    assert len(score.repeats) == 2 and score.value == pytest.approx(sum(score.repeats) / 2)
    assert difference.value == pytest.approx(score.value - first.value)
    assert difference.interval and 0 <= difference.p <= 1
    both = (rows[name].scores["other"].value for name in ("copa", "arc_easy"))
    assert rows[MEAN].scores["other"].value == pytest.approx(sum(both) / 2)
    # Nothing is asked again: no weights are read. Another seed is all that is asked.
    answers = sorted((tmp_path / "out" / "answers").iterdir())
    assert len(answers) == 2 * 2 * 2
    with monkeypatch.context() as patch:
        patch.setattr(benchmarks, "load_model", None)
        assert evaluate(tmp_path, *command).parts == result.parts
    more = evaluate(tmp_path, *command[:-1], "3")
    of_seeds = [each.of(RIGHT)["copa"].scores["other"].repeats for each in (more, result)]
    assert of_seeds[0][:2] == of_seeds[1]
    assert len(list((tmp_path / "out" / "answers").iterdir())) == 12


@needs_lm_eval
def test_answers_to_other_inputs_are_never_used(llama, tmp_path, monkeypatch):
    model, folder = shutil.copytree(llama, tmp_path / "llama"), tmp_path / "out" / "answers"
    records = write_records(tmp_path / "records", ["copa"], count=6)
    ask = partial(evaluate, tmp_path, model, "--tasks", "copa", "--records", records)
    ask("--seeds", "1")
    asked = 1
    assert len(list(folder.iterdir())) == asked
    # What few-shot examples are drawn from, the items, their number, shots, and the weights.
    lines = (records / "copa_train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (records / "copa_train.jsonl").write_text("".join(lines[1:]), encoding="utf-8")
    changes = [(), ("--limit", "5"), ("--shots", "2", "--truncate")]
    for change in changes:
        ask("--seeds", "1", *change)
        asked += 1
        assert len(list(folder.iterdir())) == asked
    save_llama(model, seed=3)
    ask("--seeds", "1")
    assert len(list(folder.iterdir())) == asked + 1
    # What computes them.
    for module in ("layermem_bench.evals.benchmarks", "torch", "transformers"):
        with monkeypatch.context() as patch:
            patch.setattr(f"{module}.__version__", "9.9.9")
            ask("--seeds", "1")
        asked += 1
        assert len(list(folder.iterdir())) == asked + 1
    # Our code, whose release has the same number until the next one.
    with monkeypatch.context() as patch:
        patch.setattr(benchmarks, "sources_digest", lambda: "another")
        ask("--seeds", "1")
    asked += 1
    assert len(list(folder.iterdir())) == asked + 1
    # Which records are items, and which are examples.
    (items,) = (path for path in records.iterdir() if path.name != "copa_train.jsonl")
    first, *rest = (records / "copa_train.jsonl").read_text().splitlines(keepends=True)
    (records / "copa_train.jsonl").write_text("".join(rest), encoding="utf-8")
    items.write_text(items.read_text(encoding="utf-8") + first, encoding="utf-8")
    ask("--seeds", "1")
    asked += 1
    assert len(list(folder.iterdir())) == asked + 1
    # Without examples there is nothing to draw, and one seed is all.
    without = ask("--shots", "0").of(RIGHT)["copa"].scores["llama"]
    assert len(without.repeats) == 1
    # A file of this name that holds other answers is not taken for them.
    named = sorted(folder.iterdir())
    for path in named:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["key"]["lm_eval"] = "0"
        path.write_text(json.dumps(content), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(benchmarks, "load_model", None)
        with pytest.raises(SystemExit, match="NoneType"):
            ask("--seeds", "1")


@needs_lm_eval
def test_long_prompts_are_refused_or_cut_and_counted(tmp_path, monkeypatch):
    """By what the model reads, or by what it is given at most."""
    short = save_llama(tmp_path / "short", max_position_embeddings=400)
    records = write_records(tmp_path / "records", ["qnli"], count=6, train=False)
    asked = ("--tasks", "qnli", "--records", records, "--seeds", "1")
    from layermem_bench.evals import harness

    seen = []
    call = harness.CountingModel._model_call

    def spy(self, ids, *args, **kwargs):
        seen.append(ids.shape[1])
        return call(self, ids, *args, **kwargs)

    monkeypatch.setattr(harness.CountingModel, "_model_call", spy)

    def ask(*options):
        seen.clear()
        result = evaluate(tmp_path, short, *asked, *options)
        return result.of(RIGHT)["qnli"].scores["short"].counts, max(seen)

    for options, given in (((), 400), (("--max-length", "64"), 64)):
        message = f"prompts are longer than the {given} tokens that the model is given "
        with pytest.raises(SystemExit, match=message + r"\(the longest has \d+"):
            ask(*options)
        cut, longest = ask(*options, "--truncate")
        assert cut["prompts cut"] == cut["prompts"] == 12 and longest == given
    whole, longest = ask("--shots", "0")
    assert "prompts cut" not in whole and 64 < longest < 400
    for more in ("401", "0"):
        with pytest.raises(SystemExit, match="--max-length"):
            ask("--shots", "0", "--max-length", more)


@needs_lm_eval
def test_unknown_tokens_and_ties_are_counted(tmp_path, capsys):
    raw = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "Answer:": 2}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", eos_token="</s>"
    )
    model = save_llama(tmp_path / "words", tokenizer=words)
    records = write_records(tmp_path / "records", ["qnli"], count=6, train=False)
    ask = partial(evaluate, tmp_path, model, "--tasks", "qnli", "--records", records)
    counts = ask("--seeds", "1").of(RIGHT)["qnli"].scores["words"].counts
    # Yes and no are the same token.
    assert counts["ties"] == 6 and counts["unknown tokens"] > 500
    assert "unknown tokens" in capsys.readouterr().out


@needs_lm_eval
def test_what_is_refused(llama, tmp_path, monkeypatch):
    records = write_records(tmp_path / "records", ["qnli", "copa"], count=3, train=False)
    refused = partial(evaluate, tmp_path)
    some = ["--tasks", "qnli", "--records", records]
    with pytest.raises(SystemExit, match="name checkpoints and tasks: layermem eval CHECKPOINT"):
        refused(*some)
    with pytest.raises(SystemExit, match="unknown task 'qnly'; did you mean qnli?"):
        refused(llama, "--tasks", "qnly")
    for option in ("--seeds", "--limit", "--batch-size"):
        with pytest.raises(SystemExit, match=f"{option} must be at least 1, got 0"):
            refused(llama, *some, option, "0")
    with pytest.raises(SystemExit, match="qnli has 3 records to draw examples from, too few for 3"):
        refused(llama, *some)
    lines = (records / "qnli_validation.jsonl").read_text(encoding="utf-8")
    first, *others = lines.splitlines(keepends=True)
    # An item is no example of itself, nor are its equals.
    for equal, shots in ([first] * 5, 1), ([*[first] * 3, *others], 3):
        (records / "qnli_validation.jsonl").write_text("".join(equal), encoding="utf-8")
        with pytest.raises(SystemExit, match=rf"too few for {shots} shots: an item is equal to \d"):
            refused(llama, *some, "--shots", str(shots))
    (records / "qnli_train.jsonl").write_text(2 * lines, encoding="utf-8")
    with pytest.raises(SystemExit, match="6 of the 6 records of qnli that examples are drawn from"):
        refused(llama, *some)
    (records / "copa_validation.jsonl").write_text('{"premise": "p"}\n', encoding="utf-8")
    with pytest.raises(SystemExit, match=r"copa_validation.jsonl, line 1 has no field 'question'"):
        refused(llama, "--tasks", "copa", "--records", records)
    with pytest.raises(SystemExit, match=r"three_objects_.* local records: the hub has none of it"):
        refused(llama, "--tasks", "logical_deduction_three_objects")
    # The hub is not asked for.
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as raised:
        refused(llama, "--tasks", "wic")
    message = str(raised.value)
    assert "wic needs the data set aps/super_glue wic of the hub, which cannot be fetc" in message
    assert "--records wic=wic_validation.jsonl" in message and "\n" not in message
    (llama_without := shutil.copytree(llama, tmp_path / "bare")).joinpath("tokenizer.json").unlink()
    (llama_without / "tokenizer_config.json").unlink()
    with pytest.raises(SystemExit, match=r"bare has no tokenizer .* save the one that it was"):
        refused(llama_without, *some)


@needs_lm_eval
def test_weights_that_are_not_finite_are_refused(llama, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(llama)
    model.model.norm.weight.data.fill_(float("nan"))
    broken = tmp_path / "broken"
    model.save_pretrained(broken)
    load_tokenizer("bytes").save_pretrained(broken)
    records = write_records(tmp_path / "records", ["wnli"], count=6)
    with pytest.raises(
        SystemExit, match=r"log-probability of ' False' is nan: the model's weights"
    ):
        evaluate(tmp_path, broken, "--tasks", "wnli", "--records", records)


def test_without_lm_eval_the_extra_is_named(llama, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SystemExit, match=r"lm-eval is not installed; .* pip install layermem\[eval\]"
    ):
        evaluate(tmp_path, llama, "--tasks", "qnli")


def test_the_list_says_what_runs_offline(tmp_path, capsys):
    records = write_records(tmp_path / "records", ["wic"], train=False)
    cli.main(["list", "evals", "--records", str(records)])
    shown = capsys.readouterr().out
    assert "wic_validation" in shown and "hub:" in shown and "not on the hub" in shown
    assert "56.15" in shown and "none; would be" in shown


def lm_eval_scores(model, names, folder, limit):
    """Return the scores that lm-eval finds, as its command would, with the same items."""
    import lm_eval

    definitions = folder / "definitions"
    definitions.mkdir()
    for name in names:
        (written,) = (folder / "out" / "records").glob(f"{name}-{TASKS[name].split}-*")
        files = {TASKS[name].split: written}
        for train in written.parent.glob(f"{name}-train-*"):
            files["train"] = train
        # YAML reads JSON.
        definition = json.dumps(local_definition(TASKS[name], files))
        (definitions / f"{name}.yaml").write_text(definition, encoding="utf-8")
    manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=definitions)
    results = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(model), "dtype": "float32"},
        tasks=list(names),
        task_manager=manager,
        num_fewshot=3,
        limit=limit,
        device="cpu",
        bootstrap_iters=0,
        fewshot_random_seed=0,
    )["results"]
    return {name: (results[name]["acc,none"], results[name].get("acc_norm,none")) for name in names}


def save_plain(model, tokenizer, path):
    """Save our plain decoder with the weights of a LLaMA."""
    config = layermem.PlainConfig(**model.config.to_dict())
    plain = layermem.PlainForCausalLM(config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(path)
    tokenizer.save_pretrained(path)


@needs_lm_eval
@pytest.mark.slow
@pytest.mark.parametrize("which", ["random", pytest.param("stories260K", marks=needs_stories)])
def test_scores_are_those_of_lm_eval(which, tmp_path, monkeypatch):
    if which == "random":
        save_llama(tmp_path / "llama")
        tokenizer = load_tokenizer("bytes")
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "llama")
    else:
        model, tokenizer = stories_model(), stories_tokenizer()
        model.save_pretrained(tmp_path / "llama")
        tokenizer.save_pretrained(tmp_path / "llama")
    save_plain(model, tokenizer, tmp_path / "plain")
    monkeypatch.setattr(logging.getLogger("lm_eval"), "level", logging.ERROR)
    # The real records are where the checkpoint is.
    real = which == "stories260K"
    limit = 6 if real else 10
    records = REAL if real else write_records(tmp_path / "records", FIVE, count=30)
    result = evaluate(
        *(tmp_path, tmp_path / "llama", tmp_path / "plain", "--tasks", ",".join(FIVE)),
        *("--records", records, "--seeds", "1", "--limit", limit, "--truncate"),
    )
    theirs = lm_eval_scores(tmp_path / "llama", FIVE, tmp_path, limit)
    for name in FIVE:
        row, norm = result.of(RIGHT)[name], result.of(RIGHT_NORM).get(name)
        ours = [
            (row.scores[model].value, None if norm is None else norm.scores[model].value)
            for model in ("llama", "plain")
        ]
        assert ours == [theirs[name], theirs[name]]
        assert (row.differences["plain"].value, row.differences["plain"].p) == (0, 1)
    # Scores that are all the same, or all right, would say little.
    assert len({acc for acc, _ in theirs.values()}) > 2
