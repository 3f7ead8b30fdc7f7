"""Writes a file and ends. What it wrote stays apart until somebody commits it."""

from pathlib import Path

Path("report.md").write_text("# Report\n\nEverything is in order.\n")
print("report: written")
