"""An incident as one file: everything about it, no secret, and read back within bounds."""

from __future__ import annotations

import argparse
import gzip
import json
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings

from agentstate.cli import bundles
from agentstate.cli.arguments import main
from agentstate.cli.output import CommandFailure
from agentstate.store import alerts, keys, targets
from agentstate.store.bundle import Wanted, bundle
from agentstate.store.callers import SYSTEM
from agentstate.store.chain import Chain, seal
from agentstate.store.commands import (
    ChangeCap,
    CreateBudget,
    NewBudget,
    NewEvent,
    Reserve,
)
from agentstate.store.effects import Effect
from agentstate.store.errors import Invalid, NotFound, Refusal
from agentstate.store.minutes import TALLY
from agentstate.store.opened import Opened, Unreadable, open_bundle, read_lines
from agentstate.store.payloads import RawJSON, moment
from tests.store.asking import SENIOR, event

RAW = '{"z":1.50, "a":12345678901234567890,\n"é":"\\u00e9"}'


def refused(ask):
    with pytest.raises(Refusal):
        ask()


@pytest.fixture
def lived(store, clock):
    """A run that was taken over, with payloads, charges, refusals, and what operators did."""
    boss = store.as_caller(SENIOR)
    store.ask(CreateBudget(run=None, budget=NewBudget(name="team", cap=1_000)))
    budgets = (NewBudget(name="tokens", cap=100, parent="team"),)
    store.create("42", tags=("x",), attrs=RawJSON('{"customer":"c-17"}'), budgets=budgets)
    store.create("other")
    clock.advance(seconds=1)
    first = store.hold("42", "w-1")
    store.append("42", [NewEvent(type="a", data=RawJSON(RAW), id="e-1")], fence=first.token)
    clock.advance(seconds=100)
    boss.reclaim("run:42", token=first.token, owner="w-1", reason="w-1 froze")
    clock.advance(seconds=1)
    second = store.hold("42", "w-2")
    refused(lambda: store.append("42", fence=first.token))
    store.spend("42", 30, budget="tokens", fence=second.token)
    hold = {"run": "42", "budget": "tokens", "fence": second.token}
    store.ask(Reserve(amount=20, id="h-1", **hold))
    refused(lambda: store.spend("42", 90, budget="tokens", fence=second.token))
    begun = NewEvent(type="mail", effect=Effect(key="m-1", state="begun"))
    store.append("42", [begun], fence=second.token, add={"steps": 2})
    boss.ask(ChangeCap(run=None, budget="team", cap=2_000, reason="it grows"))
    TALLY.write()
    alerts.evaluate_all()
    return store


def made(**wanted):
    return "".join(bundle(Wanted(**{"run": "42", "by": "person:ana"} | wanted))).encode()


def opened(raw: bytes) -> Opened:
    return open_bundle(read_lines(raw))


def test_a_bundle_has_everything_about_its_run_and_is_read_back(lived, clock):
    raw = made()
    found = opened(raw)

    assert found.verdict.whole
    assert (found.header["run"], found.header["made_by"]) == ("42", "person:ana")
    assert found.header["made_at"] == clock.now
    run = found.one("run")
    assert (run["status"], run["owner"], run["attrs"]) == ("running", "w-2", '{"customer":"c-17"}')
    assert [e["type"] for e in found.all("event")] == [e.type for e in lived.events("42")]
    assert found.all("event")[3]["data"] == RAW
    assert found.all("event")[3]["id"] == "e-1"
    assert found.all("event")[-1]["effect"] == {"key": "m-1", "state": "begun"}
    assert [(t["owner"], t.get("ended")) for t in found.all("term")] == [
        ("w-1", "reclaimed"),
        ("w-2", None),
    ]
    assert [(b["name"], b["shared"]) for b in found.all("budget")] == [
        ("tokens", False),
        ("team", True),
    ]
    assert [e["entry"] for e in found.all("entry")] == ["open", "spend", "reserve"]
    assert [r["code"] for r in found.all("refusal")] == ["stale-fence", "budget-exhausted"]
    assert json.loads(found.all("refusal")[1]["found"])["cap"] == 100
    assert [a["action"] for a in found.all("action")] == ["lease.reclaimed", "budget.cap-changed"]
    assert found.all("action")[0]["reason"] == "w-1 froze"
    firing = {a["rule"] for a in found.all("alert")}
    assert {c["rule"] for c in found.all("change")} == firing >= {"fenced", "refused-charges"}
    assert found.one("settings")["kept_days"]["refusals"] == 30
    assert found.unknown == 0
    elsewhere = [line for line in raw.splitlines() if b'"other"' in line]
    assert all(b'"kind":"alert"' in line or b'"kind":"change"' in line for line in elsewhere)


def test_of_payloads_that_are_left_out_the_digest_stands_there(lived):
    import hashlib

    raw = made(payloads=False)
    found = opened(raw)

    sent = found.all("event")[3]
    assert "data" not in sent
    assert sent["data_sha256"] == hashlib.sha256(RAW.encode()).hexdigest()
    assert sent["data_bytes"] == len(RAW.encode())
    assert found.verdict.whole
    for hidden in (b"c-17", b"12345678901234567890"):
        assert hidden not in raw
        assert hidden in made()


def test_a_window_has_what_happened_in_it_and_how_the_run_stands(lived, clock):
    before = opened(made(until=clock.now - timedelta(seconds=50)))
    after = opened(made(since=clock.now - timedelta(seconds=1)))

    assert [e["seq"] for e in before.all("event")] == [1, 2, 3, 4]
    assert [t["owner"] for t in before.all("term")] == ["w-1"]
    assert before.all("refusal") == before.all("action") == []
    assert after.all("event")[0]["type"] == "lease.reclaimed"
    assert len(after.all("refusal")) == 2
    assert before.one("run") == after.one("run")
    for wrong in ({"since": clock.now + timedelta(days=1)}, {"until": clock.now - timedelta(9)}):
        with pytest.raises(Invalid):
            made(**wrong)


def test_a_run_that_is_not_there_is_refused_before_the_first_line(lived):
    with pytest.raises(NotFound):
        bundle(Wanted(run="none", by="x"))


def test_what_is_written_meanwhile_is_not_in_it(lived, clock):
    lines = bundle(Wanted(run="42", by="x"))
    taken = [next(lines)]
    clock.advance(seconds=5)
    lived.append("42", [event("zzz.later")], fence=lived.lease("run:42").token)
    refused(lambda: lived.append("42", [event("zzz.later")]))
    raw = "".join([*taken, *lines])

    assert opened(raw.encode()).verdict.whole
    assert "zzz.later" not in raw


def test_no_secret_is_ever_in_it(lived, settings):
    """What is told is named one by one. These are what must never be."""
    key = keys.create_key(name="fleet-2", scopes=("read",), by=SYSTEM)
    targets.create_target(
        name="ops",
        kind="webhook",
        address="https://hooks.example.org/T0/secret-path",
        hint="https://hooks.example.org/…",
        by=SYSTEM,
    )
    settings.SECRET_KEY = "secret-" + "k" * 50
    settings.DATABASE_URL = "postgres://u:secret-password@db/x"
    text = made().decode()

    told = [settings.SECRET_KEY, "secret-password", "secret-path", key.text, "whsec_"]
    for secret in told:
        assert secret not in text, secret
    names = set(opened(text.encode()).one("settings"))
    assert names == {
        "default_retain_seconds", "run_writes_per_second", "key_requests_per_second",
        "requests_max", "alert_again_seconds", "standby", "default_budgets", "postgresql",
        "kept_days", "rules",
    }  # fmt: skip


# --- reading -------------------------------------------------------------------------------------


def test_of_a_file_that_was_cut_off_what_holds_is_read(lived):
    raw = made()
    half = raw[: len(raw) * 2 // 3]

    found = opened(half)

    assert found.verdict.state is Chain.TRIMMED
    assert found.verdict.line == half.count(b"\n") + 1
    assert found.one("run")["key"] == "42"


def test_of_a_file_that_was_changed_nothing_from_there_on_is_read(lived):
    raw = made().replace(b"w-1 froze", b"w-2 froze", 1)

    found = opened(raw)

    assert found.verdict.state is Chain.CHANGED
    assert found.all("event") == []
    lines = raw.split(b"\n")
    assert b"w-2 froze" in lines[found.verdict.line - 1]


def header(**more):
    told = {
        "agentstate_bundle": 1, "kind": "bundle", "run": "42", "since": None, "until": None,
        "made_at": "2026-03-02T12:00:00Z", "made_by": "x", "release": "1", "payloads": True,
    }  # fmt: skip
    return told | more


EVENT = {
    "kind": "event", "seq": 1, "version": 1, "type": "a", "origin": "worker", "actor": "x",
    "at": "2026-03-02T12:00:00Z",
}  # fmt: skip


def sealed(*lines):
    return "".join(seal(lines)).encode()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "it is empty"),
        (gzip.compress(b"\0" * 10_000_000), "it is compressed"),
        (b"PK\x03\x04", "does not begin as a bundle does"),
        (b'{"agentstate":1,"kind":"run"}\n', "does not begin as a bundle does"),
        (sealed(header(agentstate_bundle=2)), "format 1 only"),
        (sealed(header(agentstate_bundle="1")), "of the kind bundle"),
        (sealed({"kind": "run"}), "of the kind bundle"),
        (sealed(header(), header()), "line 2: bundle: there is one already"),
        (sealed(header(made_at="soon")), "line 1: made_at: an RFC 3339 time"),
        (sealed(header(made_at="9999-12-31T23:59:59Z")), "of the years 1970 to 2200"),
        (sealed(header(run=7)), "line 1: run: a text"),
        (sealed(header(), EVENT | {"seq": "1"}), "line 2: seq: a whole number"),
        (sealed(header(), EVENT | {"seq": True}), "line 2: seq: a whole number"),
        (sealed(header(), EVENT | {"seq": 2**63}), "line 2: seq: a whole number"),
        (sealed(header(), EVENT | {"seq": RawJSON("9" * 2_000)}), "more than 1000 digits"),
        (sealed(header(), EVENT | {"seq": RawJSON("1e999")}), "too large"),
        (sealed(header(), EVENT | {"data": RawJSON("[" * 100 + "]" * 100)}), "nested deeper"),
        (sealed(header(), EVENT | {"x": RawJSON("[" * 99_999 + "]" * 99_999)}), "nested deeper"),
        (sealed(header(), EVENT | {"data": RawJSON("NaN")}), "NaN is not JSON"),
        (sealed(header(), EVENT | {"data": RawJSON('"\\u0000"')}), "U+0000"),
        (sealed(header(), EVENT | {"data": RawJSON("{")}), "not JSON"),
        (sealed(header(), EVENT | {"data": RawJSON('{"a":1,"a":2}')}), "the same name twice"),
        (sealed(header(), EVENT | {"effect": {"key": "a"}}), "effect: an object of key and state"),
        (sealed(header(), {"kind": "event"}), "line 2: seq: is missing"),
        (sealed(header(), {"kind": "term", "token": 1, "owner": "w", "renewals": 0,
                           "from": "2026-03-02T12:00:00Z", "renewed_ms": [0] * 1_001}),
         "renewed_ms: a list of at most 1000"),
        (sealed(header(), EVENT | {"type": "x" * 100_001}), "at most 100000 characters"),
        (sealed(header(), EVENT | {"data": RawJSON('"' + "x" * 2_400_000 + '"')}), "longer than"),
    ],
)  # fmt: skip
def test_what_nobody_wrote_in_good_faith_is_refused_clearly(raw, said):
    with pytest.raises(Unreadable) as refused:
        opened(raw)

    assert said in refused.value.told


def test_lines_of_a_newer_release_are_left_out_and_counted():
    found = opened(sealed(header(), {"kind": "hologram", "n": 1}, EVENT | {"mood": "fine"}))

    assert found.verdict.whole
    assert found.unknown == 1
    assert "mood" not in found.all("event")[0]


def test_a_line_that_is_no_text_is_refused():
    raw = sealed(header(), EVENT | {"type": "abc"}).replace(b"abc", b"\xff\xfe\xfd")

    assert opened(raw).verdict.state is Chain.CHANGED


def test_the_number_of_lines_is_bounded(monkeypatch):
    monkeypatch.setattr("agentstate.store.opened.LINES_MAX", 3)

    with pytest.raises(Unreadable):
        opened(sealed(header(), EVENT, EVENT, EVENT))


def test_what_is_told_of_settings_is_there():
    from agentstate.store.bundle import TOLD

    assert all(hasattr(settings, name) for name in TOLD)


def test_times_are_written_as_everywhere(lived, clock):
    assert f'"made_at":"{moment(clock.now)}"'.encode() in made()


# --- on the command line -------------------------------------------------------------------------


def asked(**more):
    told = {"run": "42", "since": None, "until": None, "no_payloads": False, "check": None}
    return argparse.Namespace(**told | more)


def test_the_command_writes_the_file_and_says_what_it_is_known_by(lived, capsys, tmp_path):
    bundles.write(asked())
    written = capsys.readouterr()
    file = tmp_path / "incident.jsonl"
    file.write_text(written.out)

    assert main(["bundle", "--check", str(file)]) == 0

    told = capsys.readouterr().out
    assert "run '42', made at" in told
    assert "by 'system:run'" in told
    assert "whole:" in told
    assert written.err.removeprefix("known by ").strip() in told


def test_the_command_says_where_a_file_is_not_what_it_was(lived, capsys, tmp_path):
    raw = made()
    lines = raw.splitlines(keepends=True)
    file = tmp_path / "x"
    for changed, said in (
        (raw[:-200], "trimmed at line"),
        (raw.replace(b"froze", b"slept"), "changed at line"),
        (b"".join([lines[0], lines[2], lines[1], *lines[3:]]), "reordered at line 2"),
    ):
        file.write_bytes(changed)
        assert main(["bundle", "--check", str(file)]) == 1
        assert said in capsys.readouterr().out
    for no_bundle, said in (
        (b"", "trimmed at line 1"),
        (gzip.compress(b"\0" * 10_000_000), "it is compressed"),
        (b'{"line":1,' + b"x" * 3_000_000, "longer than"),
    ):
        file.write_bytes(no_bundle)
        assert main(["bundle", "--check", str(file)]) == 1
        told = capsys.readouterr()
        assert said in told.out + told.err
    assert main(["bundle", "--check", str(tmp_path / "none")]) == 1


def test_the_command_refuses_what_is_not_there(lived):
    with pytest.raises(CommandFailure):
        bundles.write(asked(run="none"))
    with pytest.raises(SystemExit):
        main(["bundle"])
    with pytest.raises(SystemExit):
        main(["bundle", "42", "--since", "soon"])


def test_a_deadline_may_be_as_far_as_the_api_takes_one(store, clock):
    """S-205: a bundle that we had made ourselves was refused for it."""
    far = datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)
    store.create("42", deadline_at=far)

    found = opened(made())
    assert found.verdict.whole
    assert found.one("run")["deadline_at"] == far


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-03-02T12:40:00+02:00", "2026-03-02T10:40:00+00:00"),
        ("2026-03-02T12:40:00", "2026-03-02T12:40:00+00:00"),
        ("0001-01-01T00:00:00+14:00", None),
        ("9999-12-31T23:59:59-14:00", None),
    ],
)
def test_a_time_of_the_command_line_is_an_instant_or_refused(text, at):
    """S-204: one beyond the years that there are ended the command with an error of ours."""
    if at is None:
        with pytest.raises(argparse.ArgumentTypeError):
            bundles.moment(text)
    else:
        assert bundles.moment(text).isoformat() == at
