"""What agentctl prints: harmless text, versioned JSON, aligned tables, colour only where wanted."""

import io
import json
import unicodedata

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from agent_os.cli import output


@given(st.text(st.characters(exclude_categories=[])))
def test_plain_text_holds_nothing_that_steers_a_terminal(text):
    result = output.plain(text)
    assert not {unicodedata.category(char) for char in result} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert len(result) == len(text)


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"])))
def test_plain_leaves_ordinary_text_alone(text):
    assert output.plain(text) == text


def test_plain_keeps_line_breaks_only_when_asked():
    assert output.plain("a\nb\tc") == "a b c"
    assert output.plain("a\nb", keep_newlines=True) == "a\nb"
    assert output.plain("\x1b[2Jx\u202eexe.txt", keep_newlines=True) == "\ufffd[2Jx\ufffdexe.txt"


def test_json_is_one_versioned_line(capsys):
    output.print_json({"name": "a\nb\udcff"})
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert json.loads(text) == {"api": "v1", "name": "a\nb\udcff"}


PROBE = click.command("probe")(
    output.output_option(names=("agents.name",))(
        lambda as_json: (
            output.print_json({"agents": [{"name": "a\x1b\nb"}, {"name": "c: d"}]})
            if as_json
            else click.echo(output.shortened("long" * 20))
        )
    )
)


def probe(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    PROBE.main([*words], standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("words", [["-o", "json"], ["--json"], ["-ojson"], ["-o", "yaml", "--json"]])
def test_json_is_asked_for_in_several_ways_and_the_last_word_wins(capsys, words):
    assert json.loads(probe(capsys, *words))["api"] == "v1"


def test_yaml_is_the_same_value_and_holds_nothing_that_steers_a_terminal(capsys):
    text = probe(capsys, "-o", "yaml")
    assert text.startswith("---\napi: v1\n")
    assert text.isascii()
    assert "\x1b" not in text
    assert yaml.safe_load(text) == json.loads(probe(capsys, "-o", "json"))
    assert text == probe(capsys, "--json", "-o", "yaml")


def test_names_are_one_a_line_whatever_they_hold(capsys):
    assert probe(capsys, "-o", "name").splitlines() == ["a\ufffd b", "c: d"]


def test_the_wide_format_shortens_nothing(capsys):
    assert probe(capsys).strip().endswith("…")
    assert probe(capsys, "-o", "wide").strip() == "long" * 20


def test_a_verb_that_names_nothing_offers_no_names(capsys):
    nameless = click.command("nameless")(output.output_option(lambda as_json: None))
    with pytest.raises(click.BadParameter, match="name"):
        nameless.main(["-o", "name"], standalone_mode=False)


def test_a_table_is_aligned_and_has_no_trailing_blanks():
    text = output.table([["a", "bb", "c"], ["日本", 1, ""]], headings=["X", "Y", "Z"])
    assert text.splitlines() == ["X     Y   Z", "a     bb  c", "日本  1"]


def test_a_cell_cannot_forge_a_row():
    assert output.table([["one\ntwo"]]) == "one two"


def test_an_empty_table_is_empty():
    assert output.table([]) == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "no_color", "coloured"),
    [(Terminal(), None, True), (Terminal(), "1", False), (Terminal(), "", False), (io.StringIO(), None, False)],
)
def test_colour_only_on_a_terminal_and_without_no_color(monkeypatch, stream, no_color, coloured):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert ("\x1b[" in output.paint("x", "red", stream)) is coloured


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (0.4, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (7300, "2h"), (200_000, "2d")],
)
def test_an_age_is_one_short_word(seconds: float, text: str) -> None:
    assert output.age(seconds) == text


def test_a_long_text_is_cut_and_shows_that_it_was():
    assert output.shortened("x" * 60) == "x" * 60
    assert output.shortened("x" * 100) == "x" * 59 + "…"
    assert output.shortened("abcdef", 4) == "abc…"
