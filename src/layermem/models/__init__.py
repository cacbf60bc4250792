"""One LLaMA-shaped decoder with two seams, and the registry of the variants that fill them.

It does not know: any particular variant.
"""
