"""A scratch site, and schemathesis let loose on it; then what it found, in a table.

It makes input that fits OpenAPI and input that does not, and walks along the links from call to
call; of each answer it checks status, type, headers and shape, and checks.py what is beyond shapes.
At the end the store's own audit derives everything again: nothing that was sent may have broken it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentstate.cli.output import progress, result
from agentstate.cli.site import INTERRUPTED, Site, running_site
from agentstate.supervisor import Child
from bench.torture.trial import move_in, new_folder, scratch

CONFIG = Path(__file__).with_name("schemathesis.toml")
REPORT, LOG = "report.json", "schemathesis.log"
SCOPES = ("read", "payloads", "write", "propose", "operate", "override", "admin")
REQUEST_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Found:
    """What a run came to. findings: its failures and errors, one line each."""

    cases: int
    operations: int
    phases: dict[str, str]
    findings: tuple[str, ...]
    differences: tuple[str, ...]
    complete: bool
    seconds: float


def fuzz(options: argparse.Namespace) -> int:
    """`./run test-api-fuzz`: 0 when nothing was found, 1 otherwise, 130 when interrupted."""
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    folder = new_folder(seed, kind="fuzz")
    move_in(folder)
    progress(f"seed {seed}; everything of this run is in {folder}")
    with scratch(folder):
        found = _play(folder, seed, options)
    if found is None:
        return INTERRUPTED
    for line in _lines(seed, found):
        result(line)
    if found.complete and not (found.findings or found.differences):
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    result(f"\nWhat schemathesis says of each, with the request: {folder / LOG}")
    return 1


def _play(folder: Path, seed: int, options: argparse.Namespace) -> Found | None:
    began = time.monotonic()
    with running_site(argparse.Namespace(host="127.0.0.1", port=0)) as site:
        child = site.supervisor.add(_schemathesis(site, folder, seed, _key(), options))
        for _ in site.supervisor.turns():
            if not child.is_running():
                break
        else:
            return None
        site.supervisor.stop([site.web, *site.background])
        differences = _audit()
    return _read(folder, differences, time.monotonic() - began)


def _key() -> str:
    from django.db import connections

    from agentstate.cli.people import make_key

    key = make_key(name="fuzz", scopes=SCOPES)
    connections.close_all()
    return key


def _schemathesis(
    site: Site, folder: Path, seed: int, key: str, options: argparse.Namespace
) -> Child:
    command = [sys.executable, "-m", "bench.fuzz.run", "--config-file", str(CONFIG), "run"]
    command += [f"{site.url}/api/v1/openapi.json", "--seed", str(seed)]
    command += ["--max-examples", str(options.examples), "--continue-on-failure", "--no-color"]
    command += ["--request-timeout", str(REQUEST_SECONDS), "--generation-database", "none"]
    command += ["--wait-for-schema", str(REQUEST_SECONDS), "--warnings", "off"]
    command += ["--report", "json", "--report-json-path", str(folder / REPORT)]
    command += [] if options.shrink else ["--no-shrink"]
    return Child(
        name="schemathesis",
        command=command,
        log=folder / LOG,
        environment={"AGENTSTATE_KEY": key},
        may_end=True,
    )


def _audit() -> tuple[str, ...]:
    from django.db import connections

    from agentstate.store import audit

    found = tuple(
        f"{d.check}: {d.what}: expected {d.expected}, found {d.found}" for d in audit.verify()
    )
    connections.close_all()
    return found


def _read(folder: Path, differences: tuple[str, ...], seconds: float) -> Found:
    path = folder / REPORT
    told: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    findings = [
        f"{one['title']}: {one['count']} in {', '.join(one['operations'])}"
        for one in told.get("failures", [])
    ]
    findings += [json.dumps(one) for one in told.get("errors", [])]
    return Found(
        cases=told.get("test_cases", {}).get("generated", 0),
        operations=told.get("operations", {}).get("tested", 0),
        phases={name: phase["status"] for name, phase in told.get("phases", {}).items()},
        findings=tuple(findings),
        differences=differences,
        complete=bool(told.get("complete")),
        seconds=seconds,
    )


def _lines(seed: int, found: Found) -> Iterator[str]:
    yield f"seed          {seed}"
    yield f"cases         {found.cases:,} in {found.seconds:.0f} s"
    yield f"operations    {found.operations}"
    yield f"phases        {', '.join(f'{n}: {s}' for n, s in found.phases.items())}"
    yield f"findings      {len(found.findings)}"
    yield f"audit         {len(found.differences)} differences"
    if not found.complete:
        yield "schemathesis did not come to its end"
    yield from (f"  {line}" for line in (*found.findings, *found.differences))
