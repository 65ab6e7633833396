"""The settings of a site that others can reach, and what its pages say to a browser."""

import os
import re
import subprocess
import sys

import pytest
from django.test import Client

from tests.bootstrap.conftest import ROOT
from tests.dashboard.conftest import person
from tests.dashboard.reading import Page

PRODUCTION = {
    "AGENTSTATE_HTTPS": "1",
    "AGENTSTATE_HOSTS": "console.example.org",
    "AGENTSTATE_OIDC_ISSUER": "https://sso.example.org/realms/ops",
    "AGENTSTATE_OIDC_CLIENT_ID": "agentstate",
    "AGENTSTATE_OIDC_CLIENT_SECRET": "not a real one",
    "AGENTSTATE_OIDC_ROLES": "sre=operator",
}
# Django's own checks look in MIDDLEWARE alone: they are asked about the stack of the pages, too.
OF_THE_PAGES = """
import sys, django
from agentstate import settings as ours
ours.MIDDLEWARE, ours.SILENCED_SYSTEM_CHECKS = ours.CONSOLE_MIDDLEWARE, ["security.W021"]
django.setup()
from django.core.checks import run_checks
found = run_checks(include_deployment_checks=True)
print(found)
sys.exit(bool([one for one in found if not one.is_silenced()]))
"""


def run_in(environment, tmp_path, *command):
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("AGENTSTATE_", "DJANGO_"))}
    home = {"AGENTSTATE_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "agentstate.settings"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT, env=kept | home | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.many
def test_check_deploy_is_clean_in_production_and_not_without_https(tmp_path):
    asked = ("manage.py", "check", "--deploy", "--fail-level", "WARNING")
    done = run_in(PRODUCTION, tmp_path, *asked)
    assert done.returncode == 0, done.stderr
    assert "no issues (6 silenced)" in done.stdout
    pages = run_in(PRODUCTION, tmp_path, "-c", OF_THE_PAGES)
    assert pages.returncode == 0, pages.stdout + pages.stderr
    plain = run_in({"AGENTSTATE_DEBUG": "1"}, tmp_path, "-c", OF_THE_PAGES)
    assert set(re.findall(r"security\.W0\d\d", plain.stdout)) == {
        "security.W004", "security.W008", "security.W011", "security.W016", "security.W018"
    }  # fmt: skip


@pytest.fixture
def https(settings):
    """As AGENTSTATE_HTTPS sets it."""
    settings.SECURE_HSTS_SECONDS, settings.SECURE_HSTS_INCLUDE_SUBDOMAINS = 31_536_000, True
    settings.SECURE_SSL_REDIRECT = settings.SESSION_COOKIE_SECURE = True
    settings.CSRF_COOKIE_SECURE = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")


# What a baseline scan looks at, on each page; PAGES are of both layouts, with and without a login.
HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
}
PAGES = ["/", "/runs", "/leases", "/workers", "/contention", "/budgets", "/alerts", "/audit",
         "/system", "/receipts", "/bundles", "/alerts/-/targets", "/alerts/-/targets/-/new",
         "/runs/-/views", "/account", "/nothing", "/runs/nothing"]  # fmt: skip
OPEN = ["/login", "/setup", "/nothing", "/runs"]


def scan(client, address):
    """What a scanner would find on a page."""
    answer = client.get(address, secure=True)
    found = [name for name, value in HEADERS.items() if answer.get(name) != value]
    policy = answer.get("Content-Security-Policy", "")
    if "unsafe" in policy or "*" in policy or "frame-ancestors 'none'" not in policy:
        found.append(f"policy {policy}")
    if answer.status_code == 302:
        return found
    if "no-store" not in answer.get("Cache-Control", ""):
        found.append("cached")
    if "Server" in answer or "X-Powered-By" in answer:
        found.append("tells what it runs on")
    nonce = re.search(r"'nonce-([^']+)'", policy)
    for tag, attributes in Page(answer).tags:
        inline = [name for name in attributes if name.startswith("on") or name == "style"]
        found += [f"{tag} {name}" for name in inline]
        if tag == "script" and attributes.get("type") != "application/json":
            known = attributes.get("nonce") == (nonce and nonce[1])
            if not attributes.get("src") and not known:
                found.append("inline script")
        for name in ("src", "href", "action"):
            if str(attributes.get(name) or "").startswith(("http:", "https:", "//", "javascript:")):
                found.append(f"{tag} {name} {attributes[name]}")
        if tag == "form" and attributes.get("method") == "post":
            token = [a for t, a in Page(answer).tags if a.get("name") == "csrfmiddlewaretoken"]
            found += [] if token else ["form without a token"]
        if tag == "input" and attributes.get("type") == "password":
            found += [] if attributes.get("autocomplete") else ["password without autocomplete"]
    for cookie in answer.cookies.values():
        flags = (cookie["secure"], cookie["samesite"], cookie["httponly"])
        if flags != (True, "Lax", True):
            found.append(f"cookie {cookie.key} {flags}")
    return found


def test_a_baseline_scan_of_our_pages_finds_nothing(db, https):
    admin = Client()
    found = {address: scan(Client(), address) for address in OPEN}
    admin.force_login(person("ana", "admin"))
    found |= {address: scan(admin, address) for address in PAGES}
    assert {address: what for address, what in found.items() if what} == {}

    logged_in = (
        Client()
        .post("/login", {"username": "ana", "password": "pass-ana"}, secure=True)
        .cookies["agentstate_session"]
    )
    assert (logged_in["secure"], logged_in["httponly"], logged_in["samesite"]) == (
        True, True, "Lax"
    )  # fmt: skip


def test_who_comes_by_another_name_is_told_so_under_the_same_headers(db, https):
    answer = Client().get("/runs", secure=True, headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert {name: answer.get(name) for name in HEADERS} == HEADERS
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]


def test_plain_http_goes_to_https_and_programs_are_told_nothing_by_it(db, https):
    assert Client().get("/runs")["Location"] == "https://testserver/runs"
    assert Client().get("/health/live").status_code == 200


def test_another_site_cannot_send_our_forms_or_frame_our_pages(db, https):
    client = Client(enforce_csrf_checks=True)
    for address in ("/login", "/setup", "/theme"):
        sent = client.post(address, {}, secure=True, headers={"Origin": "https://evil.example"})
        assert sent.status_code == 403, address
