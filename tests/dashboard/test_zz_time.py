import time
from datetime import timedelta
from django.db import connection
from agentstate.store.models import Run
from agentstate.store.payloads import moment
from tests.dashboard.reading import Page
from tests.store.asking import event
from agentstate.store.commands import NewBudget

def test_time(store, still_clock, viewer):
    store.create("long", budgets=(NewBudget(name="tokens", cap=10**9),))
    lease = store.hold("long", "w-1", ttl_seconds=86_400)
    run = Run.objects.get(key="long")
    with connection.cursor() as c:
        c.execute("""INSERT INTO agentstate_event (run_id, seq, version, type, origin, data, token, add, actor, at)
            SELECT %s, n, n, 'tool.returned', 'worker', ('{"output":"' || repeat('x', 300) || '"}')::json, %s, '{"steps":1}'::json, 'key:fleet', %s + n * interval '1 second'
            FROM generate_series(4, 40000) n""", [run.id, lease.token, still_clock.now])
        c.execute("UPDATE agentstate_run SET last_seq=40000, version=40000, counters='{\"steps\": 39997}' WHERE id=%s", [run.id])
        c.execute("ANALYZE agentstate_event")
    start = still_clock.now
    still_clock.advance(seconds=40_001)
    for asked in ("e39000", "e20000", "e100", moment(start + timedelta(seconds=20_000.5))):
        for _ in range(2):
            began = time.perf_counter()
            page = Page(viewer.get("/runs/long", {"asof": asked}))
            took = time.perf_counter() - began
        print(asked, page.status, round(took * 1000), "ms wall")
