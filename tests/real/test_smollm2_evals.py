"""SmolLM2 135M under the project's own evaluation: what memory at its start changes is nothing."""

import itertools
import json
import lzma
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import layermem
from layermem_bench.cli import main

pytestmark = pytest.mark.real
DATA = Path(__file__).parents[3] / "shared" / "data"
# Every 500th of the 67,000 pairs: two of each paradigm.
EVERY = 500


@pytest.fixture(scope="module")
def attached_folder(smollm2_folder, tmp_path_factory):
    """A saved model with memory at its start."""
    folder = tmp_path_factory.mktemp("models") / "attached"
    model = layermem.attach(AutoModelForCausalLM.from_pretrained(smollm2_folder))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(smollm2_folder).save_pretrained(folder)
    return folder


@pytest.mark.skipif(not DATA.exists(), reason=f"BLiMP and textbooks are not in {DATA}")
def test_perplexity_and_grammar_are_equal(smollm2_folder, attached_folder, tmp_path):
    with lzma.open(DATA / "evals" / "blimp.jsonl.xz", "rt", encoding="utf-8") as lines:
        pairs = list(itertools.islice(lines, 0, None, EVERY))
    (tmp_path / "blimp.jsonl").write_text("".join(pairs), encoding="utf-8")
    with open(DATA / "lm" / "openstax_small_valid.jsonl", encoding="utf-8") as lines:
        text = json.loads(next(lines))["text"][:6000]
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}), encoding="utf-8")
    tasks = [f"ppl={tmp_path / 'text.jsonl'}", f"blimp={tmp_path / 'blimp.jsonl'}"]
    out = tmp_path / "eval"
    models = [str(smollm2_folder), str(attached_folder)]
    main(["eval", *models, "--tasks", *tasks, "--context", "256", "--out", str(out)])
    result = json.loads((out / "eval.json").read_text(encoding="utf-8"))
    rows = [row for part in result["parts"] for row in part["rows"]]
    assert {"perplexity", "right pairs"} <= {row["table"] for row in rows}
    for row in rows:
        plain, attached = row["scores"].values()
        assert plain == attached
    values = {(row["table"], row["name"]): next(iter(row["scores"].values())) for row in rows}
    # 14.6 and 81% were measured.
    assert 10 < values["perplexity", "perplexity"]["value"] < 20
    assert values["right pairs", "all"]["value"] > 0.7
