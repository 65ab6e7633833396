"""What is in deploy/: each process has one command, wherever it is written, and no more rights."""

import json
import re
import shlex

import pytest
import yaml

from tests.bootstrap.conftest import ROOT
from tests.bootstrap.layout import DEPLOY, commands

UNITS = DEPLOY / "systemd"
OF_UNIT = {
    "web": "agentstate-web@.service",
    "streams": "agentstate-streams.service",
    "worker": "agentstate-worker.service",
    "beat": "agentstate-beat.service",
    "release": "agentstate-prepare.service",
}
SETTING = re.compile(r"^#?((?:AGENTSTATE|DATABASE|CELERY)_\w+)=", re.MULTILINE)


def plain(words):
    """A command without what differs from place to place: folders, addresses, ports, names."""
    text = " ".join(words)
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", r"\2", text)
    text = re.sub(r"(?:/opt/agentstate/\.venv/bin/|/var/lib/agentstate/|/tmp/)", "", text)
    text = re.sub(r"--host \S+", "--host H", text)
    text = re.sub(r"--port \S+", "--port P", text)
    return re.sub(r"w@\S+", "w@N", text)


def usual(name):
    return plain(shlex.split(commands()[name]))


def unit(name):
    return (UNITS / name).read_text()


@pytest.mark.parametrize("name", OF_UNIT)
def test_a_unit_starts_what_the_procfile_starts(name):
    (line,) = re.findall(r"^ExecStart=(.*)$", unit(OF_UNIT[name]), re.MULTILINE)
    assert plain(line.split()) == usual(name)


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def image_command():
    (line,) = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return json.loads(line)


@pytest.mark.parametrize(
    ("service", "name"),
    [("prepare", "release"), ("streams", "streams"), ("worker", "worker"), ("beat", "beat")],
)
def test_a_container_starts_what_the_procfile_starts(service, name):
    assert plain(compose()["services"][service]["command"]) == usual(name)


def test_the_image_is_a_web_process_of_a_user_without_rights():
    text = (DEPLOY / "Dockerfile").read_text()
    assert plain(image_command()) == usual("web")
    assert text.index("\nUSER 10001") > text.rindex("\nRUN")
    assert "HEALTHCHECK" in text
    assert "--require-hashes" in text
    for copied in re.findall(r"^COPY (?!--)(\S+)", text, re.MULTILINE):
        assert (ROOT / copied).exists(), copied


def test_no_container_has_more_than_it_needs():
    services = compose()["services"]
    ours = [one for one in services.values() if one["image"] == "agentstate"]
    assert len(ours) == 6
    for one in ours:
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
        assert one["stop_grace_period"] == "20s"  # a process takes 15
        assert "ports" not in one
    assert [name for name, one in services.items() if "ports" in one] == ["proxy"]
    named = {volume for one in services.values() for volume in one.get("volumes", ())}
    folders = {volume.split(":")[0] for volume in named} - {"./proxies/Caddyfile"}
    assert folders == set(compose()["volumes"])


def test_no_unit_has_more_than_it_needs():
    for name in OF_UNIT.values():
        text = unit(name)
        for line in ("User=agentstate", "NoNewPrivileges=yes", "ProtectSystem=strict", "UMask=0077",
                     "CapabilityBoundingSet=\n", "PrivateTmp=yes"):  # fmt: skip
            assert line in text, (name, line)
        assert "--pidfile= " in text or "beat" not in name
    for name in ("web", "streams", "worker", "beat"):
        assert "TimeoutStopSec=15" in unit(OF_UNIT[name])
        assert "Restart=always" in unit(OF_UNIT[name])


def test_a_proxy_passes_hints_on_and_believes_no_client():
    nginx = (DEPLOY / "proxies" / "nginx.conf").read_text()
    live = nginx[nginx.index("location /live/") :].split("}")[0]
    for line in ("proxy_buffering off;", "gzip off;", "proxy_read_timeout 75s;"):
        assert line in live
    assert "X-Forwarded-For $remote_addr;" in nginx
    assert "non_idempotent" not in nginx
    haproxy = (DEPLOY / "proxies" / "haproxy.cfg").read_text()
    assert "retry-on conn-failure " in haproxy
    assert haproxy.index("del-header X-Forwarded-For") < haproxy.index("use_backend")
    assert "compression" not in haproxy
    caddy = (DEPLOY / "proxies" / "Caddyfile").read_text()
    assert "flush_interval -1" in caddy[caddy.index("handle /live/*") :].split("}")[0]


def test_each_setting_of_the_example_is_one_that_is_read():
    named = set(SETTING.findall((DEPLOY / "agentstate.env.example").read_text()))
    told = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "settings.md").read_text()))
    assert len(named) > 6
    assert named - told == set()


PAGES = ("operations", "sizing", "tls", "proxies", "hardening")


def test_what_operations_names_is_there():
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES)
    named = set(re.findall(r"`(deploy/[\w./@-]+)`", text))
    assert len(named) >= 8
    assert [name for name in named if not (ROOT / name).exists()] == []
    told = set(re.findall(r"`?(AGENTSTATE_\w+)", text))
    settings = (ROOT / "docs" / "settings.md").read_text()
    assert [name for name in told if name not in settings] == []
    metrics = set(re.findall(r"agentstate_[a-z]+_\w+", text))
    assert [
        name for name in metrics if name not in (ROOT / "docs" / "metrics.md").read_text()
    ] == []
    commands_named = set(re.findall(r"(?:\./run|deploy/site) ([a-z][a-z-]*)", text))
    source = (ROOT / "agentstate" / "cli" / "arguments.py").read_text()
    assert [name for name in commands_named if f'"{name}"' not in source] == []


LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)")


def anchors(page):
    """What the headings of a page can be linked by, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    bare = (re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in bare}


@pytest.mark.parametrize("page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"],
                         ids=lambda page: page.name)  # fmt: skip
def test_each_link_of_a_page_leads_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", prose)):
        if "://" in target or target.startswith("/"):
            continue
        found = page.parent / target if target else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}#{anchor}"


def test_only_the_containers_of_the_site_know_its_secrets():
    services = compose()["services"]
    assert [name for name, one in services.items() if "env_file" in one] == [
        name for name, one in services.items() if one["image"] == "agentstate"
    ]
    assert services["proxy"]["networks"] == ["front"]
    assert services["postgres"]["networks"] == ["back"]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for secret in ("deploy/agentstate.env", "deploy/database-password"):
        assert secret in ignored
        assert secret in (ROOT / ".gitignore").read_text().splitlines()
