#!/usr/bin/env bash
# Routing on a GPU: correctness, then time and memory, in about six minutes; run again, it goes on.
# Needs python3 with torch >= 2.11 and transformers >= 5.16; nothing is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
