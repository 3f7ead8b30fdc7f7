"""The page of keys tells every key of a manifest, and is current."""

from abi.test_syscalls import ROOT, reference
from agent_os.manifest import explaining


def test_the_page_of_keys_is_current() -> None:
    page = (ROOT / "docs" / "manifest-keys.md").read_text(encoding="utf-8")
    assert page == reference().keys_page(), "run scripts/reference"


def test_the_page_of_keys_tells_every_key_in_its_table() -> None:
    sections = reference().keys_page().split("\n## ")[1:]
    told = {section.partition("\n")[0]: section for section in sections}
    assert len(told) == len(sections)
    for row in explaining.reference():
        table, _, key = row.key.rpartition(".")
        assert f"| `{key}` |" in told[f"[{table}]" if table else "At the top"]
