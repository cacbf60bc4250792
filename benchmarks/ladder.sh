#!/usr/bin/env bash
# A ladder of sizes on a GPU, in goes of --minutes; run again with the same --out, it goes on.
# Needs python3 with torch >= 2.11, transformers >= 5.16, accelerate, matplotlib, rich and scipy.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" benchmarks/ladder.py "$@"
