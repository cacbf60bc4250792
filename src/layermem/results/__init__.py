"""Results as types: frozen dataclasses that cross floors, each with a version and a way to JSON.

    solved       what models solve of tasks: result.json of a run, solved.json
    study        arms side by side, seed by seed: study.json
    analysis     what goes on inside models: analysis.json
    costs        parameters, FLOPs, time and memory: costs.json
    perplexity   losses on documents: perplexity.json
    minimal_pairs  right judgements of grammar: blimp.json
    eval         answers to evaluation tasks: eval.json
    quickstart   what came out of a quickstart: quickstart.json

``experiments`` and ``analysis`` make them, ``report`` draws them, the command line prints them.

It does not know: how anything is computed or drawn.
"""
