"""Connections to Ray, on this machine or on a cluster, and what its machines have room for."""

import importlib
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# Seconds for a connection, and for the cluster's answer: Ray itself waits for minutes.
_TO_CONNECT, _TO_ANSWER = 5.0, 40.0
_AUTH_MODE = "RAY_AUTH_MODE"


def connect(address: str | None) -> Any:
    """Connect to a cluster, or start Ray on this machine, unless that has been done; return Ray."""
    # A study sends nothing anywhere unless its user wants that.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # Read as Ray is imported: its processes then listen to this machine alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    else:
        check_address(address)
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init(
            address=address or "local",
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    return ray


def check_address(address: str) -> None:
    """Raise unless the head of a Ray cluster answers at HOST:PORT, within a minute."""
    named = re.fullmatch(r"\[?([^\[\]/]+?)\]?:(\d+)", address)
    if named is None or not 0 < int(named[2]) < 2**16:
        raise ValueError(
            f"--address must be HOST:PORT, as `ray start --head` prints it, got {address!r}"
        )
    start = "start a cluster with `ray start --head`, or leave --address out: Ray then runs here"
    try:
        socket.create_connection((named[1], int(named[2])), timeout=_TO_CONNECT).close()
    except OSError as error:
        raise ValueError(f"nobody listens at --address {address} ({error}); {start}") from error
    said = _status(address)
    if said is not None and "AuthenticationError" in said and _AUTH_MODE not in os.environ:
        # `ray start` has its cluster ask for a token where there is one; clients are told.
        os.environ[_AUTH_MODE] = "token"
        said = _status(address)
    if said is not None:
        raise ValueError(f"--address {address} cannot be used ({said}); {start}")


def _status(address: str) -> str | None:
    """Return why a cluster cannot be used, in Ray's own last line; None: it can."""
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        asked = subprocess.run(status, capture_output=True, timeout=_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not answer as Ray within {_TO_ANSWER:.0f} seconds"
    if not asked.returncode:
        return None
    lines = asked.stderr.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason")


def machines(ray: Any) -> list[dict[str, float]]:
    """Return what each machine of a cluster has, by Ray's names."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def check_fits(ray: Any, needed: Mapping[str, float], what: str) -> None:
    """Raise where no machine has what a run or task needs: Ray would wait for such a machine."""
    if not any(slots(machine, needed) for machine in machines(ray)):
        has = "; ".join(_in_words(machine) for machine in machines(ray))
        raise ValueError(
            f"no machine of Ray has what {what} needs, {_in_words(needed)}; there are "
            f"{has}: ask for less, or start another machine first"
        )


def slots(machine: Mapping[str, float], needed: Mapping[str, float]) -> int:
    """Return how many runs or tasks a machine has room for at once."""
    return min(int(machine.get(name, 0) // amount) for name, amount in needed.items())


def _in_words(amounts: Mapping[str, float]) -> str:
    words = {"CPU": "{:g} CPUs", "GPU": "{:g} GPUs"}
    of = [text.format(amounts[name]) for name, text in words.items() if amounts.get(name)]
    if amounts.get("memory"):
        of.append(f"{amounts['memory'] / 1e9:.3g} GB")
    return ", ".join(of) or "nothing"
