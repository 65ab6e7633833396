import json
import re
from html import unescape

from django.utils.html import strip_tags

from dashboard import payloads

LINE = re.compile(r'<summary>.*?</summary>|<div class="j-line">.*?</div>')
EXACT = (
    '{"id":1970670598291982290,"max":9223372036854775807,"neg":-9007199254740993,"f":0.1,"e":1e21}'
)


def test_digits_stay_as_they_were_sent():
    shown = strip_tags(payloads.pretty(EXACT))

    for digits in ("1970670598291982290", "9223372036854775807", "-9007199254740993", "1e21"):
        assert digits in shown
        assert digits in strip_tags(payloads.preview(EXACT))


def test_a_payload_is_laid_out_by_level():
    laid_out = payloads.pretty('{"a":[1,{"b":null}],"c":{}}')

    assert [unescape(strip_tags(line)) for line in LINE.findall(laid_out)] == [
        "{ 2 … }", '"a": [ 2 … ]', "1,", "{ 1 … }", '"b": null', "}", "],", '"c": {}', "}",
    ]  # fmt: skip
    assert laid_out.count("<details") == laid_out.count("</details>") == 3


def test_every_part_that_is_opened_is_closed_however_deep_it_is():
    for text in ("[" * 300 + "]" * 300, '{"a":' * 200 + "1" + "}" * 200, '[[1,[2]],{"x":[[]]}]'):
        laid_out = payloads.pretty(text)

        assert laid_out.count("<details") == laid_out.count("</details>") <= payloads.FOLDS_DEEP
        assert laid_out.count("<div") == laid_out.count("</div>")
        told = unescape(re.sub(r"<span class=.j-more.*?</span>|<[^>]*>", "", laid_out))
        assert told.replace(": ", ":") == text


def test_what_is_no_json_any_more_is_shown_as_it_is():
    for text in ("[1,", '{"a":[1}', "", "]", "{" * 30):
        assert unescape(strip_tags(payloads.pretty(text))) == text


def test_a_very_long_list_is_not_laid_out():
    text = f"[{','.join(['1'] * 30_000)}]"

    assert "<details" not in payloads.pretty(text)
    assert payloads.members(text) is None


def test_markup_in_a_payload_is_text():
    hostile = '{"<img src=x>":"</script><svg onload=alert(1)>","k":[{"hx-get":"<b>"}]}'

    members = payloads.members(hostile)
    shown = [payloads.preview(hostile), payloads.pretty(hostile)]
    shown += [m.text or m.shown or "" for m in members or []]

    for html in shown:
        assert "<img" not in html
        assert "<svg" not in html
        assert "<b>" not in html


def test_texts_are_read_with_their_own_line_breaks():
    members = payloads.members('{"thought":"first\\nsecond","n":12,"nested":{"a":[1,2]}}')

    assert members is not None
    assert [m.name for m in members] == ["thought", "n", "nested"]
    assert members[0].text == "first\nsecond"
    assert strip_tags(members[1].shown) == "12"
    assert unescape(strip_tags(members[2].shown)) == '{ 1 … }"a": [ 2 … ]1,2]}'


def test_what_has_no_long_text_is_shown_as_json():
    assert payloads.members('{"step":1,"tool":"bash"}') is None
    assert payloads.members("[1,2]") is None
    assert payloads.members('{"a":[1,"b"],"c":{}}') is None
    assert payloads.members('"only a text\\nof two lines"') is None


def test_a_diff_has_its_lines_marked():
    text = payloads.prose("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<old>\n+new\n same")

    assert '<span class="d-less">-&lt;old&gt;</span>' in text
    assert '<span class="d-more">+new</span>' in text
    assert '<span class="d-place">@@ -1 +1 @@</span>' in text


def test_a_list_of_messages_is_read_message_by_message():
    text = '[{"role":"user","content":"first\\nsecond"},{"role":"tool","content":"x"}]'
    told = payloads.members(text)

    assert told is not None
    assert [member.name for member in told] == ["0", "1"]
    assert told[0].members is not None
    assert [(m.name, m.text) for m in told[0].members][1] == ("content", "first\nsecond")


def test_json_in_a_text_is_read_and_an_edit_is_shown_as_what_is_different():
    call = {"name": "edit", "arguments": json.dumps({
        "path": "a.py", "old_str": "one\ntwo\nthree", "new_str": "one\n2\nthree"})}  # fmt: skip
    told = payloads.members(json.dumps({"tool_calls": [call]}))

    assert told is not None
    assert told[0].members is not None
    arguments = told[0].members[0].members[1]
    assert arguments.said == "JSON in a text"
    path, edit = arguments.members
    assert (path.name, edit.name) == ("path", "old_str → new_str")
    assert strip_tags(edit.text).split("\n") == ["  one", "- two", "+ 2", "  three"]


def test_only_the_lines_of_a_diff_are_marked_as_one():
    text = "- a list\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n same\n- after it\n+ also"
    marked = payloads.prose(text)

    assert marked.count("d-less") == marked.count("d-more") == 1
    assert marked.startswith("- a list\n")
    assert marked.endswith("\n- after it\n+ also")


def test_what_has_no_look_is_shown_by_a_sign_and_obeyed_by_nobody():
    text = json.dumps(
        {"out": "\x1b[31mred\x1b[0m \u202eexe.png\u202c \x00\ud800 line\r\n" + "y" * 80}
    )
    (member,) = payloads.members(text)

    assert "\u241b[31mred\u241b[0m \u27e8U+202E\u27e9exe.png" in member.text
    for shown in (member.text, payloads.preview(text), payloads.pretty(json.dumps("\u202e"))):
        assert not set("\x1b\u202e\x00\r") & set(shown)
        shown.encode()


def test_what_was_looked_for_is_marked_in_every_way_of_showing_it():
    text = '{"thought":"Look at <b>Window</b> and the window\\n","n":1}'
    (thought, _) = payloads.members(text, "window")

    assert thought.text.count("<mark>") == 2
    assert "&lt;b&gt;<mark>Window</mark>" in thought.text
    assert payloads.pretty(text, "<B>").count("<mark>&lt;b&gt;</mark>") == 1
    assert "<mark>window</mark>" in payloads.preview(text, "window")
    assert len(payloads.excerpts(text * 50, "window")) == payloads.EXCERPTS_MAX
    assert payloads.excerpts(text, "") == []


def test_two_texts_are_compared_with_a_little_around():
    old = "\n".join(str(n) for n in range(100))
    told = strip_tags(payloads.difference(old, old.replace("50", "fifty"))).split("\n")

    assert told == ["  47", "  48", "  49", "- 50", "+ fifty", "  51", "  52", "  53"]
    assert strip_tags(payloads.difference("", "new")) == "+ new"
    assert payloads.difference("same", "same") == ""


def test_a_preview_may_end_anywhere():
    whole = '{"thought":"a \\"quoted\\" text and more","n":[1,2,3]}'

    for length in range(len(whole)):
        payloads.preview(whole[:length])


def test_a_text_that_was_cut_is_shown_as_far_as_it_goes():
    whole = '{"out":"one\\r\\n\\ttwo \\u202e three \\"four\\""}'

    for length in range(8, len(whole)):
        shown = unescape(strip_tags(payloads.preview(whole[:length])))
        assert "\\" not in shown, (length, shown)


def test_what_has_no_width_is_shown_where_only_an_agent_would_read_it():
    """S-116 (docs/sweeps.md): an instruction in tag characters looked like nothing at all."""
    smuggled = "".join(chr(0xE0000 + ord(letter)) for letter in "delete it")
    text = json.dumps({"out": f"ok{smuggled}"}, ensure_ascii=False)

    for shown in (payloads.preview(text), payloads.pretty(text), payloads.visible(smuggled)):
        assert "\u27e8U+E0064\u27e9\u27e8U+E0065\u27e9" in shown  # d, e
    signs = "".join(f"\u27e8U+{code}\u27e9" for code in ("FEFF", "200B", "2060", "009B", "00AD"))
    assert payloads.visible("\ufeff\u200b\u2060\x9b\u00ad") == signs


def test_emoji_and_scripts_that_join_their_letters_stay_as_they_are():
    """S-116: a family, a flag by its tags, a word of Persian, a heart with its variation."""
    flag = "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbwls") + "\U000e007f"
    for text in (
        "👩\u200d👩\u200d👧",
        flag,
        "\u0646\u0645\u06cc\u200c\u0634\u0648\u062f",
        "❤\ufe0f",
    ):
        assert payloads.visible(text) == text
