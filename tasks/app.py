"""The Celery app: `celery -A tasks.app worker …`. Its settings: CELERY_* of settings.py."""

import os
import signal
import threading
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, task_postrun, task_prerun, worker_shutting_down
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
if not settings.configured:  # one of Celery's own processes, and nobody has said which
    os.environ.setdefault("AGENTSTATE_PROCESS", "worker")

from agentstate import logs, tracing
from tasks.schedule import MODULES, ROUTES, SCHEDULE

# A worker that was told to end waits so long for the tasks that it has; then they are cut off, and
# the broker gives them out again. Longer: whoever stops it kills it first, after 15 s.
LAST_TASKS_SECONDS = 8.0
app = Celery("agentstate", amqp="tasks.broker:Amqp")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.update(include=list(MODULES), beat_schedule=SCHEDULE, task_routes=ROUTES)


@celeryd_init.connect
def configure_worker(*, conf: Any, **_: object) -> None:
    """Let workers, and only them, be woken by NOTIFY.

    A producer with use_notify would drop and make the queue's trigger anew at its first publish,
    and wait for every reader while it does.
    """
    if conf.broker_url.startswith("pgmq"):
        conf.broker_transport_options = conf.broker_transport_options | {"use_notify": True}


@task_prerun.connect
def begin_task(*, task_id: str, task: Any, **_: object) -> None:
    """What is logged from now on belongs to this task."""
    logs.TASK.set({"task": task.name, "task_id": task_id})
    tracing.begin_task(task.name, task_id)


@task_postrun.connect
def end_task(*, state: str | None = None, **_: object) -> None:
    tracing.end_task(state)
    logs.TASK.set(None)


@worker_shutting_down.connect
def end_in_time(*, how: str = "", **_: object) -> None:
    """Celery itself waits for its tasks however long they take. SIGQUIT means: no longer."""
    if how == "Warm":
        later = threading.Timer(LAST_TASKS_SECONDS, os.kill, (os.getpid(), signal.SIGQUIT))
        later.daemon = True
        later.start()
