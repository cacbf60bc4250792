"""What the command line refuses: the command, and the option or name that its error names."""

import pytest
import yaml
from small_run import a_run

from layermem_bench import cli
from layermem_bench.config.run import to_dict

REFUSED = [
    # The command as typed, and what its one line must name. CONFIG: the file of a small run's.
    ("fly", "fly"),
    ("train", "PRESET"),
    ("train --seed 1 tiny-lm", "PRESET"),
    ("train tiny-ml", "tiny-lm"),
    ("train tiny-lm --config x.yaml", "--config"),
    ("train --config nowhere.yaml", "nowhere.yaml"),
    ("train --config broken.yaml", "broken.yaml"),
    ("train tiny-lm --variant lame", "lime"),
    ("train tiny-lm --variant plain,lime", "plain,lime"),
    ("train tiny-lm --variant recipe --model.options router_grain=pair", "router_grain"),
    ("train tiny-lm --optim.learning-rate 1", "learning-rate"),
    ("train tiny-lm --optim.lr -1", "lr"),
    ("train tiny-lm --optim.lr fast", "fast"),
    ("train tiny-lm --max-steps 0", "max_steps"),
    ("train tiny-lm --model.options router", "model.options"),
    ("train tiny-lm --model.options routers=full", "routers"),
    ("train tiny-lm --model.pretrained ./llama --model.hidden-size 8", "--model.pretrained"),
    ("train tiny-aet-4 --data.source b.jsonl", "data.source"),
    ("train tiny-aet-4 --task.options operand=3 --dry-run", "operand"),
    ("train --config CONFIG --data.source gone.jsonl --dry-run", "gone.jsonl"),
    ("train --config CONFIG --optim.batch-size 6 --dry-run", "batch_size"),
    ("study", "PRESET"),
    ("study tiny-lm --variants plain,lame", "lame"),
    ("study tiny-lm --variants plain,lime:router=nearest", "nearest"),
    ("study tiny-lm --seeds 0", "seeds"),
    ("study tiny-lm --rates 1e-3 nan", "rates"),
    ("study tiny-lm --trials 3", "--trials"),
    ("study tiny-lm --seeds 1000 --seed 1", "1000"),
    ("study tiny-lm,aet-44", "aet-44"),
    ("study tiny-mqar,mqar", "tiny-mqar, tiny-mqar"),
    ("study paper/table7 --conditions time", "--conditions"),
    ("study paper/table77", "table7"),
    ("study retrofit --seeds 2", "retrofit MODEL"),
    ("eval model", "--tasks"),
    ("eval model --tasks ppl", "ppl=FILE"),
    ("eval ./model --tasks arithmetic", "./model"),
    ("analyze ./nowhere", "nowhere"),
    ("report nowhere", "nowhere"),
    ("list tasks arithmetic --task-options operand=3", "operand"),
    ("list tasks prosqa --task-options nodes=many", "nodes"),
    ("costs tiny-lm --layers 4 0", "--layers"),
    ("costs tiny-ml", "tiny-lm"),
    ("quickstart --seed -1", "--seed"),
    ("models fetch nothing here", "nothing"),
    ("models convert ./nowhere out", "nowhere"),
    ("prepare --data.source gone.jsonl", "gone.jsonl"),
    ("prepare --tasks 2 --data.max-documents 3", "--data.max-documents"),
    ("--plugin", "--plugin"),
    ("--plugin nowhere list tasks", "nowhere"),
]


@pytest.mark.parametrize(("command", "named"), REFUSED, ids=[command for command, _ in REFUSED])
def test_a_refusal_names_what_is_wrong(command, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAYERMEM_PLUGINS", "")
    (tmp_path / "broken.yaml").write_text("a: [\nb: {\n")
    if "CONFIG" in command:
        (tmp_path / "CONFIG").write_text(yaml.safe_dump(to_dict(a_run(tmp_path))))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as left:
        cli.main(command.split())
    assert left.value.code not in (0, None)
    # tyro prints its errors in a box; ours are the exit's one line.
    said = f"{left.value.code}{capsys.readouterr().err}"
    assert named in said and "Traceback" not in said
    # Nothing was begun.
    assert sorted(tmp_path.iterdir()) == before
