"""Write the requirements of pyproject.toml to standard output, one per line.

`run`: build requirements and dependencies. `dev`: those and the group `dev`. `spark`: the extras `spark` and
`connect`. Older pips know no dependency groups, so the set-up reads them here and hands pip a plain list.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def group(groups: dict[str, list[str | dict[str, str]]], name: str) -> list[str]:
    """Return the requirements of a dependency group with those it includes."""
    found: list[str] = []
    for item in groups[name]:
        found += [item] if isinstance(item, str) else group(groups, item["include-group"])
    return found


def main(kind: str) -> None:
    """Write the list for `kind`: `run`, `dev` or `spark`."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    if kind == "spark":
        extras = project["project"]["optional-dependencies"]
        others = [item for item in extras["connect"] if not item.startswith("mirrormq[")]
        sys.stdout.write("\n".join([*extras["spark"], *others]) + "\n")
        return
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    if kind == "dev":
        wanted += group(project["dependency-groups"], "dev")
    sys.stdout.write("\n".join(wanted) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
