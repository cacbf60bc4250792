"""What an architecture costs: parameters, FLOPs, time, memory.

It does not know: what it is worth.
"""
