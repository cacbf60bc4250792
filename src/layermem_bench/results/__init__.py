"""Results as types: frozen dataclasses that cross floors, each with a version and a way to JSON.

``study``, ``evals`` and ``analysis`` make them, ``report`` draws them.
"""
