"""What a trained model can do.

It does not know: how it was trained, how results are shown.
"""
