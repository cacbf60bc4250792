"""Where the runs of a study are trained: processes here, an array of Slurm, or tasks of Ray."""
