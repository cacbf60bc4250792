"""``python -m layermem``: the command, as torchrun and Slurm start it."""

from layermem_bench.__main__ import main

if __name__ == "__main__":
    main()
