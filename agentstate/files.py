"""How many files this process may have open. A stream is one, and so is every other connection.

Where no more can be opened nothing works: no page is served, and nobody is asked whether a key was
revoked. So streams take a part of what there is, and the usual limit of 1,024, which is fewer than
a process may have streams, is raised as far as the system lets it.
"""

from __future__ import annotations

import resource

WANTED = 16_384


def raise_limit() -> None:
    """As far as WANTED and no further than the hard limit; a higher one stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def share(part: float) -> float:
    """So many files are a part (0 to 1) of the limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if soft == resource.RLIM_INFINITY else soft * part
