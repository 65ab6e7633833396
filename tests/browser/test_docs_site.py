"""The built site of the docs, as somebody new meets it: two clicks, or the search field.

`./run docs` builds it (its builder is installed the first time) and follows every link.
"""

import functools
import http.server
import threading
from pathlib import PurePosixPath
from urllib.parse import urldefrag, urljoin

import pytest

from agentstate.cli import docs
from docs.site import stage
from tests.bootstrap.test_docs import QUESTION, text_of

ENOUGH = 5  # results that somebody looks at

VISIBLE = """() => [...document.querySelectorAll('a[href]')]
    .filter(link => link.checkVisibility({visibilityProperty: true}))
    .map(link => link.href)"""
FOUND = """() => [...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    assert docs.build() == []
    handler = functools.partial(_Quiet, directory=str(docs.SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(120_000)  # the search reads its index first
    yield context.new_page()
    context.close()


def address(site: str, target: str) -> str:
    """Where the site has what a page of the repository links to."""
    path, _, anchor = target.partition("#")
    there = PurePosixPath(stage.site_path(stage.DOCS / path))
    folder = there.parent if there.name == "index.md" else there.with_suffix("")
    below = "" if str(folder) == "." else f"{folder}/"
    return f"{site}{below}#{anchor}"


def questions(site: str) -> list[tuple[str, str, str]]:
    """(number, what to search for, where the answer is)"""
    found = QUESTION.findall(text_of("questions.md"))
    return [(number, words, address(site, target)) for number, _, target, _, words in found]


def test_each_answer_is_two_clicks_from_the_first_page_also_without_the_list_of_questions(
    site, page
):
    def seen(where: str) -> set[str]:
        page.goto(where, wait_until="domcontentloaded")
        return {urldefrag(urljoin(where, link)).url for link in page.evaluate(VISIBLE)}

    first = {link for link in seen(site) if link.startswith(site)}
    reached = first | {link for way in first - {f"{site}questions/"} for link in seen(way)}
    far = [(n, to) for n, _, to in questions(site) if urldefrag(to).url not in reached]
    assert far == []


# What somebody types who has not read our pages, by the question that they have.
PHRASES = {
    1: "getting started", 2: "process died recovery", 3: "fenced out", 4: "duplicate request",
    5: "two agents write the same key", 6: "ask worker to stop", 7: "spending limit",
    8: "call external api exactly once", 9: "unit tests", 10: "langgraph persistence",
    11: "run not progressing", 12: "steal lease", 13: "suspend run", 14: "why are writes rejected",
    15: "increase budget", 16: "mute alert", 17: "time travel", 18: "tamper evident",
    19: "trail of actions", 20: "what can a viewer do", 21: "kubernetes deployment",
    22: "hardware requirements", 23: "zero downtime upgrade", 24: "restore from backup",
    25: "postgres restart", 26: "grafana", 27: "load balancer", 28: "delete old data",
    29: "alternatives comparison", 30: "chaos testing",
}  # fmt: skip


@pytest.mark.parametrize("phrased", [False, True], ids=["the words that are told", "their own"])
def test_each_question_finds_its_answer_by_the_search(site, page, phrased):
    asked_elsewhere = []
    page.on("request", lambda r: r.url.startswith(site) or asked_elsewhere.append(r.url))
    page.goto(site)
    field = page.locator(".md-search__input")
    lost = []
    for number, words, there in questions(site):
        words = PHRASES[int(number)] if phrased else words
        field.fill("")
        field.press("End")  # it listens to keys
        page.wait_for_function("() => !document.querySelector('.md-search-result__link')")
        field.fill(words)
        field.press("End")
        page.wait_for_selector(".md-search-result__link", state="attached")
        found = [urldefrag(link).url.split("?")[0] for link in page.evaluate(FOUND)]
        distinct = [link for link in dict.fromkeys(found) if link != f"{site}questions/"]
        if urldefrag(there).url not in distinct[:ENOUGH]:
            lost.append((number, words, distinct[:ENOUGH]))
    assert lost == []
    assert [url for url in asked_elsewhere if not url.startswith(("data:", "blob:"))] == []
