"""Runs as one job array of Slurm, through submitit: a scheduler gets one job for many runs."""

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Literal

from layermem_bench.results.run_folder import RunFolder
from layermem_bench.study.launchers.launcher import Launching, Work
from layermem_bench.study.launchers.run_process import (
    Outcome,
    RemoteRun,
    append_errors,
    remote_run,
    wait_until_free,
)

logger = logging.getLogger(__name__)
LOGS = ".slurm"
"""Folder of submitit's files, beside the runs' folders; those of a run that has ended are gone."""
# Runs of one array: Slurm's own limit (MaxArraySize) is 1001 unless its administrator changed it.
_LONGEST_ARRAY = 1000
_RETRIES, _HOURS = 3, 24.0
# What Slurm calls the end of a job whose machine died, or was taken away, and which it does not
# queue again itself; submitit's local jobs are INTERRUPTED where a signal ended them.
_DIED = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "INTERRUPTED")
# Seconds that a job of which SIGTERM has ended the training waits for Slurm to end or requeue it.
_UNTIL_TAKEN = 600
# Seconds that stopped runs have to save.
_TO_SAVE = 120


@dataclass(kw_only=True)
class ArrayRun:
    """A run in a job of an array, which is queued again where its time or its machine is taken."""

    run: RemoteRun
    retries: int = _RETRIES
    """Times that Slurm may begin the job again."""

    def __call__(self) -> Outcome:
        """Train the run; return its exit code."""
        begun = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        if begun > self.retries:
            return 1, (
                f"its machine died, was taken away or its hours were over {begun} times; the same "
                "command goes on, and --retries allows more"
            )
        # Of scancel, and before a preemption; submitit leaves it to the user.
        before = signal.signal(signal.SIGTERM, self._save_and_wait)
        try:
            return self.run()
        finally:
            signal.signal(signal.SIGTERM, before)

    def _save_and_wait(self, *_: Any) -> None:
        """Have the training save; unless it has ended, wait for Slurm to end or requeue the job."""
        self.run.stop()
        end = time.monotonic() + _UNTIL_TAKEN
        # A job that returned now would count as ended, though Slurm may queue it again.
        while not RunFolder(self.run.folder).final.exists() and time.monotonic() < end:
            time.sleep(1)

    def checkpoint(self) -> Any:
        """Have the run saved, and return how it goes on: submitit calls this before a requeue."""
        from submitit.helpers import DelayedSubmission

        self.run.stop()
        return DelayedSubmission(self)


class SlurmArray:
    """Runs launched together are one job array, ``jobs`` of them at once; one array at a time.

    ``cluster``: "local" carries submitit's jobs out as processes of this machine, for tests.
    """

    def __init__(self, asked: Launching, cluster: Literal["slurm", "local"] = "slurm") -> None:
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise ValueError(
                "--launcher slurm: there is no sbatch on this machine; start the study on a login "
                "node of the cluster"
            )
        self._asked, self._cluster = asked, cluster
        self._parameters = parameters(asked)
        self._retries = _RETRIES if asked.retries is None else asked.retries
        self._jobs: dict[str, Any] = {}
        self._tried: dict[str, int] = {}
        self._runs: dict[str, ArrayRun] = {}

    def room(self) -> int:
        return 0 if self._jobs else _LONGEST_ARRAY

    def launch(self, runs: Work) -> None:
        for name, (run, folder) in runs.items():
            remote = remote_run(run, folder, self._asked)
            self._runs[name], self._tried[name] = ArrayRun(run=remote, retries=self._retries), 0
        if runs:
            self._submit(list(runs))

    def _submit(self, names: list[str]) -> None:
        from submitit import AutoExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        # Beside the runs' folders; the name keeps it from being taken for a run.
        logs = self._runs[names[0]].run.folder.parent / LOGS
        executor = AutoExecutor(logs, cluster=self._cluster, slurm_max_num_timeout=self._retries)
        executor.update_parameters(**self._parameters)
        try:
            jobs = executor.submit_array([self._runs[name] for name in names])
        except (FailedJobError, FailedSubmissionError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"Slurm refused an array of {len(names)} runs: {said}") from error
        self._jobs |= dict(zip(names, jobs, strict=True))
        logger.info("%d runs are Slurm's job %s; logs: %s", len(names), *self._arrays(), logs)

    def ended(self) -> dict[str, int]:
        codes, again = dict[str, int](), list[str]()
        for name in [name for name, job in self._jobs.items() if _is_done(job)]:
            job = self._jobs.pop(name)
            outcome = _outcome(job)
            if outcome is None and job.state in _DIED and self._tried[name] < self._retries:
                self._tried[name] += 1
                again.append(name)
                continue
            code, said = outcome or _without_result(job)
            append_errors(self._runs[name].run.folder, said)
            if code == 0:
                _delete_files(job)
            codes[name] = code
        if again:
            logger.warning("the machines of %s died: they begin again", ", ".join(again))
            self._submit(again)
        return codes

    def withdraw(self) -> None:
        if self._cluster == "slurm" and self._jobs:
            subprocess.run(["scancel", "--state=PENDING", *self._arrays()], check=False)

    def stop(self) -> None:
        if not self._jobs:
            return
        if self._cluster == "slurm":
            # One command for the array: a thousand of them would be a burden to the scheduler.
            subprocess.run(["scancel", *self._arrays()], check=False)
        else:
            for job in self._jobs.values():
                job.cancel(check=False)
        wait_until_free([RunFolder(self._runs[name].run.folder) for name in self._jobs], _TO_SAVE)
        self._jobs.clear()

    def _arrays(self) -> list[str]:
        return sorted({job.job_id.partition("_")[0] for job in self._jobs.values()})


def parameters(asked: Launching) -> dict[str, Any]:
    """Return what submitit is told of each job of an array."""
    further: dict[str, Any] = {"requeue": True}
    for option in asked.slurm:
        name, equals, value = option.removeprefix("--").partition("=")
        if not name or not equals:
            raise ValueError(
                f"--slurm takes options of sbatch as KEY=VALUE (account=physics), got {option!r}"
            )
        further[name] = value
    told = {
        "name": "layermem",
        "timeout_min": round(60 * (asked.hours or _HOURS)) or 1,
        "cpus_per_task": asked.cpus or 1,
        "gpus_per_node": asked.gpus,
        "mem_gb": asked.memory_gb,
        "slurm_partition": asked.partition,
        "slurm_array_parallelism": asked.jobs or _LONGEST_ARRAY,
        "slurm_additional_parameters": further,
    }
    return {name: value for name, value in told.items() if value is not None}


def _is_done(job: Any) -> bool:
    """Return whether a job has ended; submitit takes a preempted one for one that goes on."""
    return bool(job.done()) or job.state == "PREEMPTED"


def _outcome(job: Any) -> Outcome | None:
    """Return what a job's worker returned; None where it was ended before it could."""
    if not job.paths.result_pickle.exists():
        return None
    from submitit.core.utils import UncompletedJobError

    try:
        result: Outcome = job.result()
    except UncompletedJobError as error:
        # Its worker raised: no Python of that name there, a full disk. Other runs go on.
        # The trace stands between two lines of dashes.
        trace = re.split("(?m)^-{5,}$", str(error))
        lines = [line for line in trace[len(trace) // 2].splitlines() if line.strip()]
        return 1, f"the worker of Slurm's job {job.job_id} failed: {lines[-1].strip()}"
    return result


def _without_result(job: Any) -> Outcome:
    """Return the outcome of a job that has left no result: what Slurm says of it."""
    if job.state.startswith("CANCELLED"):
        return 0, ""
    lines = [line for line in (job.stderr() or "").splitlines() if line.strip()]
    last = f": {lines[-1].strip()}" if lines else ""
    return 1, f"Slurm's job {job.job_id} is {job.state}{last}; see {job.paths.stderr}"


def _delete_files(job: Any) -> None:
    """Delete submitit's files of a job that has ended as it should."""
    paths = job.paths
    for path in (paths.submitted_pickle, paths.result_pickle, paths.stdout, paths.stderr):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
