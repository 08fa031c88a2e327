#!/usr/bin/env python3
"""Writes the files that ansible/README.md shows into a folder: example.py README FOLDER. Invariant: a file that is shown is written, whole."""

import pathlib
import re
import sys

readme, folder = map(pathlib.Path, sys.argv[1:])
shown = re.findall(r"^`(inventory/[^`]+|site\.yml)`[^\n]*\n\n```yaml\n(.*?)```", readme.read_text(encoding="utf-8"), re.S | re.M)
assert len(shown) == 6, [name for name, _ in shown]
for name, text in shown:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
