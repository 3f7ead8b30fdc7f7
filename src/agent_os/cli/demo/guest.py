"""An ordinary script that knows nothing of Agent OS: writes a report, and tries to post it somewhere."""

import pathlib
import urllib.error
import urllib.request

words = sum(len(source.read_text().split()) for source in pathlib.Path().glob("*.py"))
pathlib.Path("report.md").write_text(f"# Report\n\n{words} words in this folder.\n")
print("wrote report.md")

try:
    urllib.request.urlopen("http://reports.example/upload", data=b"report", timeout=5)
    print("posted the report")
except (urllib.error.URLError, OSError) as refusal:
    print(f"could not post the report: {refusal}")
