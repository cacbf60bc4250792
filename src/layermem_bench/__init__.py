"""layermem_bench: what trains, evaluates and compares the models of layermem."""
