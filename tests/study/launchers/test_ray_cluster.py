"""Which cluster of Ray is used, and which cannot be; no process of Ray is started."""

import os
import socket
import subprocess
import sys

import pytest

from layermem_bench.study.launchers import ray_cluster
from layermem_bench.study.launchers.ray_cluster import check_address, connect


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
    monkeypatch.setattr(ray_cluster, "_TO_ANSWER", 1.0)
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


def test_without_an_address_no_other_cluster_is_joined(monkeypatch):
    """Ray itself takes the newest cluster of a machine, and waits for it where it has ended."""
    asked = {}

    class MadeUpRay:
        is_initialized = staticmethod(lambda: False)
        init = staticmethod(lambda **options: asked.update(options))

    monkeypatch.setitem(sys.modules, "ray", MadeUpRay)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "0")
    assert connect(None) is MadeUpRay
    assert asked["address"] == "local"
