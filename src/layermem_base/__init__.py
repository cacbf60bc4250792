"""What the library and the bench share and that imports neither torch nor transformers."""

__version__ = "0.1.0"
