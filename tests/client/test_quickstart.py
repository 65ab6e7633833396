"""docs/quickstart.md: its program runs as it stands, and says what it should."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"


def test_the_first_run_of_the_quick_start_is_completed(live_server, api_key, monkeypatch, capsys):
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("URL", live_server.url)
    monkeypatch.setenv("KEY", api_key)
    exec(compile(program, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == "completed\n"
