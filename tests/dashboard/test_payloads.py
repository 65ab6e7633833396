from django.utils.html import strip_tags

from dashboard import payloads

EXACT = (
    '{"id":1970670598291982290,"max":9223372036854775807,"neg":-9007199254740993,"f":0.1,"e":1e21}'
)


def test_digits_stay_as_they_were_sent():
    shown = strip_tags(payloads.pretty(EXACT))

    for digits in ("1970670598291982290", "9223372036854775807", "-9007199254740993", "1e21"):
        assert digits in shown
        assert digits in strip_tags(payloads.preview(EXACT))


def test_a_payload_is_laid_out_by_level():
    assert strip_tags(payloads.pretty('{"a":[1,{"b":null}],"c":{}}')) == (
        "{\n  &quot;a&quot;: [\n    1,\n    {\n      &quot;b&quot;: null\n    }\n  ],\n"
        "  &quot;c&quot;: {}\n}"
    )


def test_markup_in_a_payload_is_text():
    hostile = '{"<img src=x>":"</script><svg onload=alert(1)>","k":[{"hx-get":"<b>"}]}'

    members = payloads.members(hostile)
    shown = [payloads.preview(hostile), payloads.pretty(hostile)]
    shown += [m.text or m.shown for m in members or []]

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
    assert "[\n" in strip_tags(members[2].shown)


def test_what_has_no_long_text_is_shown_as_json():
    assert payloads.members('{"step":1,"tool":"bash"}') is None
    assert payloads.members("[1,2]") is None
    assert payloads.members('"only a text\\nof two lines"') is None


def test_a_diff_has_its_lines_marked():
    text = payloads.prose("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<old>\n+new\n same")

    assert '<span class="d-less">-&lt;old&gt;</span>' in text
    assert '<span class="d-more">+new</span>' in text
    assert '<span class="d-place">@@ -1 +1 @@</span>' in text


def test_a_preview_may_end_anywhere():
    whole = '{"thought":"a \\"quoted\\" text and more","n":[1,2,3]}'

    for length in range(len(whole)):
        payloads.preview(whole[:length])
