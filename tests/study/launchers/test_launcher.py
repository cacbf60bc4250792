"""Which launcher a command gets; what is missing or given for another is one line."""

import importlib.util
import re
import sys

import pytest

from layermem_bench import cli
from layermem_bench.study.launchers.launcher import Launching, check_launching, cluster_launcher

STUDY = ["study", "tiny-lm", "--dry-run"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--partition", "gpu"], "--partition gpu is for --launcher slurm, and this is local"),
        (["--gpus", "2"], "--gpus 2 is for --launcher slurm or ray, and this is local"),
        (["--launcher", "slurm", "--address", "a:1"], "--address a:1 is for --launcher ray"),
        (["--launcher", "ray", "--hours", "2"], "--hours 2.0 is for --launcher slurm"),
        (["--launcher", "ray", "--slurm", "a=b", "c=d"], "--slurm a=b c=d is for --launcher slurm"),
    ],
)
def test_options_of_another_launcher_are_refused(given, said):
    with pytest.raises(SystemExit, match=f"^layermem: .*{said}"):
        cli.main([*STUDY, *given])


@pytest.mark.parametrize(("launcher", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_launcher_that_is_not_installed_names_the_extra(launcher, package, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find_spec(name)
    )
    with pytest.raises(SystemExit, match=rf"needs {package}, which is .*'layermem\[scale\]'"):
        cli.main([*STUDY, "--launcher", launcher])


def test_without_sbatch_a_study_is_not_begun(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no sbatch on this machine; .* login node"):
        cluster_launcher(Launching(launcher="slurm"))


def test_processes_here_need_nothing_of_a_cluster():
    before = {*sys.modules}
    assert cluster_launcher(Launching(jobs=3)) is None
    check_launching(Launching(launcher="slurm", retries=0, slurm=("qos=low",)))
    assert not {"ray", "submitit"} & ({*sys.modules} - before)


def test_every_option_says_in_its_help_what_it_is(capsys):
    with pytest.raises(SystemExit):
        cli.main(["study", "--help"])
    shown = capsys.readouterr().out
    options = ("launcher", "jobs", "address", "partition", "hours", "gpus", "cpus", "memory-gb")
    for option in (*options, "retries", "slurm"):
        assert re.search(rf"--{option}\b", shown), option
