"""Problems that anyone can make: their prompts, their solutions, and how an attempt is graded.

It does not know: models, training.
"""
