"""Record the facts of the variants, and write their table into docs/family.md: python THIS_FILE.

To be run after a variant has been added or has changed what it costs.
"""

import re
from pathlib import Path

from layermem.experiments.variant_facts import find_facts
from layermem.results.variant_facts import markdown_table, write_facts

PAGE = Path(__file__).parent / "family.md"


def main() -> None:
    facts = find_facts()
    write_facts(facts)
    text = PAGE.read_text(encoding="utf-8")
    table = markdown_table(facts)
    page, count = re.subn(r"(?m)^\| variant \|.*\n(\|.*\n)+", lambda _: f"{table}\n", text)
    if count != 1:
        raise SystemExit(f"{PAGE} must have one table that begins with '| variant |', got {count}")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
