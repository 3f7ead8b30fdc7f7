"""The documentation says what is there: links lead somewhere, verbs, flags and files exist.

Read from the Markdown alone: inline code and fenced blocks. The verbs and flags are asked of agentctl itself.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from agent_os.cli import main as cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)

_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CALL = re.compile(r"\bagentctl +((?:(?! {2}| *#|agentctl).)*)")
_FLAG = re.compile(r"-[a-z]|--[a-z-]+")
_ROOMS = ("abi", "cli", "kernel", "sandbox", "userland")
_FILE = re.compile(rf"(?:(?:src|docs|tests|examples|scripts)/|(?:{'|'.join(_ROOMS)})/(?=[\w/]*\.py$))[\w./-]*")


def missing_links(page: Path, text: str) -> Iterator[str]:
    """Relative links to a file that is not there, or to a heading that its page does not have."""
    for link in _LINK.findall(_FENCE.sub("", text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            yield link


def anchors(text: str) -> set[str]:
    """The headings of a page as links spell them."""
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(text)}


def unknown_words(text: str) -> Iterator[str]:
    """Verbs and flags of agentctl, in inline code and fenced blocks, that it does not have."""
    code = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    code += _CODE.findall(_FENCE.sub("", text))
    for line in code:
        for call in _CALL.findall(line):
            yield from _unknown_in_call(call.split())
        if line.startswith("--"):  # a flag that stands alone is one of ours
            word = line.split()[0]
            if word not in set().union(*flags().values()):
                yield word


def _unknown_in_call(words: list[str]) -> Iterator[str]:
    own = words[: words.index("--")] if "--" in words else words
    verb = next((word for word in own if not word.startswith("-")), "")
    if verb and verb not in cli.VERBS:
        yield f"agentctl {verb}"
        return
    for word in own:
        flag = word.partition("=")[0]
        if _FLAG.fullmatch(flag) and flag not in flags()[verb]:
            yield f"agentctl {verb} {flag}"


@cache
def flags() -> dict[str, set[str]]:
    """The flags of every verb; those of agentctl itself under the empty name."""
    commands = {"": cli.app, **{verb: cli.app.get_command(click.Context(cli.app), verb) for verb in cli.VERBS}}
    return {
        verb: {"-h", "--help", *(name for one in _with_inner(command) for p in one.params for name in _spellings(p))}
        for verb, command in commands.items()
        if command
    }


def _spellings(parameter: click.Parameter) -> list[str]:
    """A flag's names; of `--local/--remote` both."""
    return [*parameter.opts, *parameter.secondary_opts]


def _with_inner(command: click.Command) -> list[click.Command]:
    """A command and, where it has some of its own, those: `audit verify`."""
    inner = {} if isinstance(command, cli.AgentCtl) else getattr(command, "commands", {})
    return [command, *inner.values()]


def missing_files(text: str) -> Iterator[str]:
    """Files named in inline code, from the top of the checkout or from a room."""
    for name in _CODE.findall(_FENCE.sub("", text)):
        if _FILE.fullmatch(name) and not any((top / name).exists() for top in (ROOT, ROOT / "src/agent_os")):
            yield name


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert list(missing_links(page, page.read_text(encoding="utf-8"))) == []


def test_every_verb_and_flag_exists(page: Path) -> None:
    assert list(unknown_words(page.read_text(encoding="utf-8"))) == []


def test_every_named_file_exists(page: Path) -> None:
    assert list(missing_files(page.read_text(encoding="utf-8"))) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in _LINK.findall(PAGES[0].read_text(encoding="utf-8"))}
    assert [page.name for page in PAGES[1:] if page not in linked] == []


def test_the_pages_are_not_empty_of_what_is_checked() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(_LINK.findall(text)) > 10
    assert {verb for verb in cli.VERBS if f"agentctl {verb}" in text} >= set(cli.VERBS) - {"version"}
    assert len([name for name in _CODE.findall(_FENCE.sub("", text)) if _FILE.fullmatch(name)]) > 20


@pytest.mark.parametrize(
    "text",
    [
        "see [this](docs/nowhere.md)",
        "see [this](README.md#no-such-heading)",
        "see [this](#no-such-heading)\n\n# Another heading\n",
    ],
)
def test_a_broken_link_is_found(text: str) -> None:
    assert list(missing_links(PAGES[0], text))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`agentctl explode`", ["agentctl explode"]),
        ("```\n$ agentctl run --tty -- vim --clean\n```\n", ["agentctl run --tty"]),
        ("```\nkeep: agentctl commit x   drop: agentctl drop x\n```\n", ["agentctl drop"]),
        ("`.venv/bin/agentctl diff x --patch -o yaml` and `agentctl doctor --patch`", ["agentctl doctor --patch"]),
        ("the flag `--fly HOST`", ["--fly"]),
        ("`agentctl` alone, `agentctl run [flags] -- CMD --any`, `curl --noproxy x`, `--net HOST`", []),
    ],
)
def test_an_invented_verb_or_flag_is_found(text: str, found: list[str]) -> None:
    assert list(unknown_words(text)) == found


def test_an_invented_file_is_found() -> None:
    text = "`kernel/process.py`, `kernel/ghost.py`, `docs/sandbox.md`, `tests/nothing/`, `kernel/unprivileged_bpf`"
    assert list(missing_files(text)) == ["kernel/ghost.py", "tests/nothing/"]
