"""The decoder with its two seams, how it is configured and loaded, and the registry of variants."""
