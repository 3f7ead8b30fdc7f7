"""An ordinary script that knows nothing of Agent OS: reads notes, writes a report, tries to post it somewhere."""

import pathlib
import urllib.error
import urllib.request

notes = sorted(pathlib.Path("notes").glob("*.txt"))
words = sum(len(note.read_text().split()) for note in notes)
pathlib.Path("report.md").write_text(f"# Report\n\n{len(notes)} notes, {words} words.\n")
notes[0].write_text(notes[0].read_text() + "(read)\n")
print(f"wrote report.md about {len(notes)} notes")

try:
    urllib.request.urlopen("http://reports.example/upload", data=b"report", timeout=5)
    print("posted the report")
except (urllib.error.URLError, OSError) as refusal:
    print(f"could not post the report: {refusal}")
