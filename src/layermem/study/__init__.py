"""Studies: arms x boards x seeds x learning rates under conditions -> records -> one table.

definition   Study, Board, Arm: what is compared, as data
arms         "plain,lime:router_init=identity" -> arms of variants
planning     a study -> its runs by name: those that choose learning rates, those that count
conditions   equal tokens, time, parameters: functions Run -> Run
carrying_out trains what is missing, and returns what came of it
estimates    what would be trained, and how long it would take here
registry     the studies that there are by name
"""
