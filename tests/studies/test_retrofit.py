"""`layermem study retrofit`: ways of going on training one model."""

from dataclasses import replace

import pytest
from host_models import make_host
from launchers import InThisProcess, MadeUp, use

from layermem_bench import cli
from layermem_bench.config.run import HOST, Host, Model, Run
from layermem_bench.config.typed_dicts import read_result
from layermem_bench.costs.measuring import time_interleaved
from layermem_bench.run.folder import RunFolder
from layermem_bench.run.run_config import recorded_run
from layermem_bench.studies import steps
from layermem_bench.studies.boards import WAYS, study_of_retrofit
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.planning import trials
from layermem_bench.studies.result import StudyResult
from layermem_bench.text.tokenizers import load_tokenizer

pytestmark = pytest.mark.usefixtures("undrawn")

SECONDS = {"plain": 1.0, "lora": 0.8, "routers": 1.0, "apart": 1.0, "all": 2.0}
NAME = "retrofit-llama"


@pytest.fixture
def asked(tmp_path):
    """Return a command of runs of four steps on a host and a text of their own."""
    tokens = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256}
    make_host("llama", **tokens).save_pretrained(tmp_path / "llama")
    load_tokenizer("bytes").save_pretrained(tmp_path / "llama")
    texts = [" ".join(f"w{(i * j) % 13}" for j in range(20)) for i in range(60)]
    lines = "".join(f'{{"text": "{text}"}}\n' for text in texts)
    (tmp_path / "words.jsonl").write_text(lines)
    return (
        f"study retrofit {tmp_path}/llama --data.source {tmp_path}/words.jsonl --max-steps 4 "
        "--data.validation-share 0.2 --data.block-size 24 --optim.batch-size 8 "
        f"--compute.micro-batch 4 --compute.precision float32 --data.cache {tmp_path}/cache "
        f"--rates 1e-3 1e-2 --router-rates 1e-2 --seeds 1 --out {tmp_path}/out"
    ).split()


def made_up_seconds(of_arms, repeats, device, warm_up):
    """Return made-up seconds of steps that can be taken."""
    real = time_interleaved(of_arms, 1, device)
    assert all(values[0] > 0 for values in real.values())
    return {way: [SECONDS[way]] * repeats for way in of_arms}


@pytest.mark.slow
def test_all_ways_meet_at_equal_tokens_and_equal_time(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "time_interleaved", made_up_seconds)
    here, out = use(InThisProcess(), monkeypatch), tmp_path / "out"
    cli.main(asked)
    result = read_result(StudyResult, out / "studies" / NAME)
    (board,) = result.boards
    # Two rates of three ways, routers alone have one; five ways; at equal time two of them are of
    # another length.
    assert len(here.begun) == 6 + 5 + 2 and len(board.tried) == 3
    tokens, time = ({arm.name: arm for arm in each.arms} for each in board.conditions)
    assert {way: arm.steps for way, arm in tokens.items()} == dict.fromkeys(SECONDS, 4)
    assert {way: arm.steps for way, arm in time.items() if arm.steps != 4} == {"lora": 5, "all": 2}
    trained = {way: arm.parameters for way, arm in tokens.items()}
    assert trained["routers"] <= trained["lora"] < trained["plain"] < trained["all"]
    assert trained["apart"] == 2 * trained["routers"]
    for way, arm in tokens.items():
        run = recorded_run(RunFolder(out / NAME / f"{way}-lr{arm.rate:g}-s0"))
        of_routers = way in ("routers", "apart")
        assert run.labels.arm == way and run.host.shares_kv == (way != "apart")
        assert (run.optim.router_lr if of_routers else run.optim.lr) == arm.rate
    assert all(run.validations[0].val_loss == board.before for run in result.of(NAME, "tokens"))
    # Nothing is trained again; more seeds train what is missing.
    made_up = use(MadeUp(), monkeypatch)
    cli.main([*asked, "--seeds", "2"])
    assert len(made_up.begun) == 5 + 2 and {run.seed for run in made_up.runs} == {1}


def study(**changes):
    host = Host(model="some/model", memory="full", train="all")
    base = Run(preset="finetune", variant=HOST, model=Model(), host=host)
    base = replace(base, **changes.pop("base", {}))
    return study_of_retrofit(
        **{"base": base, "rates": (1e-4,), "router_rates": (1e-3,), "seeds": (0,), **changes}
    )


def test_what_each_way_trains():
    host = study().boards[0].base.host
    windowed = study(base={"host": replace(host, memory="last", window=2)})
    (board,) = windowed.boards
    hosts = {arm.name: arm.change(board.base).host for arm in board.arms}
    assert list(hosts) == list(WAYS)
    assert {way: (h.memory, h.window, h.train, h.shares_kv) for way, h in hosts.items()} == {
        "plain": ("none", None, "all", True),
        "lora": ("none", None, "lora", True),
        "routers": ("last", 2, "routers", True),
        "apart": ("last", 2, "routers", False),
        "all": ("last", 2, "all", True),
    }
    assert "window 2" in windowed.title


def test_routers_have_rates_of_their_own():
    (board,) = study(rates=(1e-5, 1e-4), router_rates=(1e-3, 5e-3)).boards
    tried: dict = {}
    for run in trials(board).values():
        tried.setdefault(run.labels.arm, []).append((run.optim.lr, run.optim.router_lr))
    lr = board.base.optim.lr
    assert tried == {
        "plain": [(1e-5, None), (1e-4, None)],
        "lora": [(1e-5, None), (1e-4, None)],
        "routers": [(lr, 1e-3), (lr, 5e-3)],
        "apart": [(lr, 1e-3), (lr, 5e-3)],
        # A hundred times, and at most what routers alone try.
        "all": [(1e-5, 100 * 1e-5), (1e-4, 5e-3)],
    }


def test_what_is_asked_wrongly(tmp_path):
    alike = replace(study().boards[0].base, host=Host(model="a", memory="none", train="all"))
    for wrong in (("lora", "all"), ("plain", "some"), ("plain",)):
        with pytest.raises(ValueError, match="--ways.*lora.*all"):
            study(ways=wrong)
    # All weights with memory would be all weights without any.
    with pytest.raises(ValueError, match="--host.memory"):
        study_of_retrofit(alike, (1e-3,), (1e-2,), (0,), ways=("plain", "all"))
    # A model has the sizes of its weights.
    with pytest.raises(ValueError, match="--conditions parameters"):
        carry_out(study(conditions=("parameters",)), tmp_path)
