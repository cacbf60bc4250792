"""Which of the models that were measured side by side differ in the seed alone.

It does not know: how they are told apart, what was measured.
"""

from collections.abc import Mapping
from typing import TypeAlias

Arms: TypeAlias = Mapping[str, tuple[str, ...]]
"""Name of each arm to the names of its models, by seed; all arms have the same seeds. Empty: the
models are not runs on the same data and of the same seeds."""
