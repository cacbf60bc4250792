"""``python -m layermem`` is the command line: torchrun and Slurm start it so."""

from layermem.cli import main

main()
