"""Prints the section of a changelog about a version: notes.py CHANGELOG VERSION"""

import re
import sys
from pathlib import Path


def main() -> None:
    changelog, version = sys.argv[1:]
    sections = re.split(r"^## ", Path(changelog).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = [text for text in sections if re.match(re.escape(version) + r" - \d{4}-\d\d-\d\d$", text.splitlines()[0])]
    if len(found) != 1:
        sys.exit(f"{changelog} has {len(found)} sections with the heading '## {version} - YYYY-MM-DD'")
    print(f"# Tandem {found[0].strip()}")


if __name__ == "__main__":
    main()
