"""The rules of the house that a reader relies on: who imports whom, how long a module is, what it says it exports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyllamakv

PACKAGE = Path(pyllamakv.__path__[0])
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_cdef.py")

# What a room may import of ours. `errors` and `paths` stand under everything.
ALLOWED = {
    "build": set(),
    "native": set(),
    "runtime": {"native"},
    "planning": {"native", "runtime"},
    "sharing": {"native", "runtime"},
    "replay": {"native", "runtime", "build"},
}
FOUNDATION = {"errors", "paths"}


def name_of(path: Path) -> str:
    return ".".join(["pyllamakv", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Dotted names of ours that a module imports, wherever in the module the import stands."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "pyllamakv")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            if base.split(".")[0] == "pyllamakv":
                yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_arrows(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    if room not in ALLOWED:
        return
    for imported in imports(path):
        target = [*imported.split("."), ""][1]
        assert target in {room, *ALLOWED[room], *FOUNDATION, ""}, f"{room} imports {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_is_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "say in one line what the module is for"
    assert len(text.splitlines()) <= 400, "one purpose each: split it"
    if path.name == "__main__.py":
        return
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    # what a decorator registers (a scenario) is reached through the registry, not by import
    offers = any(
        isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and not node.decorator_list
        for node in tree.body
    )
    assert not offers or "__all__" in assigned, "list what the module offers in __all__"


def test_build_needs_only_the_standard_library() -> None:
    """The driver runs before anything is compiled or installed."""
    blocked = ["cffi", "numpy", "typer", "rich", "jinja2", "gguf"]
    block = f"import sys; sys.modules.update(dict.fromkeys({blocked}))"
    command = f"{block}; import pyllamakv.build.driver, pyllamakv.build.__main__"
    subprocess.run([sys.executable, "-c", command], check=True, cwd=PACKAGE.parent)
