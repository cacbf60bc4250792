"""Wirings across layers at several sizes; ``benchmarks/ladder.sh`` runs this in one command.

Each arm has its own learning rate, of three on the seed that chooses; seeds are paired; arms meet
at equal tokens (20 a parameter of the plain decoder; a text of fewer is read in several epochs) and
at equal time. It is a study like those of ``layermem study``, whose runs are trained in this
process, one after the other, so that imports, text and compiled code are paid for once. A size
begins when all runs of the smaller ones are there.

A go lasts ``--minutes``: no run is begun that cannot be expected to end in them, by what earlier
ones took (OUT/seconds.jsonl). Questions are answered when all their seeds are there. The same
command with the same ``--out`` goes on: recorded runs stay, and a text must keep its path, which is
part of what a run is. OUT/SIZE holds the runs, without weights, OUT/SIZE/rates those that chose
rates, OUT/studies/ladder the table, and OUT/compiled.xz the compiled code. On another machine carry
all of OUT there and back.
"""

import argparse
import gc
import json
import lzma
import shlex
import sys
import time
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers.utils import logging

from layermem_base.files import write_atomically
from layermem_bench.config.computing import room_to_compile
from layermem_bench.config.run import Compute, Data, Model, Optim, Run
from layermem_bench.pages import study as report
from layermem_bench.pages.page import write_page
from layermem_bench.run.folder import ERRORS, load_run
from layermem_bench.run.setup import build_model
from layermem_bench.run.training import train
from layermem_bench.studies.boards import board_of, questions_of, study_of_variants
from layermem_bench.studies.carrying_out import carry_out
from layermem_bench.studies.executors import Executor, Launching
from layermem_bench.studies.gathering import STUDIES
from layermem_bench.studies.planning import plain_parameters
from layermem_bench.studies.steps import measured_steps, read_steps
from layermem_bench.text.preparing import prepare
from layermem_bench.text.tokenizers import load_tokenizer

ARMS = (
    "plain,value_residual,mudd,recipe,recipe+mudd,attention_residuals:residual_form=block,"
    "recipe_half"
)
RATES = (2e-3, 6e-3, 2e-2)
# What it is to tell, of the arms that it has; a difference of 0.01 would matter.
ASKED = (
    *(f"{arm} below plain" for arm in ("value_residual", "mudd", "recipe", "recipe+mudd")),
    *("recipe below value_residual", "recipe+mudd below mudd", "recipe_half above plain"),
)
MARGIN = 0.01
SECONDS, COMPILED = "seconds.jsonl", "compiled.xz"
# Layers, width, heads, and sequences a step.
SIZES = {
    "3m": (8, 160, 5, 128),
    "10m": (10, 256, 4, 256),
    "38m": (12, 448, 7, 256),
    # For tests: three short steps in float32, not compiled.
    "toy": (2, 16, 2, 4),
    "toy-2": (3, 16, 2, 4),
}


def run_of(name, source, validation):
    """Return the run that a size's arms change: on bytes, its mlp four times as wide as it is."""
    layers, width, heads, batch = SIZES[name]
    is_toy = name.startswith("toy")
    block = 16 if is_toy else 512
    run = Run(
        preset=f"ladder-{name}",
        log_every=50,
        eval_blocks=8 if is_toy else None,
        model=Model(
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
        ),
        data=Data(source=source, validation=validation, block_size=block),
        optim=Optim(batch_size=batch, warmup_steps=100),
        compute=Compute(
            micro_batch=min(batch, 128),
            precision="float32" if is_toy else "bfloat16",
            compile=not is_toy,
        ),
    )
    steps = 3 if is_toy else round(20 * plain_parameters(run) / (batch * block))
    return replace(run, max_steps=steps, eval_every=max(1, steps // 4))


class InThisProcess(Executor):
    """Trains runs here, one after the other, as long as the next one can be expected to end."""

    def __init__(self, out, minutes):
        super().__init__(Launching(), 1)
        self._deadline = time.monotonic() + 60 * minutes
        self._file, self._begun = out / SECONDS, set()
        self._file.touch()
        self._rows = [json.loads(line) for line in self._file.read_text("utf-8").splitlines()]
        self.is_over = False

    def carry_out(self, board, what, size, work):
        """Call ``work`` and note how long it took, unless there is no time; the first call of a go
        is made anyway. ``size``: what the seconds are proportional to."""
        # The first one's time has what a process does once, such as compiling.
        is_first, begun = (board, what) not in self._begun, time.monotonic()
        row = {"board": board, "what": what, "is_first": is_first, "size": size}
        if self._begun and begun + self._expected(row) > self._deadline:
            self.is_over = True
            raise RuntimeError(f"the next go begins with {what} on {board}")
        self._begun.add((board, what))
        result = work()
        self._rows.append(row | {"seconds": round(time.monotonic() - begun, 2)})
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._rows[-1]) + "\n")
        return result

    def _expected(self, row):
        """Return the seconds of the most alike rows, scaled to its size."""
        here = [r for r in self._rows if r["board"] == row["board"]]
        own = [r for r in here if r["what"] == row["what"]]
        alike = [r for r in own if not r["is_first"]] or own
        if row["is_first"]:
            # It may compile as long as any other arm.
            alike = [*own, *(r for r in here if r["is_first"])]
        other_sizes = [r for r in self._rows if r["what"] == row["what"] and not r["is_first"]]
        seconds = [r["seconds"] * max(1, row["size"] / r["size"]) for r in alike or other_sizes]
        return max(seconds, default=0)

    def _submit(self, commands):
        codes = [self._train(command) for command in commands]
        # Jobs that have ended.
        return [SimpleNamespace(poll=lambda c=c: c, terminate=int) for c in codes]

    def _train(self, command):
        """Train a run as its own process would; return the exit code."""
        run = load_run(command.arguments[command.arguments.index("--config") + 1])
        labels, size = run.labels, run.max_steps * run.optim.batch_size * plain_parameters(run)
        work = partial(train, run, command.folder, resume=True)
        try:
            folder = self.carry_out(labels.board, labels.arm, size, work)
        except Exception:
            if self.is_over:
                raise
            with (command.folder / ERRORS).open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
            return 1
        finally:
            gc.collect()
        if not folder.final.exists():
            # SIGTERM has stopped it, with a checkpoint.
            sys.exit(143)
        # What a study needs is in the other files.
        for path in folder.final.glob("*.safetensors"):
            path.unlink()
        return 0


def climb(boards, seeds, out, executor):
    """Carry the study out for one size more at a time; return the last result (None: no size has
    all its rates), and why it is not whole (None: it is)."""
    command, result = shlex.join(["benchmarks/ladder.sh", *sys.argv[1:]]), None
    for count, board in enumerate(boards, 1):
        study = study_of_variants(boards[:count], range(seeds), ("tokens", "time"))
        arms = {arm.name for arm in board.arms}
        asked = [each for each in ASKED if {*each.split()[::2]} <= arms]
        asked = questions_of(asked, study, MARGIN)
        study = replace(study, name="ladder", title="A ladder of sizes", questions=asked)
        try:
            if read_steps(board, out) is None:
                executor.carry_out("steps", "steps", 1, partial(measured_steps, board, out))
            result, failure = carry_out(study, out, command, executor)
        except RuntimeError as error:
            failure = str(error)
        if failure:
            break
    return result, failure


def describe(board):
    """Return a line about the runs of a board; prepare its text, and build a model of each arm."""
    run, tokenizer = board.base, load_tokenizer(board.base.data.tokenizer)
    text, _ = prepare(run.data, tokenizer)
    for arm in board.arms:
        # Compiled code looks at transformers' list of all models that were built.
        build_model(arm.change(run), tokenizer)
    tokens = run.max_steps * run.optim.batch_size * run.data.block_size
    return (
        f"{board.name}: {plain_parameters(run):,} parameters, {run.max_steps:,} steps, "
        f"{tokens:,} tokens, {tokens / text.tokens:.2f} epochs of the text"
    )


def show(result, folder):
    """Print the tables of a study, and write its page."""
    for table in report.tables(result):
        rows = table.header, *table.rows
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        print(*("  ".join(map(str.ljust, row, widths)) for row in rows), table.caption, sep="\n")
    write_page(report.build(result), folder / "index.html")


def main(arguments=None):
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--source", required=True, help="text to learn, as in layermem train")
    options.add_argument("--validation", help="text to validate on; default: a share of it")
    options.add_argument("--sizes", nargs="+", default=["3m", "10m"], choices=SIZES)
    options.add_argument("--arms", default=ARMS, help="separated by commas; plain comes first")
    options.add_argument("--seeds", type=int, default=8, help="of each arm in the end")
    options.add_argument("--minutes", type=float, default=9, help="of this go")
    options.add_argument("--out", type=Path, default=Path("runs/ladder"))
    args = options.parse_args(arguments)
    logging.disable_progress_bar()
    args.out.mkdir(parents=True, exist_ok=True)
    executor, compiled = InThisProcess(args.out, args.minutes), args.out / COMPILED
    runs = {name: run_of(name, args.source, args.validation) for name in args.sizes}
    boards = [board_of(run, args.arms, RATES, name=name) for name, run in runs.items()]
    for board in boards:
        print(describe(board), flush=True)
    if compiled.exists():
        torch.compiler.load_cache_artifacts(lzma.decompress(compiled.read_bytes()))
    try:
        # All models are of one code.
        with room_to_compile(len(boards) * len(boards[0].arms)):
            result, failure = climb(boards, args.seeds, args.out, executor)
    finally:
        if artifacts := torch.compiler.save_cache_artifacts():
            write_atomically(compiled, lzma.compress(artifacts[0], preset=1))
    if result:
        show(result, args.out / STUDIES / result.name)
    print(failure or "the ladder is whole", flush=True)
    sys.exit(1 if failure and not executor.is_over else 0)


if __name__ == "__main__":
    main()
