"""`./run docs`: the pages of docs/ as a site that needs no network, and every link of it followed.

The builder is no dependency of ours: its version is in docs/site/requirements.txt, and it is
installed in var/docs/env, the first time and whenever that file has changed.
"""

import argparse
import functools
import http.server
import os
import shutil
import subprocess
from pathlib import Path

from agentstate.cli.apart import python_of
from agentstate.cli.output import CommandFailure, progress, result

ROOT = Path(__file__).resolve().parent.parent.parent
WANTED = ROOT / "docs" / "site" / "requirements.txt"
FOLDER = ROOT / "var" / "docs"
SITE = FOLDER / "stage" / "site"
TOLD = 40
# Its builders argue with each other at each start; nothing of that is about our pages.
QUIET = {"NO_MKDOCS_2_WARNING": "true"}


def docs(options: argparse.Namespace) -> int:
    """Build and check; with --serve, show it until Ctrl-C. 1 when a link leads nowhere."""
    found = build()
    for line in found[:TOLD]:
        progress(f"✗ {line}")
    if found:
        result(f"{len(found)} things are wrong with the site in {SITE.relative_to(ROOT)}")
        return 1
    pages = len(list(SITE.rglob("index.html")))
    result(f"{pages} pages are in {SITE.relative_to(ROOT)}; every link of them leads somewhere")
    if options.serve:
        serve(options.port)
    return 0


def build() -> list[str]:
    """Make the site in SITE and say what is wrong with it. Raises CommandFailure."""
    from docs.site import links, stage

    try:
        staged = stage.stage(FOLDER / "stage")
    except stage.Broken as broken:
        raise CommandFailure(str(broken)) from None
    progress(f"{len(staged.sources)} pages and {len(staged.shown)} files …")
    python = python_of(FOLDER / "env", WANTED, "the site's builder")
    shutil.rmtree(SITE, ignore_errors=True)
    done = subprocess.run(
        [str(python), "-m", "mkdocs", "build", "--strict", "--quiet"], cwd=FOLDER / "stage",
        env=os.environ | QUIET, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise CommandFailure(f"the site cannot be built:\n{(done.stdout + done.stderr)[-2000:]}")
    return links.findings(SITE)


def serve(port: int) -> None:
    """Show the built site on loopback."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        result(f"http://127.0.0.1:{server.server_address[1]}")
        server.serve_forever()
