"""A toy upstream: a tree of a few files, its source distribution, its repository, and a series of two patches."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyllamakv.build import digest, home, pin, series
from pyllamakv.build.patch import make_diff

FILES = {
    "CMakeLists.txt": "project(toy)\n",
    "LICENSE": "MIT\n",
    "include/llama.h": "int llama(void);\n",
    "ggml/src/ggml.c": "int ggml = 1;\n",
    "src/CMakeLists.txt": "add_library(llama llama.cpp)\n",
    "src/llama.cpp": "".join(f"int line_{i};\n" for i in range(40)),
    "src/llama-kv.cpp": "".join(f"int kv_{i};\n" for i in range(40)),
}
HEADER = "Description: {}\nOrigin: vendor\nForwarded: no\nBug: A1\nLast-Update: 2026-11-30\n---\n"


@dataclass
class Toy:
    """Paths of the toy and what is pinned."""

    upstream: Path
    home: Path
    archive: Path
    repository: Path

    @property
    def patches(self) -> Path:
        return self.home / "patches"

    @property
    def pin(self) -> pin.Pin:
        return pin.load(self.patches)

    @property
    def series(self) -> series.Series:
        return series.load(self.patches)

    def add_patch(self, name: str, path: str, old: str | None, new: str | None) -> None:
        """One more patch, and its line in the series."""
        text = HEADER.format(name) + make_diff(path, old, new)
        (self.patches / name).write_bytes(text.encode())
        with (self.patches / "series").open("a") as file:
            file.write(name + "\n")


@pytest.fixture
def toy(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """The toy, in place of the real pin; nothing is cached, and no source is named."""
    monkeypatch.delenv("PYLLAMAKV_SOURCE", raising=False)
    upstream = tmp_path / "upstream"
    for path, text in FILES.items():
        (upstream / path).parent.mkdir(parents=True, exist_ok=True)
        (upstream / path).write_bytes(text.encode())
    (upstream / "docs").mkdir()
    (upstream / "docs" / "not-built.md").write_text("no\n")

    packed = tmp_path / "toy-1.0"
    shutil.copytree(upstream, packed / "vendor" / "llama.cpp")
    (packed / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    archive = tmp_path / "toy-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(packed, "toy-1.0")

    repository = tmp_path / "repository"
    shutil.copytree(upstream, repository)
    commit = "0" * 40
    if shutil.which("git"):
        for command in (["init", "-q"], ["add", "."], ["-c", "commit.gpgsign=false", "commit", "-q", "-m", "toy"]):
            name = ["-c", "user.name=toy", "-c", "user.email=toy@example.org"]
            subprocess.run(["git", "-C", str(repository), *name, *command], check=True, capture_output=True)
        done = subprocess.run(
            ["git", "-C", str(repository), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        )
        commit = done.stdout.strip()

    root = tmp_path / "home"
    (root / "patches").mkdir(parents=True)
    (root / "csrc" / "include").mkdir(parents=True)
    (root / "csrc" / "CMakeLists.txt").write_text("project(csrc)\n")
    (root / "csrc" / "pkv.cpp").write_text("int pkv;\n")
    (root / "csrc" / "include" / "pyllamakv.h").write_text("int pkv(void);\n")
    digests = digest.hash_tree(upstream, digest.list_files(upstream))
    (root / "patches" / "pin.lock").write_text(digest.write_lock(digests))
    (root / "patches" / "pin.toml").write_text(
        f'[upstream]\nrepository = "{repository.as_posix()}"\ncommit = "{commit}"\n'
        f'[sdist]\nname = "toy"\nversion = "1.0"\nsha256 = "{digest.file_digest(archive.read_bytes())}"\n'
        f'bytes = {archive.stat().st_size}\nfolder = "vendor/llama.cpp"\n'
        f'[tree]\nsha256 = "{digest.tree_digest(digests)}"\n'
    )
    (root / "patches" / "series").write_text("# order matters\n")
    made = Toy(upstream, root, archive, repository)
    first = FILES["src/llama.cpp"].replace("int line_20;\n", "int line_20;\nint first;\n")
    made.add_patch("0001-add-first.patch", "src/llama.cpp", FILES["src/llama.cpp"], first)
    second = first.replace("int first;\n", "int first;\nint second;\n")
    made.add_patch("0002-add-second.patch", "src/llama.cpp", first, second)
    monkeypatch.setattr(home, "home", lambda: root)
    return made
