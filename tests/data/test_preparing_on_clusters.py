"""`layermem prepare` on Ray, and on Slurm by stand-ins of its commands: files of local tasks."""

import hashlib
import logging
import os
import sys
import time
from pathlib import Path

import pytest

from layermem_bench.cli import main
from layermem_bench.data import datatrove_tasks, piece_writing
from layermem_bench.data.datatrove_tasks import Engine
from layermem_bench.data.preparations import Work

# Of libraries that are not ours: sockets and pipes that they leave to the interpreter, and how
# datatrove asks Ray for a place; as an error in a thread, that would be waited for forever.
pytestmark = [
    pytest.mark.filterwarnings("ignore:placement_group:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]
ON_SLURM = ("--executor", "slurm", "--partition", "x")
ON_RAY = ("--executor", "ray", "--memory", "1")

# Runs a script as each task of an array, all at once, after the job that it depends on.
SBATCH = """#!{python}
import os, re, subprocess, sys, time
from pathlib import Path

jobs = Path({jobs!r})
*options, script = sys.argv[1:]
text = Path(script).read_text()
asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.M))
asked |= dict(option[2:].split("=", 1) for option in options)
assert asked["partition"] == "x"
number = str(len(os.listdir(jobs)) + 1)
job = jobs / number
job.mkdir()
(job / "script").write_text(text)
print("Submitted batch job", number, flush=True)
if os.fork():
    os._exit(0)
os.setsid()
for stream in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
after = asked.get("dependency", ":").split(":")[1]
while after and not (jobs / after / "codes").exists():
    time.sleep(0.1)
_, *variables = asked.get("export", "ALL").split(",")
first, last = map(int, asked["array"].split("%")[0].split("-"))
tasks = []
for task in range(first, last + 1):
    log = asked["output"].replace("%A", number).replace("%a", str(task))
    env = os.environ | dict(each.split("=") for each in variables)
    env |= {{"SLURM_JOB_ID": number, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_NODELIST": "n[1-2]"}}
    with open(log, "w") as file:
        tasks.append(subprocess.Popen(["bash", job / "script"], env=env, stdout=file, stderr=file))
codes = " ".join(str(task.wait()) for task in tasks)
(job / ".codes").write_text(codes)
(job / ".codes").rename(job / "codes")
"""
# As datatrove calls them: `srun -l -n 1 COMMAND`, `scontrol show hostnames LIST`.
SRUN = '#!/bin/sh\n[ "$1 $2 $3" = "-l -n 1" ] && shift 3 && exec "$@"\n'
SCONTROL = '#!/bin/sh\n[ "$1 $2" = "show hostnames" ] && printf "n1\\nn2\\n"\n'


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return the folder of jobs of a stand-in of Slurm, whose commands are on PATH."""
    pytest.importorskip("datatrove")
    jobs, commands = tmp_path / "jobs", tmp_path / "commands"
    jobs.mkdir()
    commands.mkdir()
    sbatch = SBATCH.format(python=sys.executable, jobs=str(jobs))
    for name, script in {"sbatch": sbatch, "srun": SRUN, "scontrol": SCONTROL}.items():
        (commands / name).write_text(script)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    return jobs


def prepare(text, cache, *options):
    main(["prepare", str(text), "--data.cache", str(cache), "--tasks", "3", *options])


def prepare_here(text, cache):
    """Prepare a text by tasks of this process, one after the other."""
    prepare(text, cache, "--workers", "1")


def begin(text, cache, monkeypatch):
    """Prepare some pieces of a text; return their files with the times of their writing."""
    make, made = piece_writing._make_piece, []

    def full(work, plan, tokenizer, index, progress):
        if len(made) == 4:
            raise OSError(28, "No space left on device")
        make(work, plan, tokenizer, index, progress)
        made.append(index)

    with monkeypatch.context() as patch:
        patch.setattr(piece_writing, "_make_piece", full)
        with pytest.raises(SystemExit, match="layermem: .*No space left on device"):
            prepare_here(text, cache)
    times = written(cache)
    assert len(times) == 8
    return times


def written(cache):
    """Return when each file of tokens was written."""
    return {path.name: path.stat().st_mtime_ns for path in cache.glob("*/*.bin")}


def files(cache):
    """Return the digest of each file of the only text that is in a cache."""
    (folder,) = cache.glob("[0-9a-f]*")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def wait_for(job):
    """Wait until the tasks of a job of the stand-in have ended; return their exit codes."""
    deadline = time.monotonic() + 300
    while not (job / "codes").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return (job / "codes").read_text().split()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["ray", "slurm"])
def test_a_cluster_makes_what_is_missing_of_the_files_of_local_tasks(
    executor, text, tmp_path, monkeypatch, request, caplog
):
    there = request.getfixturevalue(executor)
    options = ON_RAY if executor == "ray" else ON_SLURM
    cache = tmp_path / "c"
    before = begin(text, cache, monkeypatch)
    prepare(text, cache, *options)
    if executor == "slurm":
        # Of the tasks that local ones have not completed, then of datatrove's sum of statistics.
        assert wait_for(there / "1") == ["0", "0"] and wait_for(there / "2") == ["0"]
    prepare_here(text, tmp_path / "here")
    assert files(cache) == files(tmp_path / "here") and len(files(cache)) > 16
    after = written(cache)
    assert before.items() <= after.items()
    caplog.set_level(logging.INFO)
    prepare(text, cache, *options)
    assert "--data.tokenizer bytes" in caplog.text and "preparing" not in caplog.text
    assert written(cache) == after
    assert executor == "ray" or len(list(there.iterdir())) == 2


def append_what_is_no_json(text):
    """Return options of a validation text: tasks are the first to read all of the other."""
    with text.open("a") as file:
        file.write("not JSON\n")
    held = text.with_name("held.jsonl")
    held.write_text('{"text": "held"}\n')
    return "--data.validation", str(held)


@pytest.mark.slow
def test_what_is_wrong_with_a_text_on_ray_is_one_line(text, tmp_path, ray):
    held = append_what_is_no_json(text)
    with pytest.raises(SystemExit) as error:
        prepare(text, tmp_path / "c", *held, *ON_RAY)
    said = str(error.value.code)
    assert "a.jsonl, line" in said and "is not JSON" in said and "\n" not in said
    # Nothing that could be taken for whole, and nothing to go on with.
    assert [path.name[:6] for path in (tmp_path / "c").iterdir()] == [".logs-"]


@pytest.mark.slow
def test_what_is_wrong_with_a_text_on_slurm_is_in_the_log_of_its_task(text, tmp_path, slurm):
    held = append_what_is_no_json(text)
    cache = tmp_path / "c"
    prepare(text, cache, *held, *ON_SLURM)
    codes = wait_for(slurm / "1")
    assert sorted(codes) == ["0", "0", "1"]
    (log,) = cache.glob(f".logs-*/3-tasks/logs/task_{codes.index('1'):05d}.log")
    assert "is not JSON" in log.read_text()
    assert not list(cache.glob("[0-9a-f]*"))
    with pytest.raises(SystemExit, match="is not JSON"):
        prepare_here(text, cache)


def test_pieces_that_tasks_of_ray_leave_are_told(text, tmp_path, monkeypatch):
    """Tasks that run out of memory, or begin where the cache is not seen."""
    pytest.importorskip("datatrove")
    monkeypatch.setattr(Engine, "check", lambda engine: None)
    monkeypatch.setattr(Engine, "_run_on_ray", lambda engine, step, logs: None)
    with pytest.raises(SystemExit, match=r"layermem: tasks of Ray ended .*3-tasks/logs says why"):
        prepare(text, tmp_path / "c", *ON_RAY)


def test_a_preparation_that_its_last_task_did_not_end_is_ended(text, tmp_path, slurm, monkeypatch):
    cache = tmp_path / "c"

    def stopped(work, plan):
        raise OSError(4, "stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Work, "publish", stopped)
        with pytest.raises(SystemExit, match="stopped"):
            prepare_here(text, cache)
    prepare(text, cache, *ON_SLURM)
    prepare_here(text, tmp_path / "here")
    assert files(cache) == files(tmp_path / "here") and not list(slurm.iterdir())


def test_a_folder_that_the_script_of_a_job_cannot_name_is_refused(text, tmp_path, slurm):
    with pytest.raises(SystemExit, match="a b has spaces or signs of the shell"):
        prepare(text, tmp_path / "a b", *ON_SLURM)
    assert not list(slurm.iterdir()) and not list((tmp_path / "a b").iterdir())


def test_a_cluster_without_room_for_a_task_is_told(text, tmp_path, monkeypatch):
    pytest.importorskip("datatrove")

    class MadeUpRay:
        def nodes(self):
            return [{"Resources": {"CPU": 2.0, "memory": 3e9}, "Alive": True}]

    monkeypatch.setattr(datatrove_tasks, "connect", lambda address: MadeUpRay())
    engine = Engine(executor="ray", tasks=2)
    with pytest.raises(
        ValueError, match=r"what a task needs, 1 CPUs, 4.29 GB; there are 2 CPUs, 3"
    ):
        engine._run_on_ray(None, Path())
