"""Services by apprise, each in a process of its own: against a real receiver on this machine."""

import asyncio
import json
import re
import time

import pytest

from agentstate.outside import services
from tests.outside import receiver as ways
from tests.outside.mailbox import mailbox
from tests.outside.receiver import receiving, status


@pytest.fixture(autouse=True)
def _as_long_as_a_busy_machine_takes(monkeypatch):
    monkeypatch.setattr(services, "SECONDS", 120.0)


def send(address, title="Alert: Overdue runs", text="Past their deadline: 1."):
    return asyncio.run(services.send(address=address, title=title, text=text, kind="failure"))


def json_address(receiver, secret="s3cret-token"):
    return f"json://user:{secret}@127.0.0.1:{receiver.port}/{secret}"


def test_a_message_arrives_with_its_title(receiver):
    answer = send(json_address(receiver))
    assert (answer.arrived, answer.text) == (True, "")
    assert b"Overdue runs" in receiver.got[0].body
    assert b'"failure"' in receiver.got[0].body


def test_a_refusal_is_told_without_what_stands_in_the_address(loopback):
    with receiving(status(500)) as receiver:
        answer = send(json_address(receiver))
    assert not answer.arrived
    assert "500" in answer.text
    assert "s3cret" not in answer.text


def test_nothing_is_connected_to_that_the_site_does_not_allow(settings):
    settings.DELIVERY_NETWORKS = ()
    with receiving() as receiver:
        answer = send(json_address(receiver))
        assert not answer.arrived
        assert "127.0.0.1 is not a public address" in answer.text
        mail = send(f"mailto://user:pw@example.org?smtp=127.0.0.1&port={receiver.port}")
        assert "127.0.0.1 is not a public address" in mail.text
        assert receiver.connections == 0


def test_nor_is_what_a_redirect_leads_to(loopback):
    with receiving() as elsewhere:
        other = elsewhere.url.replace("127.0.0.1", "[::1]")
        with receiving(status(307, f"Location: {other}")) as receiver:
            answer = send(json_address(receiver))
        assert not answer.arrived
        assert "::1 is not a public address" in answer.text


def test_one_that_is_slow_costs_a_limited_time_and_leaves_no_process(loopback, monkeypatch):
    monkeypatch.setattr(services, "SECONDS", 3.0)
    with receiving(ways.drip) as receiver:
        began = time.monotonic()
        answer = send(json_address(receiver))
        assert time.monotonic() - began < 15
    assert (answer.arrived, answer.text) == (False, services.NO_ANSWER)


@pytest.mark.parametrize("address", ["nosuch://x", "x", "syslog://"])
def test_what_cannot_be_sent_is_a_failure(loopback, address):
    assert not send(address).arrived


SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#ops"


def test_slack_gets_it_as_slack_has_it(receiver, monkeypatch):
    """The service itself is apprise's; only where Slack lives is this machine."""
    lives = (
        "from apprise.plugins.slack import NotifySlack;"
        f" NotifySlack.webhook_url = 'http://127.0.0.1:{receiver.port}/services'; "
    )
    begin, end = services._START.split("from agentstate", 1)
    monkeypatch.setattr(services, "_START", f"{begin}{lives}from agentstate{end}")
    receiver.answer = status(200, body="ok")
    assert send(SLACK).arrived
    (got,) = receiver.got
    assert got.line == "POST /services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ HTTP/1.1"
    sent = json.loads(got.body)
    assert sent["channel"] == "#ops"
    assert "Overdue runs" in got.body.decode()
    assert "Past their deadline: 1." in got.body.decode()
    receiver.answer = status(403, body="invalid_token")
    refused = send(SLACK)
    assert not refused.arrived
    assert "TIiajkdnlazkcOXrIdevi7FQ" not in refused.text


def mail_address(box):
    return f"mailto://127.0.0.1:{box.port}?smtp=127.0.0.1&mode=insecure&from=alerts@example.org" + (
        "&to=ops@example.org"
    )


def test_an_e_mail_arrives_whole(loopback):
    with mailbox() as box:
        assert send(mail_address(box)).arrived
    (mail,) = box.got
    assert "Overdue runs" in mail["Subject"]
    assert "ops@example.org" in mail["To"]
    assert "alerts@example.org" in mail["From"]
    assert "Past their deadline: 1." in mail.get_body(("html", "plain")).get_content()


def test_a_mailbox_that_there_is_not_is_a_failure(loopback):
    with mailbox(b"550 no such mailbox\r\n") as box:
        assert not send(mail_address(box)).arrived
    assert box.got == []


def test_the_kinds_are_those_of_apprise():
    def kind(what, **data):
        return services.kind_of({"type": f"alert.{what}", "data": data})

    assert kind("firing", state="alert") == kind("again", state="alert") == "failure"
    assert kind("firing", state="warn") == kind("eased", state="warn") == "warning"
    assert (kind("over", state="ok"), kind("test")) == ("success", "info")


def test_no_name_of_a_run_calls_everybody_of_a_chat(receiver):
    """S-120 (docs/sweeps.md): @everyone in a message pinged a channel of Discord, <!channel> one of
    Slack."""
    named = "x@everyone, y@Here and <!channel> <@U1>: support@example.org < 3"
    assert send(json_address(receiver), title=named, text=named).arrived
    told = json.loads(receiver.got[0].body)
    for text in (told["title"], told["message"]):
        assert not re.search(r"@everyone|@Here|<!|<@", text)
        assert text.replace("\u2060", "") == named
        assert "support@example.org < 3" in text
