"""The decoder with its two seams, how it is configured and loaded, and the registry of variants."""

# Before any module of this package: importing transformers imports the variants (``layermem``'s own
# ``__init__``), and they need these modules whole.
import transformers  # noqa: F401
