"""Where a model says what it was trained on: a field of its config, or of its saved routers."""

FIELD = "layermem_lineage"
"""Name of the field of a model's config."""
ROUTERS = "routers.json"
"""File of saved routers, which says what trained them and their base."""
