"""Results for people and programs: a table in the terminal, JSON, and an HTML page that opens offline."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllamakv.paths import atomic_write

from .runner import ORDER, Result
from .scenario import all_scenarios

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["SCHEMA", "how_far", "html", "table", "to_json", "write_html", "write_json"]

SCHEMA = 1

_STYLE = {"ok": "green", "wrong": "yellow", "nan": "magenta", "died": "red", "error": "bold red"}


def to_json(results: Sequence[Result]) -> dict[str, Any]:
    """``{"schema", "machine", "results": [{scenario, model, library, outcome, detail, nmse, …}]}``."""
    return {
        "schema": SCHEMA,
        "machine": _machine(),
        "results": [asdict(result) for result in results],
    }


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}"


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write :func:`to_json`, whole or not at all."""
    with atomic_write(path) as file:
        file.write((json.dumps(to_json(results), indent=1) + "\n").encode())


def how_far(result: Result) -> str:
    """The outcome in a word or two: ``ok``, ``off by 3e-01``, ``NaN``, ``died``."""
    far = [check["nmse"] for check in result.checks if not check["ok"] and check["nmse"] is not None]
    if result.outcome == "wrong" and far:
        return f"off by {max(far):.0e}"
    return {"nan": "NaN"}.get(result.outcome, result.outcome)


def table(results: Sequence[Result]) -> Table:
    """One row a scenario and model, one column a library."""
    from rich.table import Table

    labels = _labels(results)
    out = Table(title="What users meet", show_lines=False)
    for heading in ("scenario", "model", *labels, "seen first"):
        out.add_column(heading, overflow="fold")
    for (scenario, model), row in _rows(results).items():
        cells = [_cell(row.get(label)) for label in labels]
        worst = max(row.values(), key=lambda result: ORDER.index(result.outcome))
        out.add_row(scenario, model, *cells, "" if worst.outcome == "ok" else worst.detail)
    return out


def _cell(result: Result | None) -> Text:
    from rich.text import Text

    return Text("") if result is None else Text(how_far(result), _STYLE[result.outcome])


def write_html(results: Sequence[Result], path: Path) -> None:
    """Write :func:`html`, whole or not at all."""
    with atomic_write(path) as file:
        file.write(html(results).encode())


def html(results: Sequence[Result]) -> str:
    """One page, no script, nothing loaded from elsewhere: the stories, the outcomes, the error of each check drawn."""
    from jinja2 import Environment, StrictUndefined

    template = resources.files(__package__).joinpath("templates/report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    labels = _labels(results)
    rows = _rows(results)
    stories = [
        {
            "scenario": scenario,
            "runs": [
                {"model": model, "results": row, "plot": _plot([row[label] for label in labels if label in row])}
                for (name, model), row in rows.items()
                if name == scenario.name
            ],
        }
        for scenario in all_scenarios()
    ]
    libraries = {result.library: result for result in results}
    return environment.from_string(template).render(
        labels=labels,
        stories=[story for story in stories if story["runs"]],
        libraries=libraries,
        how_far=how_far,
        machine=_machine(),
    )


@dataclass(frozen=True)
class _Point:
    x: float
    y: float
    title: str
    ok: bool


@dataclass(frozen=True)
class _Line:
    library: str
    points: tuple[_Point, ...]

    @property
    def path(self) -> str:
        """SVG polyline points."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True)
class _Plot:
    """The error of each comparison on a logarithmic scale, 1e-12 at the bottom and 10 (or NaN) at the top."""

    lines: tuple[_Line, ...]
    bound: float | None
    width: int = 640
    height: int = 150


_LOW, _HIGH = -12.0, 1.0


def _plot(results: Sequence[Result]) -> _Plot | None:
    compared = {r.library: [check for check in r.checks if check["bound"] is not None] for r in results}
    most = max((len(checks) for checks in compared.values()), default=0)
    if most == 0:
        return None
    width, height = _Plot.width, _Plot.height

    def y(value: float | None) -> float:
        if value is None or not math.isfinite(value):
            return 6.0
        level = min(max(math.log10(max(value, 1e-12)), _LOW), _HIGH)
        return 10 + (height - 20) * (1 - (level - _LOW) / (_HIGH - _LOW))

    lines = []
    for library, checks in compared.items():
        points = tuple(
            _Point(
                20 + (width - 40) * (i + 0.5) / most,
                y(check["nmse"] if check["finite"] else None),
                f"{library}: {check['label']}: {'NaN' if not check['finite'] else check['nmse']}",
                check["ok"],
            )
            for i, check in enumerate(checks)
        )
        lines.append(_Line(library, points))
    bounds = [check["bound"] for checks in compared.values() for check in checks]
    return _Plot(tuple(lines), y(max(bounds)) if bounds else None)


def _labels(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.library for result in results))


def _rows(results: Sequence[Result]) -> dict[tuple[str, str], dict[str, Result]]:
    rows: dict[tuple[str, str], dict[str, Result]] = {}
    for result in results:
        rows.setdefault((result.scenario, result.model), {})[result.library] = result
    return rows
