"""Studies: arms x boards x seeds x learning rates under conditions -> records -> one table.

definition    Study, Board, Arm: what is compared, as data; the studies that there are by name
boards        "tiny-lm@64x32", "plain,lime:router_init=identity": boards and arms by their names
hosts         studies of models of transformers: a given one in four ways, encoders on records
planning      a study -> its runs by name, under each condition; what arms chose
carrying_out  trains what is missing (launching) and gathers what came of it (gathering)
run_folders   the same of run folders that are named one by one
records       what runs recorded, and where those of a plan are recorded
estimates     what would be trained, and how long it would take here
"""
