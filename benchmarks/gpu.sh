#!/usr/bin/env bash
# Routing on a GPU: correctness, then time and memory, until nine minutes are over; --resume goes on.
# Needs python3 with torch >= 2.11, transformers >= 5.16 and triton; nothing is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 TRITON_INTERPRET=0
exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
