"""The name of this machine's processor, by which measurements of two machines are told apart."""

import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def processor_name() -> str:
    """Return the processor's name as the system has it, else its architecture, such as x86_64."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            field, _, value = line.partition(":")
            # Of some architectures there is none.
            if field.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()
