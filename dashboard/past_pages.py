"""Which page shows a thing as of a moment: of what operators did, and of what alerts name.

Runs, units and budgets have one. Workers, keys, targets and rules have none: nothing but their last
state is kept of them.
"""

from __future__ import annotations

from django.urls import NoReverseMatch, reverse


def of_action(action: str, thing: str) -> str:
    """The page of what an action was done to, "" where there is none."""
    kind = action.partition(".")[0]
    return of_thing({"run": "runs", "lease": "units", "budget": "budgets"}.get(kind, ""), thing)


def of_thing(kind: str, name: str) -> str:
    """kind: runs, units or budgets, as the facts of an alert name them; a run's budget is
    `RUN/NAME`."""
    match kind:
        case "runs":
            return _page("run", name)
        case "units":
            return _page("lease", name)
        case "budgets":
            run, slash, budget = name.rpartition("/")
            return _page("run-budget", run, budget) if slash else _page("budget", name)
    return ""


def _page(view: str, *names: str) -> str:
    try:
        return reverse(view, args=names)
    except NoReverseMatch:  # of an older release, or empty: no page has such a name
        return ""
