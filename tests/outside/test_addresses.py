"""What may be the address of a target, and how much of it is shown."""

import pytest

from agentstate.outside.addresses import read_address
from agentstate.store.errors import Invalid


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("https://example.org", "https://example.org/"),
        ("https://example.org/", "https://example.org/"),
        ("https://example.org/services/T0/B0/s3cret", "https://example.org/…"),
        ("https://example.org:8443/?token=s3cret", "https://example.org:8443/…"),
        ("http://hooks.internal/x", "http://hooks.internal/…"),
        ("https://[2606:4700:4700::1111]/x", "https://[2606:4700:4700::1111]/…"),
        ("https://" + "a" * 60 + "." + "b" * 60 + ".org/x", None),
    ],
)
def test_a_webhook_shows_where_it_goes_and_no_secret(text, hint, settings):
    settings.DELIVERY_NETWORKS = ()
    address = read_address("webhook", text)
    assert address.text == text
    assert address.hint == hint or (hint is None and len(address.hint) == 100)
    assert "s3cret" not in address.hint + repr(address)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "x", "example.org", "ftp://example.org/", "file:///etc/passwd", "https://",
        "https://user:pw@example.org/", "https://example.org/#x", "https://exa mple.org/",
        "https://example.org/\n", "https://example.org/\x00", "https://exämple.org/",
        "https://example.org:99999/", "http://127.0.0.1/", "http://169.254.169.254/latest",
        "http://[::1]/", "http://10.0.0.1/", "https://example.org/" + "x" * 2_000,
    ],
)  # fmt: skip
def test_what_cannot_be_one_is_refused(text, settings):
    settings.DELIVERY_NETWORKS = ()
    with pytest.raises(Invalid) as refused:
        read_address("webhook", text)
    assert refused.value.field == "address"


def test_apprise_says_what_an_address_is():
    address = read_address("apprise", "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#c")
    assert address.hint == "slack://… (Slack)"
    assert "TIiajkdnlazkcOXrIdevi7FQ" not in repr(address)


@pytest.mark.parametrize("text", ["nosuch://x", "syslog://", "dbus://", "file:///etc/passwd", "x"])
def test_what_apprise_does_not_know_or_only_this_machine_would_see_is_refused(text):
    with pytest.raises(Invalid):
        read_address("apprise", text)
