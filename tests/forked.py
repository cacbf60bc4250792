"""Processes for tests that begin with torch and transformers imported: forks of one server.

A new interpreter takes six seconds of CPU time to import what a training needs, a fork takes 0.1.
What a fork does after its start is what any process does: its own memory, its own exit status, and
signals end it. What a new interpreter alone shows (imports, entry points, launchers) is for tests
that start one.
"""

import datetime
import faulthandler
import functools
import multiprocessing
import os
import runpy
import socket
import sys
import time
import types
import warnings
from pathlib import Path

import torch
from torch import distributed

_FORKS = multiprocessing.get_context("forkserver")
# The server has the search path of an interpreter, and no module of the tests. None of these starts
# a thread, which a fork would not have.
_FORKS.set_forkserver_preload(
    [
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "transformers.generation.utils",
        "transformers.models.auto.modeling_auto",
        "layermem_bench.cli.train",
        "layermem_bench.run.training",
        "layermem_bench.evals.solving",
        "layermem.convert",
        "layermem.retrofit",
        "layermem.variants",
    ]
)


def in_forks(work, arguments, count):
    """Call ``work(rank, *arguments)`` in some processes; an error in one of them is raised here."""
    torch.multiprocessing.start_processes(work, arguments, nprocs=count, start_method="forkserver")


def join(rank, world, folder):
    """Make this process one of several, which meet in a file of the folder."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet-{world}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=300),
    )


def leave(folder, seconds=300):
    """End this process of several once the others have come here too.

    Its group is not taken apart, which may wait for ever (torch 2.13): Gloo's thread for Python's
    lock, which this thread holds while it waits for Gloo's. Nor does one leave while another may
    still read from it, which would end that one by a signal.
    """
    if distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
        done = [Path(f"{folder}/done-{each}-of-{world}") for each in range(world)]
        done[rank].touch()
        deadline = time.monotonic() + seconds
        while not all(path.exists() for path in done) and time.monotonic() < deadline:
            time.sleep(0.01)
    sys.stdout.flush()
    os._exit(0)


def start_fork(work, *arguments, folder, **variables):
    """Start ``work(*arguments)`` in a folder, with environment variables; return the process.

    What it prints is written to ``{pid}.out`` and ``{pid}.err`` in the folder.
    """
    process = _FORKS.Process(target=_begin, args=(work, arguments, folder, variables))
    process.start()
    return process


def run_script(path, options, *, folder, backend=None):
    """Run a script to its end as ``python -W ignore`` would; return exit status, output, errors.

    ``backend``: what compiles there in place of Inductor.
    """
    process = start_fork(_run, str(path), options, backend, folder=folder)
    wait_for_end(process, path, folder=folder)
    output = folder / f"{process.pid}.out"
    return process.exitcode, output.read_text(encoding="utf-8"), read_errors(process, folder)


def run_code(code, *arguments, folder, **variables):
    """Run code as ``python -c`` would in a folder; return exit status, output, errors."""
    process = start_fork(_run_code, code, arguments, folder=folder, **variables)
    wait_for_end(process, code, folder=folder)
    output = folder / f"{process.pid}.out"
    return process.exitcode, output.read_text(encoding="utf-8"), read_errors(process, folder)


def start_together(count, work, *arguments, folder):
    """Start ``work(*arguments)`` in as many processes as torchrun or srun would; one alone gets no
    variables."""
    if count == 1:
        return [start_fork(work, *arguments, folder=folder)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        start_fork(work, *arguments, folder=folder, RANK=rank, LOCAL_RANK=rank, **shared)
        for rank in map(str, range(count))
    ]


def launch_script(script, folder, count):
    """Have some processes run a script with the folder, as torchrun would start them."""
    processes = start_together(count, _run, str(script), [str(folder)], None, folder=folder)
    try:
        for process in processes:
            wait_for_end(process, script, folder=folder)
            assert process.exitcode == 0, read_errors(process, folder)[-5000:]
    finally:
        # One that failed leaves the others waiting.
        for process in processes:
            process.kill()


def wait_for_end(process, path, *, folder, seconds=900):
    """Wait for the end of a script; kill one that takes longer and raise ``TimeoutError``."""
    process.join(timeout=seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(
            f"{path} had not ended after {seconds} seconds and was killed; mend what it waits for, "
            f"or give it more seconds. Its errors: {read_errors(process, folder)[-2000:]}"
        )


def _run(path, options, backend):
    if backend is not None:
        torch.compile = functools.partial(torch.compile, backend=backend)
    sys.argv = [path, *options]
    sys.path.insert(0, os.path.dirname(path))  # noqa: PTH120
    warnings.simplefilter("ignore")
    runpy.run_path(path, run_name="__main__")


def _run_code(code, arguments):
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(code, "<string>", "exec"), main.__dict__)


def read_errors(process, folder):
    """Return what a fork that has ended printed as errors."""
    return (folder / f"{process.pid}.err").read_text(encoding="utf-8")


def _begin(work, arguments, folder, variables):
    os.environ.update(variables)
    os.chdir(folder)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        with open(f"{os.getpid()}.{name}", "wb") as file:  # noqa: PTH123
            os.dup2(file.fileno(), stream.fileno())
    # Where a signal ends it, its errors say in what.
    faulthandler.enable()
    work(*arguments)
