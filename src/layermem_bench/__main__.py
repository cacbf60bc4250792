"""The command `layermem`, which imports torch and `layermem` where something needs them."""

import sys
from importlib.util import find_spec

# What the command requires, by the names of their modules: the extra `bench`.
_REQUIRED = (
    *("accelerate", "datasets", "filelock", "jinja2", "matplotlib", "rich", "scipy", "sklearn"),
    *("tyro", "zstandard"),
)


def main() -> None:
    """Run a command, or say what it takes."""
    missing = [name for name in _REQUIRED if find_spec(name) is None]
    if missing:
        extra = "real" if sys.argv[1:3] == ["models", "fetch"] else "bench"
        sys.stderr.write(
            "layermem: the command needs what trains and measures models "
            f"(missing: {', '.join(missing)}): pip install 'layermem[{extra}]'\n"
        )
        raise SystemExit(2)
    from layermem_bench.cli import main as command

    command()


if __name__ == "__main__":
    main()
