"""The product's Celery app with one task more, by which a worker is known to work.

Started as `celery -A bench.outages.app worker`.
"""

from pathlib import Path

from agentstate.store import reads
from tasks.app import app as app


@app.task(name="outages.mark", ignore_result=True, time_limit=30)
def mark(*, file: str, **_newer: object) -> None:
    """Ask the database something, then leave a file. Twice is harmless, never is what is timed."""
    reads.now()
    Path(file).touch()
