"""vLLM's server of one saved model on loopback, and requests to it; for a benchmark and tests."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Two servers would bind their threads to the same cores: one was 1.6 times slower so.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Nothing is fetched, nothing is told, no core belongs to a server."""
# Seconds until it answers, and until it has stopped.
_START, _STOP = 300, 60


@contextmanager
def serving(folder, *options, port=None):
    """Run the server of a saved model; yields (process, port); it is stopped by its process id."""
    port = port or _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "served", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--enforce-eager", "--generation-config", "vllm", *options]
    log = folder.parent / f"{folder.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _wait_until_up(process, port, log)
            yield process, port
        finally:
            process.terminate()
            try:
                process.wait(_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # Where the server was killed, its workers may be left.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def ask(port, body, path="/v1/completions", method="POST"):
    """Return the status and the answer of one request; ``body``: JSON, or bytes as they are."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    return response.status, json.loads(text) if text[:1] == b"{" else text


def completion(prompt, new_tokens, **changes):
    """Return the body of a greedy request for a prompt of token ids."""
    body = {"model": "served", "prompt": prompt, "max_tokens": new_tokens, "temperature": 0}
    return {**body, "logprobs": 1, "return_token_ids": True, **changes}


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(process, port, log):
    end = time.monotonic() + _START
    while process.poll() is None and time.monotonic() < end:
        try:
            if ask(port, None, path="/health", method="GET")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise RuntimeError(f"the server does not answer:\n{log.read_text(errors='replace')[-4000:]}")
