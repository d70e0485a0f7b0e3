"""Prints the licences of Tandem and of all crates in the program, with the notices that most of them ask to pass on."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
TARGET = "x86_64-unknown-linux-musl"
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def crates() -> list[dict]:
    """The packages that the program links, as cargo describes them."""
    command = ("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET)
    made = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, check=True)
    metadata = json.loads(made.stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [id for id, package in packages.items() if package["name"] == "tandem"]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if linked and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return sorted((packages[id] for id in seen), key=lambda package: (package["name"], package["version"]))


def main() -> None:
    owners = defaultdict(list)
    for crate in crates():
        name = f"{crate['name']} {crate['version']}"
        ours = crate["source"] is None
        print(f"{name}: {crate['license'] or 'see its text below'}")
        folder = PROJECT if ours else Path(crate["manifest_path"]).parent
        # Crates that contain another project, such as jemalloc, have its licence one folder below.
        for file in sorted([*folder.iterdir(), *folder.glob("*/COPYING")]):
            if file.is_file() and file.name.upper().startswith(NAMES):
                owners[file.read_text(errors="replace").strip()].append(name)
    for text, names in sorted(owners.items(), key=lambda pair: pair[1]):
        print(f"\n{'=' * 80}\n{', '.join(names)}\n{'=' * 80}\n{text}")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    main()
