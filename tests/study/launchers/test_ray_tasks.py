"""What Ray is asked for, and what it has no room for; no process of Ray is started."""

import pytest

from layermem_bench.study.launchers import ray_tasks
from layermem_bench.study.launchers.launcher import Launching
from layermem_bench.study.launchers.ray_cluster import slots
from layermem_bench.study.launchers.ray_tasks import RayTasks, needs


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
