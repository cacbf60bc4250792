"""What Ray is asked for, and addresses that cannot be used; no process of Ray is started."""

import os
import socket
import subprocess

import pytest

from layermem_bench.study.launchers import ray_tasks
from layermem_bench.study.launchers.launcher import Launching
from layermem_bench.study.launchers.ray_tasks import RayTasks, check_address, needs, slots


class MadeUpRay:
    """A cluster of machines by their resources."""

    def __init__(self, *machines):
        self.machines = machines

    def nodes(self):
        return [{"Resources": each, "Alive": True} for each in self.machines] + [
            {"Resources": {"CPU": 1000.0}, "Alive": False}
        ]

    def cluster_resources(self):
        return {"GPU": sum(each.get("GPU", 0) for each in self.machines)}


def test_what_a_run_needs_is_kept_free_for_it():
    assert needs(Launching(), has_gpus=False) == {"CPU": 1}
    assert needs(Launching(), has_gpus=True) == {"CPU": 1, "GPU": 1}
    asked = Launching(launcher="ray", gpus=0, cpus=4, memory_gb=2.0)
    assert needs(asked, has_gpus=True) == {"CPU": 4, "memory": 2e9}
    assert slots({"CPU": 9, "memory": 5e9}, needs(asked, has_gpus=True)) == 2
    assert slots({"CPU": 9}, needs(asked, has_gpus=True)) == 0


@pytest.mark.parametrize(("jobs", "room"), [(None, 6), (2, 2)])
def test_the_cluster_has_room_for_what_fits_on_each_machine(jobs, room, monkeypatch):
    cluster = MadeUpRay({"CPU": 4.0}, {"CPU": 9.0}, {"CPU": 1.0})
    monkeypatch.setattr(ray_tasks, "connect", lambda address: cluster)
    assert RayTasks(Launching(launcher="ray", cpus=2, jobs=jobs)).room() == room


def test_what_no_machine_has_is_not_waited_for(monkeypatch):
    cluster = MadeUpRay({"CPU": 4.0, "GPU": 1.0}, {"CPU": 9.0, "memory": 8e9})
    monkeypatch.setattr(ray_tasks, "connect", lambda address: cluster)
    with pytest.raises(ValueError, match="needs, 9 CPUs, 1 GPUs; there are 4 CPUs, 1 GPUs; 9 CP"):
        RayTasks(Launching(launcher="ray", cpus=9))


@pytest.mark.parametrize("address", ["auto", "head", "head:", ":1", "ray://head:1", "head:99999"])
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(ValueError, match=f"--address must be HOST:PORT.* got '{address}'"):
        check_address(address)


def test_an_address_at_which_nobody_listens_is_said_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"nobody listens at --address {address}.*ray start"):
            check_address(address)


def test_what_listens_but_is_not_ray_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(ray_tasks, "_TO_ANSWER", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"{address} cannot .*not answer as Ray within 1"):
            check_address(address)


def test_a_cluster_that_asks_for_a_token_gets_it(monkeypatch):
    """Ray's clients have to be told; what else is wrong is said in Ray's last line."""
    run = subprocess.run
    does = (
        '[ "$RAY_AUTH_MODE" = token ] || { echo "AuthenticationError: no token" >&2; exit 1; };'
        '[ -z "$OTHER" ] || { echo "Version mismatch" >&2; exit 1; }'
    )
    monkeypatch.setattr(subprocess, "run", lambda _, **options: run(["sh", "-c", does], **options))
    # What is set in the test is unset after it.
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        check_address(address)
        assert os.environ["RAY_AUTH_MODE"] == "token"
        monkeypatch.setenv("OTHER", "1")
        with pytest.raises(ValueError, match=r"cannot be used \(Version mismatch\)"):
            check_address(address)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        with pytest.raises(ValueError, match=r"cannot be used \(AuthenticationError: no token\)"):
            check_address(address)
