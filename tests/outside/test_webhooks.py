"""Our own webhooks against real receivers: signed, bounded, and to nowhere else."""

import asyncio
import json
import ssl
import subprocess
import time
from datetime import UTC, datetime
from ipaddress import ip_network

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from agentstate.outside import webhooks
from agentstate.outside.webhooks import headers_of
from agentstate.store.delivering import rotated
from agentstate.store.targets import new_secret
from tests.outside import receiver as ways
from tests.outside.receiver import receiving, status

BODY = json.dumps({"type": "alert.firing", "data": {"message": "4 Läufe, überfällig ✗"}})
SECRET = new_secret()


def send(address, *, secret=SECRET, body=BODY, now=None):
    return asyncio.run(
        webhooks.send(
            address=address,
            secret=secret,
            message_id="msg_1",
            body=body,
            now=now or datetime.now(UTC),
        )
    )


def test_the_published_verifier_accepts_what_is_sent_and_nothing_that_was_changed(receiver):
    answer = send(receiver.url)

    assert (answer.arrived, answer.status, answer.text) == (True, 200, "fine")
    (got,) = receiver.got
    assert got.line == "POST /hook?token=hidden-in-the-address HTTP/1.1"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert Webhook(SECRET).verify(got.body, got.headers) == json.loads(BODY)
    for secret, body, headers in (
        (new_secret(), got.body, got.headers),
        (SECRET, got.body + b" ", got.headers),
        (SECRET, got.body, got.headers | {"webhook-id": "msg_2"}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, headers)


def test_a_signature_is_as_the_specification_has_it():
    """The example of Standard Webhooks."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signed = 'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'
    assert webhooks.signature(secret, signed) == "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("code", [400, 404, 410, 429, 500, 503])
def test_any_other_status_is_a_failure_that_is_told(loopback, code):
    with receiving(status(code, body="no\r\n\x00\x1b[31mthanks")) as receiver:
        answer = send(receiver.url)
    assert (answer.arrived, answer.status) == (False, code)
    assert answer.text == "no [31mthanks"
    assert answer.gone == (code == 410)


def test_redirects_are_not_followed(loopback):
    with receiving() as elsewhere:
        for code in (301, 302, 307, 308):
            with receiving(status(code, f"Location: {elsewhere.url}")) as receiver:
                answer = send(receiver.url)
            assert (answer.arrived, answer.status) == (False, code)
            assert answer.text == "redirects are not followed"
        assert elsewhere.connections == 0


@pytest.mark.parametrize("way", [ways.never, ways.drip, ways.drip_body])
def test_one_that_is_slow_costs_a_limited_time(loopback, monkeypatch, way):
    monkeypatch.setattr(webhooks, "SECONDS", 0.5)
    with receiving(way) as receiver:
        began = time.monotonic()
        answer = send(receiver.url)
        assert time.monotonic() - began < 5
    assert not answer.arrived
    assert "no whole answer" in answer.text


def test_of_an_answer_without_end_only_the_beginning_is_read(loopback):
    with receiving(ways.flood) as receiver:
        answer = send(receiver.url)
    assert (answer.arrived, answer.status) == (True, 200)
    assert answer.text == "x" * 500


@pytest.mark.parametrize(
    ("way", "said"),
    [
        (ways.garbage, "what it answered is not HTTP"),
        (ways.cut, "what it answered is not HTTP"),
        (lambda connection, receiver: None, "what it answered is not HTTP"),
    ],
)
def test_one_that_lies_or_hangs_up_is_a_failure(loopback, way, said):
    with receiving(way) as receiver:
        answer = send(receiver.url)
    assert (answer.arrived, answer.text) == (False, said)


def test_one_that_is_down_is_a_failure(loopback):
    with receiving() as receiver:
        pass
    assert send(receiver.url).text == "no connection to it"
    assert send("http://nowhere.invalid/").text == "its name was not found"


def test_a_receiver_may_say_when_to_come_again(loopback):
    for sent, seconds in (("120", 120), ("-5", None), ("soon", None), ("9" * 20, None)):
        with receiving(status(503, f"Retry-After: {sent}")) as receiver:
            assert send(receiver.url).again_seconds == seconds
    with receiving(status(503, "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT")) as receiver:
        assert send(receiver.url).again_seconds == 0


def test_nothing_is_sent_to_this_machine_unless_the_site_allows_it(settings):
    settings.DELIVERY_NETWORKS = ()
    with receiving() as receiver:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "127.1", "0x7f.1"):
            answer = send(f"http://{host}:{receiver.port}/")
            assert not answer.arrived
            assert "is not a public address" in answer.text, host
        assert receiver.connections == 0


def test_a_name_that_leads_elsewhere_a_moment_later_leads_nowhere_else(settings, monkeypatch):
    """The name is looked up once: what was checked is what is connected to."""
    settings.DELIVERY_NETWORKS = (ip_network("127.0.0.1/32"),)
    asked = []
    with receiving() as good:

        async def look_up(loop, host, port, **more):
            asked.append(host)
            first = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
            return [(2, 1, 6, "", (first, port))]

        monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)
        answer = send(f"http://hooks.example.org:{good.port}/")
        assert (answer.arrived, asked) == (True, ["hooks.example.org"])
        assert good.got[0].headers["host"] == f"hooks.example.org:{good.port}"
        again = send(f"http://hooks.example.org:{good.port}/")
        assert not again.arrived
        assert "127.0.0.2 is not a public address" in again.text


def test_one_forbidden_address_among_several_is_enough(loopback, monkeypatch):
    async def look_up(loop, host, port, **more):
        return [(2, 1, 6, "", (ip, port)) for ip in ("127.0.0.1", "10.0.0.1")]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)
    with receiving() as receiver:
        answer = send(f"http://hooks.example.org:{receiver.port}/")
        assert "10.0.0.1 is not a public address" in answer.text
        assert receiver.connections == 0


def test_a_certificate_must_be_of_the_name_and_of_somebody_known(loopback, tmp_path):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other.example",
         "-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-days", "1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    with receiving() as receiver:
        receiver.tls = context
        answer = send(f"https://127.0.0.1:{receiver.port}/")
    assert (answer.arrived, answer.text) == (
        False, "its certificate or its TLS is not acceptable")  # fmt: skip


def test_the_environment_of_the_process_leads_nowhere(receiver, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert send(receiver.url).arrived


def test_while_a_secret_follows_another_the_published_verifier_accepts_either():
    now = datetime.now(UTC)
    first, second = new_secret(), new_secret()
    kept = rotated(second, first, now)
    headers = headers_of("msg_1", "{}", kept, now)
    for secret in (first, second):
        assert Webhook(secret).verify("{}", headers) == {}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify("{}", headers)
