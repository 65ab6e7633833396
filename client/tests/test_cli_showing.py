"""What the command line prints of other people's texts."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstate_client.cli.arguments import EPILOG, main, parser
from agentstate_client.cli.showing import HIDDEN, Screen, json_line, shown

DOCS = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
HOSTILE = "\x1b[2J\u202edesrever\u2066\x9b31m\x07\r\n"


@given(st.text())
def test_nothing_that_is_shown_is_hidden(text: str) -> None:
    assert not {unicodedata.category(char) for char in shown(text)} & HIDDEN


@settings(max_examples=50)
@given(
    st.recursive(
        st.text() | st.integers() | st.none(),
        lambda of: st.lists(of) | st.dictionaries(st.text(), of),
        max_leaves=10,
    )
)
def test_a_line_of_json_says_what_the_text_says(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1)
    line = json_line(text)
    assert json.loads(line) == value
    assert not {unicodedata.category(char) for char in line} & HIDDEN


def test_numbers_keep_their_digits() -> None:
    assert json_line('{"a": 1.10e5,\n"b": 12345678901234567890}') == (
        '{"a": 1.10e5, "b": 12345678901234567890}'
    )


def test_escapes_are_shown_as_such() -> None:
    assert shown(HOSTILE) == "\\x1b[2J\\u202edesrever\\u2066\\x9b31m\\x07\\r\\n"
    assert shown("日本 ok") == "日本 ok"
    assert shown("abcdef", most=4) == "abc…"


def test_a_plain_table_is_aligned_and_ends_without_blanks() -> None:
    out = io.StringIO()
    Screen(json=False, stream=out).table(
        ["name", "#n", "note"], [["日本", 5, HOSTILE], ["a", 1_000, None]]
    )
    lines = out.getvalue().splitlines()
    assert lines[0] == "name     n  note"
    assert lines[1].startswith("日本     5  \\x1b[2J")
    assert lines[2] == "a     1000"


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_none_are_wanted(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31m" in Screen(json=False, stream=Terminal()).styled("failed")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Screen(json=False, stream=Terminal()).styled("failed") == "failed"


def test_every_command_and_exit_code_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    commands = re.findall(r"^    ([a-z]+) ", parser().format_help(), re.MULTILINE)
    assert {f"agentstate {name}" for name in commands} <= set(
        re.findall(r"agentstate [a-z]+", text)
    )
    said = re.findall(r"^  ([0-9]+) ", EPILOG, re.MULTILINE)
    assert re.findall(r"^\| ([0-9]+) \|", text, re.MULTILINE) == said
    assert len(commands) == 8


@pytest.mark.parametrize(
    "asked", [["runs", "--task"], ["runs", "--owner"], ["leases", "--owner"], ["receipt"], ["tail"]]
)
def test_octets_that_are_no_text_are_refused_in_a_line(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-110 (docs/sweeps.md): a traceback, where they became a parameter of an address."""
    monkeypatch.setenv("AGENTSTATE_API_KEY", "as_none")
    assert main(["--url", "http://127.0.0.1:9", *asked, "\udcff"]) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(r"agentstate: .*half a surrogate pair.*\n", told)


def test_what_was_typed_comes_back_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-110: an argument that nobody knows, and the name of a file."""
    monkeypatch.delenv("AGENTSTATE_API_KEY", raising=False)
    with pytest.raises(SystemExit):
        main(["runs", HOSTILE])
    assert main(["--key-file", f"/none/{HOSTILE}", "runs"]) == 2
    told = capsys.readouterr().err
    assert told.count("\\u202edesrever") == 2
    assert not set(told) & set("\x1b\u202e\x9b\x07\r")
