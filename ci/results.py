"""Writes the table of replay results into README.md.

    pyllamakv replay --library both --json results.json && python ci/results.py results.json
    python ci/results.py --check results.json       exit code 1 where README.md says something else

Only what was measured is written: the scenario, the user's words, and the worst outcome on each library.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from pyllamakv.replay.scenario import all_scenarios

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- results: written by ci/results.py -->\n", "<!-- end of results -->\n"
# from good to bad: of several models the worst is shown
ORDER = ["ok", "refused", "wrong", "nan", "died"]


def table(results: list[dict[str, Any]]) -> str:
    """Markdown, one row a scenario, in the order of the set."""
    outcomes: dict[tuple[str, str], list[str]] = defaultdict(list)
    models: dict[str, list[str]] = defaultdict(list)
    for result in results:
        outcomes[result["scenario"], result["library"]].append(result["outcome"])
        if result["model"] not in models[result["scenario"]]:
            models[result["scenario"]].append(result["model"])

    def worst(scenario: str, library: str) -> str:
        found = outcomes[scenario, library]
        return max(found, key=ORDER.index) if found else "not run"

    rows = ["| what users say | stock | patched | on |", "| --- | --- | --- | --- |"]
    for scenario in all_scenarios():
        name = scenario.name
        cells = [f"{scenario.story} (`{name}`)", worst(name, "stock"), worst(name, "patched"), ", ".join(models[name])]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what `pyllamakv replay --library both --json FILE` wrote")
    parser.add_argument("--check", action="store_true", help="write nothing; compare")
    options = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    new = "\n" + table(json.loads(options.results.read_text(encoding="utf-8"))["results"]) + "\n"
    if options.check:
        if old != new:
            print("README.md shows other results than were measured: run ci/results.py", file=sys.stderr)
            return 1
        return 0
    README.write_text(head + BEGIN + new + END + tail, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
