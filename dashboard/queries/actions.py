"""What operators did, newest first."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Q

from agentstate.store.models import OperatorAction

PAGE_ROWS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """older, newer: the number to read on from, if there are more."""

    rows: list[OperatorAction]
    newer: int | None
    older: int | None


def read_page(*, text: str = "", after: int | None = None, before: int | None = None) -> Page:
    """A page of actions; text: part of who, what, to what or why."""
    found = OperatorAction.objects.select_related("run")
    if text:
        found = found.filter(
            Q(actor__icontains=text)
            | Q(action__icontains=text)
            | Q(object__icontains=text)
            | Q(reason__icontains=text)
        )
    if before is not None:
        rows = list(found.filter(id__gt=before).order_by("id")[: PAGE_ROWS + 1])
        more, rows = len(rows) > PAGE_ROWS, rows[:PAGE_ROWS][::-1]
        return Page(
            rows=rows,
            newer=rows[0].id if rows and more else None,
            older=rows[-1].id if rows else None,
        )
    if after is not None:
        found = found.filter(id__lt=after)
    rows = list(found.order_by("-id")[: PAGE_ROWS + 1])
    more, rows = len(rows) > PAGE_ROWS, rows[:PAGE_ROWS]
    return Page(
        rows=rows,
        newer=rows[0].id if rows and after is not None else None,
        older=rows[-1].id if more else None,
    )
