"""What every artefact of the paper needs: plans, records, evaluation, estimates, summaries.

    artefact    what an artefact says of itself: claim, numbers, studies, how it is observed
    plans       the runs of an artefact by name
    recorded    which planned runs are recorded, wherever they lie
    training    train what is missing, choosing learning rates first
    observing   numbers of ended runs: losses, right answers, FLOPs to a loss
    inspecting  numbers of analyses of ended runs
    estimates   what a plan would cost here
    summary     observed numbers and claims -> ``ArtefactResult``

It does not know: any particular artefact, tables, pages, the command line.
"""
