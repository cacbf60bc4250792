"""Results as types: frozen dataclasses that cross floors, each with a version and a way to JSON.

    study        runs of a study by board, condition, arm and seed: study.json
    comparing    what its lines come to: means, differences, claims
    eval         what checkpoints know, side by side: eval.json
    analysis     what goes on inside models: analysis.json
    costs        parameters, FLOPs, time and memory: costs.json
    solved       what a run's model gets right: result.json, records.json, answers.json

``study``, ``evals`` and ``analysis`` make them, ``report`` draws them.
"""
