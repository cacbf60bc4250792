"""A module run as a command that ends with its parent: python -m ...tethered MODULE OPTIONS.

The parent holds standard input open and writes nothing. When it ends, however it does, the read
returns, and this process is sent SIGTERM: a training saves and ends.
"""

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    """Run the module that is named, and end when standard input does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    # Of the descriptor: a reader of sys.stdin would hold its lock while the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
