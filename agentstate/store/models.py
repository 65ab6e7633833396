"""Every table on one page: fields, named constraints, and nothing else.

Only `execute.py`, `feed.py`, `upkeep.py` and `partitions.py` write them, in SQL: no `save()`, no
signals. What may change a column, and how two writers of it meet, is `policy.py`. Constraint names
are part of the contract: operators and code read them. Times are the database's clock.
"""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeOperators
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Upper

from agentstate.store.effects import Effect, effect_of
from agentstate.store.fields import JSONTextField

# Nobody holds it, and a worker may claim it (rules/deciding/leases.py, `_wants`).
WAITING = Q(token__isnull=True) & (
    Q(status="pending") | Q(status="running", last_token__isnull=False)
)


class Run(models.Model):
    """A run's head: sequence, version, status and fence, decided under this one row's lock.

    No index on a column that every write changes: it would end HOT updates (store.md, 3.9).
    """

    id = models.UUIDField(primary_key=True)
    key = models.TextField()
    task = models.TextField()
    status = models.TextField()
    version = models.BigIntegerField()
    last_seq = models.BigIntegerField()
    counters = models.JSONField(default=dict)
    tags = ArrayField(models.TextField(), default=list)
    notes = models.TextField(default="")
    attrs = JSONTextField(default="{}")
    result = JSONTextField(null=True)
    owner = models.TextField(null=True)
    token = models.BigIntegerField(null=True)
    holder = models.TextField(null=True)
    last_token = models.BigIntegerField(null=True)
    ended_token = models.BigIntegerField(null=True)
    attempt = models.IntegerField(default=0)
    max_attempts = models.IntegerField(default=5)
    parent = models.ForeignKey(
        "self", null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="children"
    )
    deadline_at = models.DateTimeField(null=True)
    deadline_policy = models.TextField(default="report")
    retain_seconds = models.BigIntegerField(null=True)
    created_by = models.TextField(default="")
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    hold = models.BooleanField(default=False)
    expires_at = models.DateTimeField(null=True)
    paced_at = models.DateTimeField(null=True)
    brake_per_second = models.IntegerField(null=True)
    brake_until = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["key"], name="run_key_is_unique"),
            models.CheckConstraint(
                condition=Q(brake_per_second__isnull=True, brake_until__isnull=True)
                | Q(brake_per_second__gte=1, brake_until__isnull=False),
                name="run_brake_has_a_rate_and_an_end",
            ),
            models.CheckConstraint(
                condition=Q(version__gte=1, last_seq__gte=1), name="run_version_and_seq_from_1"
            ),
            models.CheckConstraint(
                condition=Q(token__isnull=True, owner__isnull=True, holder__isnull=True)
                | Q(token__isnull=False, owner__isnull=False, holder__isnull=False),
                name="run_owner_and_token_together",
            ),
            models.CheckConstraint(
                condition=Q(token__isnull=True) | Q(token=F("last_token")),
                name="run_token_is_the_last_one",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=["completed", "failed", "cancelled"])
                | Q(token__isnull=True, ended_at__isnull=False),
                name="run_ended_has_no_holder",
            ),
        ]
        indexes = [
            models.Index(
                F("status"), F("created_at").desc(), F("id").desc(), name="run_by_status_newest"
            ),
            models.Index(F("created_at").desc(), F("id").desc(), name="run_newest"),
            # Both are written once or twice in a run's life, so they cost no append its HOT update.
            models.Index(
                fields=["expires_at"], condition=Q(expires_at__isnull=False), name="run_by_expiry"
            ),
            models.Index(
                fields=["deadline_at"],
                condition=Q(deadline_at__isnull=False, ended_at__isnull=True),
                name="run_by_deadline",
            ),
            # What people search by, in any case. A task has some fifty pieces: they are put aside,
            # and whoever comes after about a thousand others sorts them in, in some 0.1 s. Put in
            # at once they would make each new run write fifty pages.
            GinIndex(
                OpClass(Upper("task"), name="gin_trgm_ops"),
                name="run_task_text",
                gin_pending_list_limit=1024,
            ),
            models.Index(OpClass(Upper("key"), name="text_pattern_ops"), name="run_key_text"),
            GinIndex(fields=["tags"], name="run_by_tag", fastupdate=False),
            models.Index(
                fields=["ended_at"], condition=Q(status="failed"), name="run_failed_by_end"
            ),
            # What waits for a worker, the oldest first. No append changes what they look at.
            models.Index(F("created_at"), F("id"), condition=WAITING, name="run_waiting_oldest"),
            models.Index(
                F("task"), F("created_at"), F("id"), condition=WAITING, name="run_waiting_by_task"
            ),
        ]


class Event(models.Model):
    """A line of a run's log, for ever as it was written: a trigger refuses UPDATE and DELETE.

    Range-partitioned by the week of the run's UUIDv7 (migration 0001), so that a run stays in one
    partition, (run, seq) is unique, and old weeks are dropped whole. No foreign key: it costs
    15 % of the appends, and the head row is locked anyway.
    """

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(
        Run, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="events"
    )
    seq = models.BigIntegerField()
    version = models.BigIntegerField()
    type = models.TextField()
    origin = models.TextField()
    data = JSONTextField()
    event_id = models.TextField(null=True)
    token = models.BigIntegerField(null=True)
    add = JSONTextField(null=True)
    actor = models.TextField()
    request_id = models.TextField(null=True)
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "event_id"],
                condition=Q(event_id__isnull=False),
                name="event_id_is_unique_in_its_run",
            ),
        ]
        indexes = [
            models.Index(
                fields=["request_id"],
                condition=Q(request_id__isnull=False),
                name="event_by_request",
            ),
        ]

    @property
    def effect(self) -> Effect | None:
        """The effect that it begins or ends, if it is about one: `event_id` is its key then."""
        return effect_of(self.event_id)


class OpenEffect(models.Model):
    """An effect on the outside world that was begun by this event, and that no event ends.

    A copy of what the log says, so that the next holder is told at once, however long the log is.
    """

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(
        Run,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="open_effects",
    )
    seq = models.BigIntegerField()


class Lease(models.Model):
    """A unit of work and who holds it now. The only authority on expiry.

    A free unit keeps its row for a while; the next token is higher all the same, because tokens
    come from one sequence. renewed_ms: when the term was last renewed, in milliseconds since it
    began, the oldest first; the last forty at most, only to be drawn.
    """

    unit = models.TextField(primary_key=True)
    run = models.ForeignKey(
        Run, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="leases"
    )
    owner = models.TextField(null=True)
    holder = models.TextField(null=True)
    token = models.BigIntegerField(null=True)
    ttl_seconds = models.IntegerField(default=60)
    acquired_at = models.DateTimeField(null=True)
    renewed_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    renewals = models.IntegerField(default=0)
    progress = JSONTextField(null=True)
    noted_token = models.BigIntegerField(null=True)
    term_ended_at = models.DateTimeField(null=True)
    hold_off_owner = models.TextField(null=True)
    hold_off_until = models.DateTimeField(null=True)
    signals = JSONTextField(null=True)
    renewed_ms = ArrayField(models.BigIntegerField(), default=list, db_default=[])

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(
                    token__isnull=True,
                    owner__isnull=True,
                    holder__isnull=True,
                    expires_at__isnull=True,
                )
                | Q(
                    token__isnull=False,
                    owner__isnull=False,
                    holder__isnull=False,
                    expires_at__isnull=False,
                ),
                name="lease_held_or_free",
            ),
            models.CheckConstraint(
                condition=Q(ttl_seconds__gte=1, ttl_seconds__lte=86_400),
                name="lease_ttl_from_1_second_to_a_day",
            ),
        ]
        indexes = [
            # Few beside all units; a renewal changes nothing of it. There is none on expires_at,
            # which every renewal changes (store.md, 3.9).
            models.Index(fields=["unit"], condition=Q(token__isnull=False), name="lease_held"),
        ]


class LeaseTerm(models.Model):
    """Every term of ownership that ever was; the database itself proves that no two overlap.

    renewed_ms, ttl_seconds: those of its lease when it ended; unknown if an older release ended it.
    """

    token = models.BigIntegerField(primary_key=True)
    unit = models.TextField()
    run = models.ForeignKey(
        Run, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="terms"
    )
    owner = models.TextField()
    holder = models.TextField()
    held = DateTimeRangeField()
    renewals = models.IntegerField(default=0)
    renewed_ms = ArrayField(models.BigIntegerField(), default=list, db_default=[])
    ttl_seconds = models.IntegerField(null=True)
    ended = models.TextField(null=True)
    ended_by = models.TextField(null=True)
    reason = models.TextField(null=True)

    class Meta:
        constraints = [
            ExclusionConstraint(
                name="lease_terms_never_overlap",
                expressions=[("unit", RangeOperators.EQUAL), ("held", RangeOperators.OVERLAPS)],
            ),
        ]
        indexes = [
            # Only of those that ran out: few, and each is written once.
            models.Index(
                Func(F("held"), function="upper", output_field=models.DateTimeField()),
                condition=Q(ended="lapsed"),
                name="term_lapsed_by_end",
            ),
        ]


class Budget(models.Model):
    """A cap, and what is reserved and spent of it. run NULL: shared by many runs.

    A hot shared one is split: `slots` rows of their own (slot_of, slot) take its charges.
    """

    id = models.UUIDField(primary_key=True)
    run = models.ForeignKey(
        Run, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="budgets"
    )
    name = models.TextField()
    unit = models.TextField()
    cap = models.BigIntegerField()
    reserved = models.BigIntegerField(default=0)
    spent = models.BigIntegerField(default=0)
    overdrawn = models.BooleanField(default=False)
    version = models.BigIntegerField(default=1)
    entries = models.BigIntegerField(default=0)
    parent = models.ForeignKey(
        "self", null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="children"
    )
    depth = models.IntegerField(default=0)
    slots = models.IntegerField(default=1, db_default=1)
    slot_of = models.ForeignKey(
        "self",
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="slot_rows",
    )
    slot = models.IntegerField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(slot_of__isnull=True, slot__isnull=True)
                | Q(
                    slot_of__isnull=False,
                    slot__isnull=False,
                    run__isnull=True,
                    parent__isnull=True,
                ),
                name="budget_slot_of_a_shared_one",
            ),
            models.CheckConstraint(
                condition=Q(slots=1)
                | Q(slots__gt=1, slots__lte=64, run__isnull=True, parent__isnull=True),
                name="budget_slots_from_1_to_64",
            ),
            models.UniqueConstraint(
                fields=["run", "name"], nulls_distinct=False, name="budget_name_is_unique"
            ),
            models.CheckConstraint(
                condition=Q(cap__gte=F("spent") + F("reserved")) | Q(overdrawn=True),
                name="budget_within_cap_or_overdrawn",
            ),
            models.CheckConstraint(
                condition=Q(spent__gte=0, reserved__gte=0, cap__gte=0),
                name="budget_never_negative",
            ),
        ]


class BudgetEntry(models.Model):
    """A line of a budget's ledger: numbered without a hole, never changed. Spent is its sum."""

    pk = models.CompositePrimaryKey("budget_id", "n")
    budget = models.ForeignKey(
        Budget,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="ledger",
    )
    n = models.BigIntegerField()
    kind = models.TextField()
    amount = models.BigIntegerField()
    spent = models.BigIntegerField(default=0)
    reserved = models.BigIntegerField(default=0)
    cap = models.BigIntegerField(null=True)
    entry_id = models.TextField(null=True)
    run_id = models.UUIDField(null=True)
    token = models.BigIntegerField(null=True)
    note = models.TextField(default="")
    overdrawn = models.BooleanField(default=False)
    actor = models.TextField()
    request_id = models.TextField(null=True)
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "run_id", "entry_id"],
                condition=Q(entry_id__isnull=False, kind="spend"),
                name="charge_id_is_unique_in_its_run",
            ),
        ]
        indexes = [
            models.Index(
                fields=["request_id"],
                condition=Q(request_id__isnull=False),
                name="entry_by_request",
            ),
        ]


class Reservation(models.Model):
    """A hold on a budget before the money is spent: settled once, or dropped when it is dead."""

    pk = models.CompositePrimaryKey("budget_id", "n")
    budget = models.ForeignKey(
        Budget,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="holds",
    )
    n = models.BigIntegerField()
    reservation_id = models.TextField()
    run = models.ForeignKey(
        Run, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="holds"
    )
    amount = models.BigIntegerField()
    actual = models.BigIntegerField(null=True)
    state = models.TextField()
    token = models.BigIntegerField(null=True)
    actor = models.TextField()
    expires_at = models.DateTimeField()
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    slot_id = models.UUIDField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "reservation_id"], name="reservation_id_is_unique_in_its_budget"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["held", "committed", "released", "dropped", "late"]),
                name="reservation_state_is_known",
            ),
        ]
        indexes = [
            models.Index(
                fields=["expires_at"], condition=Q(state="held"), name="reservation_held_by_expiry"
            ),
        ]


class Telemetry(models.Model):
    """What a run's holder says of itself: the newest stands, and losing one is harmless."""

    run = models.OneToOneField(
        Run,
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="telemetry",
    )
    host = models.TextField(null=True)
    model = models.TextField(null=True)
    progress = JSONTextField(null=True)
    worker_time = models.DateTimeField(null=True)
    skew_ms = models.BigIntegerField(null=True)
    token = models.BigIntegerField(null=True)
    at = models.DateTimeField()


class Worker(models.Model):
    """A worker process as it announces itself. Nothing correct depends on it."""

    name = models.TextField(primary_key=True)
    version = models.TextField(null=True)
    host = models.TextField(null=True)
    slots = models.IntegerField(null=True)
    worker_time = models.DateTimeField(null=True)
    skew_ms = models.BigIntegerField(null=True)
    principal = models.TextField()
    first_seen_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    drain_at = models.DateTimeField(null=True)
    drain_by = models.TextField(null=True)
    drain_reason = models.TextField(null=True)


class SeenVersion(models.Model):
    """A version of the site or of its workers, and when it was first seen: a mark on charts.

    Workers say theirs when they announce themselves. One that comes back is not first seen again.
    """

    pk = models.CompositePrimaryKey("what", "version")
    what = models.TextField()
    version = models.TextField()
    first_seen_at = models.DateTimeField()
    seen_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(F("first_seen_at").desc(), name="seenversion_newest")]


class FeedConsumer(models.Model):
    """How far somebody has read the feed; it never goes back, and never holds back retention."""

    name = models.TextField(primary_key=True)
    position = models.BigIntegerField(default=0)
    principal = models.TextField()
    at = models.DateTimeField()


class Heartbeat(models.Model):
    """When a periodic job of our own last ran, what it did, and how much it left (`behind`)."""

    name = models.TextField(primary_key=True)
    every_seconds = models.IntegerField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    took_ms = models.BigIntegerField(null=True)
    did = models.BigIntegerField(default=0)
    behind = models.BigIntegerField(null=True)
    passes = models.BigIntegerField(default=0)
    failed = models.TextField(null=True)
    host = models.TextField(default="")


class Minute(models.Model):
    """What happened in a minute, per run, operation, worker and outcome: feeds every chart.

    Added up in each process and written once a second. attempts: buckets 1, 2, 3, 4, 5 and more;
    latency: buckets of 1, 2, 5, 10, 20, 50, 100, 200, 500 ms, 1, 2 s and more (execute alone).
    gave_up: conflicts after which the caller tried no more, by its own word.
    """

    pk = models.CompositePrimaryKey("minute", "run_key", "operation", "worker", "outcome")
    minute = models.DateTimeField()
    run_key = models.TextField()
    operation = models.TextField()
    worker = models.TextField()
    outcome = models.TextField()
    count = models.BigIntegerField()
    events = models.BigIntegerField(default=0)
    latency_ms = models.BigIntegerField(default=0)
    attempts = ArrayField(models.BigIntegerField())
    latency = ArrayField(models.BigIntegerField())
    gave_up = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        indexes = [models.Index(fields=["run_key", "minute"], name="minute_of_run")]


class Collision(models.Model):
    """Who met whom in a minute, about what, and how often (`collisions.Key`): feeds the matrix.

    latency_ms: what the store spent on these commands before it refused them.
    """

    pk = models.CompositePrimaryKey("minute", "run_key", "outcome", "loser", "winner", "about")
    minute = models.DateTimeField()
    run_key = models.TextField()
    outcome = models.TextField()
    loser = models.TextField()
    winner = models.TextField()
    about = models.TextField()
    count = models.BigIntegerField()
    latency_ms = models.BigIntegerField(default=0, db_default=0)


class IdempotencyRecord(models.Model):
    """The first answer to a key, kept in the transaction of its effect."""

    pk = models.CompositePrimaryKey("principal", "key")
    principal = models.TextField()
    key = models.TextField()
    fingerprint = models.BinaryField()
    kind = models.TextField()
    answer = JSONTextField()
    request_id = models.TextField(null=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    replays = models.IntegerField(default=0)

    class Meta:
        indexes = [models.Index(fields=["expires_at"], name="idempotency_by_expiry")]


class Refusal(models.Model):
    """A command that was refused: who wanted what, and what was found instead.

    met: who had written first, or holds what was asked for. about: what both wanted. Of those that
    a collision counts (`collisions.COUNTED`); none of what an older release refused.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    code = models.TextField()
    operation = models.TextField()
    run = models.ForeignKey(
        Run, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="refusals"
    )
    unit = models.TextField(null=True)
    budget = models.TextField(null=True)
    actor = models.TextField()
    worker = models.TextField(null=True)
    token_sent = models.BigIntegerField(null=True)
    token_current = models.BigIntegerField(null=True)
    wanted = models.JSONField(default=dict)
    found = models.JSONField(default=dict)
    request_id = models.TextField(null=True)
    attempt = models.IntegerField(default=1)
    met = models.TextField(null=True)
    about = models.TextField(null=True)

    class Meta:
        indexes = [
            models.Index(F("at").desc(), F("id").desc(), name="refusal_newest"),
            models.Index("run", F("id").desc(), name="refusal_of_run"),
            # Those of a run's own unit are found by the run.
            models.Index(
                "unit",
                F("id").desc(),
                condition=Q(run__isnull=True, unit__isnull=False),
                name="refusal_of_unit",
            ),
            # Few, and read by their budget: other refusals of the same time are none of its page's.
            models.Index(
                F("budget"),
                F("at").desc(),
                F("id").desc(),
                condition=Q(code="budget-exhausted"),
                name="refusal_of_budget",
            ),
            models.Index(
                fields=["request_id"],
                condition=Q(request_id__isnull=False),
                name="refusal_by_request",
            ),
        ]


class Outbox(models.Model):
    """A row per run and batch, moved to the feed by whoever holds the mover's lock."""

    gid = models.BigAutoField(primary_key=True)
    run_id = models.UUIDField()
    run_key = models.TextField()
    first_seq = models.BigIntegerField()
    last_seq = models.BigIntegerField()
    version = models.BigIntegerField()
    types = ArrayField(models.TextField())
    at = models.DateTimeField()


class Feed(models.Model):
    """Every change of every run in one order without a hole, from one mover."""

    position = models.BigIntegerField(primary_key=True)
    run_id = models.UUIDField()
    run_key = models.TextField()
    first_seq = models.BigIntegerField()
    last_seq = models.BigIntegerField()
    version = models.BigIntegerField()
    types = ArrayField(models.TextField())
    at = models.DateTimeField()


class FeedHead(models.Model):
    """The one row that positions are counted in; a crashed mover leaves no hole."""

    id = models.SmallIntegerField(primary_key=True)
    position = models.BigIntegerField(default=0)
    moved_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="feed_has_one_head")]


class Restore(models.Model):
    """That the store was restored from a backup, and what was left out (`restoring.py`).

    Positions of the feed between feed_after and feed_begins, and tokens between token_after and
    token_begins, may have been given out after the backup was made, and are given out no more.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    source = models.TextField()
    reason = models.TextField(default="")
    feed_after = models.BigIntegerField()
    feed_begins = models.BigIntegerField()
    token_after = models.BigIntegerField()
    token_begins = models.BigIntegerField()
    leases_ended = models.BigIntegerField(default=0)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(feed_begins__gt=F("feed_after")) & Q(token_begins__gt=F("token_after")),
                name="restore_only_goes_ahead",
            ),
        ]


class OperatorAction(models.Model):
    """What an operator did, in the transaction of its effect. A trigger refuses changes."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    actor = models.TextField()
    action = models.TextField()
    object = models.TextField()
    run = models.ForeignKey(
        Run, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="actions"
    )
    reason = models.TextField(default="")
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    expected = models.JSONField(default=dict)
    request_id = models.TextField(null=True)

    class Meta:
        indexes = [
            models.Index(F("at").desc(), F("id").desc(), name="action_newest"),
            models.Index(
                fields=["request_id"],
                condition=Q(request_id__isnull=False),
                name="action_by_request",
            ),
        ]


class RefusedAction(models.Model):
    """What somebody tried and the store refused: `forbidden` for want of a role or scope, `refused`
    because the thing was not as they saw it. A trigger refuses changes; only its age lets a row go.

    Bounded (`tries.py`): who tries again and again leaves a few rows, not thousands.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    actor = models.TextField()
    action = models.TextField()
    object = models.TextField()
    run = models.ForeignKey(
        Run,
        null=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="refused_actions",
    )
    outcome = models.TextField()
    code = models.TextField()
    reason = models.TextField(default="")
    expected = models.JSONField(default=dict)
    found = models.JSONField(default=dict)
    request_id = models.TextField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(outcome__in=["refused", "forbidden"]),
                name="refused_action_is_refused_or_forbidden",
            ),
        ]
        indexes = [
            models.Index(F("at").desc(), F("id").desc(), name="refused_action_newest"),
        ]


class Alert(models.Model):
    """How a rule of `alerting.py` stands. Written by whoever evaluates, and by an acknowledgement.

    since: the beginning of what lasts; held_at: when it was last as bad as its state.
    """

    rule = models.TextField(primary_key=True)
    state = models.TextField()
    value = models.FloatField(null=True)
    message = models.TextField(default="")
    facts = models.JSONField(default=dict)
    since = models.DateTimeField()
    changed_at = models.DateTimeField()
    held_at = models.DateTimeField()
    checked_at = models.DateTimeField()
    version = models.BigIntegerField(default=1)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.TextField(null=True)
    acknowledged_why = models.TextField(null=True)
    snoozed_until = models.DateTimeField(null=True)
    snoozed_by = models.TextField(null=True)
    snoozed_why = models.TextField(null=True)
    told_state = models.TextField(null=True)
    told_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["ok", "warn", "alert", "no-data"]),
                name="alert_state_is_known",
            ),
            models.CheckConstraint(
                condition=Q(
                    snoozed_until__isnull=True, snoozed_by__isnull=True, snoozed_why__isnull=True
                )
                | Q(
                    snoozed_until__isnull=False, snoozed_by__isnull=False, snoozed_why__isnull=False
                ),
                name="alert_snoozed_until_by_and_why_together",
            ),
            models.CheckConstraint(
                condition=Q(
                    acknowledged_at__isnull=True,
                    acknowledged_by__isnull=True,
                    acknowledged_why__isnull=True,
                )
                | Q(
                    acknowledged_at__isnull=False,
                    acknowledged_by__isnull=False,
                    acknowledged_why__isnull=False,
                    state__in=["warn", "alert"],
                ),
                name="alert_acknowledged_while_it_lasts",
            ),
        ]


class AlertRule(models.Model):
    """Bounds that an operator gave a rule in place of its own. version 0: never changed, and then
    the rule's own count, whatever stands here.

    definition: of a rule that somebody made (`made.Definition`); its name begins with `own-`.
    """

    rule = models.TextField(primary_key=True)
    warn = models.FloatField(null=True)
    alert = models.FloatField(null=True)
    version = models.BigIntegerField(default=0)
    changed_at = models.DateTimeField(null=True)
    changed_by = models.TextField(null=True)
    changed_why = models.TextField(null=True)
    definition = models.JSONField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(definition__isnull=True) | Q(rule__startswith="own-", version__gte=1),
                name="alertrule_made_by_people_says_so",
            ),
            models.CheckConstraint(
                condition=Q(
                    version=0,
                    changed_at__isnull=True,
                    changed_by__isnull=True,
                    changed_why__isnull=True,
                )
                | Q(
                    version__gte=1,
                    changed_at__isnull=False,
                    changed_by__isnull=False,
                    changed_why__isnull=False,
                ),
                name="alertrule_changed_says_when_by_whom_and_why",
            ),
        ]


class AlertFigure(models.Model):
    """The worst that a rule's figure was in a minute: what other bounds would have said of a day.
    value NULL: nothing at all that could be bad. No row: there was nothing to judge by.
    """

    pk = models.CompositePrimaryKey("rule", "minute")
    rule = models.TextField()
    minute = models.DateTimeField()
    value = models.FloatField(null=True)

    class Meta:
        indexes = [models.Index(fields=["minute"], name="alertfigure_by_minute")]


class AlertChange(models.Model):
    """A change of an alert's state, for their history. facts: of the figure that it went by."""

    id = models.BigAutoField(primary_key=True)
    rule = models.TextField()
    before = models.TextField()
    after = models.TextField()
    value = models.FloatField(null=True)
    message = models.TextField(default="")
    facts = models.JSONField(default=dict, db_default={})
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(F("at").desc(), F("id").desc(), name="alertchange_newest")]


class AlertTarget(models.Model):
    """Where alerts are told: a webhook of ours, or a service that apprise knows.

    address, secret: sealed (`sealing.py`), never shown again; hint: what may be shown of it.
    failures: tries that failed since the last that did not; failing_since: the first of them.
    person: whose quiet hours it has beside its own; "": nobody's.
    """

    id = models.UUIDField(primary_key=True)
    name = models.TextField()
    kind = models.TextField()
    address = models.TextField()
    secret = models.TextField(null=True)
    hint = models.TextField()
    least = models.TextField()
    rules = ArrayField(models.TextField(), default=list)
    enabled = models.BooleanField(default=True)
    off_at = models.DateTimeField(null=True)
    off_why = models.TextField(null=True)
    failures = models.IntegerField(default=0)
    failing_since = models.DateTimeField(null=True)
    delivered_at = models.DateTimeField(null=True)
    version = models.BigIntegerField(default=1)
    created_by = models.TextField()
    created_at = models.DateTimeField()
    person = models.TextField(default="", db_default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name"], name="target_name_is_unique"),
            models.CheckConstraint(
                condition=Q(kind="webhook", secret__isnull=False)
                | Q(kind="apprise", secret__isnull=True),
                name="target_that_signs_has_a_secret",
            ),
            models.CheckConstraint(
                condition=Q(least__in=["warn", "alert"]), name="target_least_is_warn_or_alert"
            ),
            models.CheckConstraint(
                condition=Q(enabled=True, off_at__isnull=True, off_why__isnull=True)
                | Q(enabled=False, off_at__isnull=False, off_why__isnull=False),
                name="target_off_says_when_and_why",
            ),
            models.CheckConstraint(
                condition=Q(failures=0, failing_since__isnull=True)
                | Q(failures__gt=0, failing_since__isnull=False),
                name="target_failing_says_since_when",
            ),
        ]


class AlertQuiet(models.Model):
    """Quiet hours of a target (`target:NAME`) or a person (`person:NAME`); without days: none."""

    whose = models.TextField(primary_key=True)
    zone = models.TextField()
    begins = models.IntegerField()
    ends = models.IntegerField()
    days = ArrayField(models.IntegerField(), default=list)
    critical = models.BooleanField()
    then = models.TextField()
    version = models.BigIntegerField()
    changed_at = models.DateTimeField()
    changed_by = models.TextField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(begins__gte=0, begins__lt=1440, ends__gte=0, ends__lt=1440),
                name="quiet_hours_are_of_a_day",
            ),
            models.CheckConstraint(
                condition=Q(then__in=["send", "drop"]), name="quiet_then_is_send_or_drop"
            ),
        ]


class RetentionAge(models.Model):
    """How long the rows of a kind are kept, where an admin ever said so (`ages.KeptAge`)."""

    kind = models.TextField(primary_key=True)
    days = models.IntegerField(null=True)
    version = models.BigIntegerField()
    whole_from = models.DateTimeField()
    changed_at = models.DateTimeField()
    changed_by = models.TextField()
    changed_why = models.TextField()

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(days__isnull=True) | Q(days__gte=1), name="retention_age_is_of_days"
            ),
        ]


class Delivery(models.Model):
    """A message to a target, from the moment that it was due; a line of the log when it is over.

    attempts: how often it was tried; the number also tells who tried (`deliveries.settle`).
    claimed_until: somebody is at it. The target may be gone, so its name is here as well.
    held_until: it was due in quiet hours, which are over then.
    """

    id = models.UUIDField(primary_key=True)
    target_id = models.UUIDField()
    target = models.TextField()
    rule = models.TextField()
    what = models.TextField()
    message = JSONTextField()
    state = models.TextField()
    attempts = models.IntegerField(default=0)
    attempts_max = models.IntegerField()
    next_at = models.DateTimeField()
    claimed_until = models.DateTimeField(null=True)
    tried_at = models.DateTimeField(null=True)
    took_ms = models.BigIntegerField(null=True)
    status = models.IntegerField(null=True)
    answer = models.TextField(default="")
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    held_until = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state="waiting", settled_at__isnull=True)
                | Q(
                    state__in=["delivered", "failed", "dropped"],
                    settled_at__isnull=False,
                    claimed_until__isnull=True,
                ),
                name="delivery_waits_or_is_settled",
            ),
            models.CheckConstraint(
                condition=Q(attempts__gte=0, attempts__lte=F("attempts_max")),
                name="delivery_tried_no_more_than_it_may",
            ),
        ]
        indexes = [
            models.Index(F("created_at").desc(), F("id").desc(), name="delivery_newest"),
            models.Index(
                fields=["next_at"], condition=Q(state="waiting"), name="delivery_waiting_by_time"
            ),
        ]


class BulkAction(models.Model):
    """One thing done to many runs (`bulks.py`): what was asked, how far it has come, how it ended.

    filter: as of `seen_at`, when the operator looked; NULL: the runs were picked one by one.
    cursor_at, cursor_id: the last run that was found; found: how many, todo: of them to be done.
    scopes: of whoever began it. claim: counts who worked on it; claimed_until: somebody is at it.
    """

    id = models.UUIDField(primary_key=True)
    kind = models.TextField()
    filter = models.TextField(null=True)
    seen_at = models.DateTimeField()
    shown = models.IntegerField()
    is_all = models.BooleanField(default=True)
    tags = ArrayField(models.TextField(), default=list)
    hold_off_seconds = models.IntegerField(default=0)
    reason = models.TextField()
    created_by = models.TextField()
    scopes = ArrayField(models.TextField(), default=list)
    created_at = models.DateTimeField()
    state = models.TextField()
    cursor_at = models.DateTimeField(null=True)
    cursor_id = models.UUIDField(null=True)
    found = models.IntegerField(default=0, db_default=0)
    todo = models.IntegerField(default=0, db_default=0)
    cut = models.BooleanField(default=False, db_default=False)
    done = models.IntegerField(default=0, db_default=0)
    skipped = models.IntegerField(default=0, db_default=0)
    refused = models.IntegerField(default=0, db_default=0)
    claim = models.BigIntegerField(default=0, db_default=0)
    claimed_until = models.DateTimeField(null=True)
    worked_at = models.DateTimeField(null=True)
    begun_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    stopped_by = models.TextField(null=True)
    stopped_why = models.TextField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["collecting", "working"], ended_at__isnull=True)
                | Q(state__in=["done", "stopped"], ended_at__isnull=False),
                name="bulk_is_at_work_or_has_ended",
            ),
            models.CheckConstraint(
                condition=Q(state="stopped", stopped_by__isnull=False, stopped_why__isnull=False)
                | Q(
                    state__in=["collecting", "working", "done"],
                    stopped_by__isnull=True,
                    stopped_why__isnull=True,
                ),
                name="bulk_stopped_says_by_whom_and_why",
            ),
            models.CheckConstraint(
                condition=Q(cursor_at__isnull=True, cursor_id__isnull=True)
                | Q(cursor_at__isnull=False, cursor_id__isnull=False),
                name="bulk_cursor_is_a_run",
            ),
            models.CheckConstraint(
                condition=Q(found__gte=F("done") + F("skipped") + F("refused")),
                name="bulk_settles_what_it_found",
            ),
        ]
        indexes = [
            models.Index(
                fields=["created_at"],
                condition=Q(state__in=["collecting", "working"]),
                name="bulk_at_work",
            ),
        ]


class BulkItem(models.Model):
    """A run of a bulk, and what became of it. seen: what it was decided on (`bulking.Seen`)."""

    pk = models.CompositePrimaryKey("bulk_id", "n")
    bulk_id = models.UUIDField()
    n = models.IntegerField()
    run_id = models.UUIDField()
    run_key = models.TextField()
    seen = models.JSONField(default=dict)
    outcome = models.TextField()
    why = models.TextField(default="", db_default="")
    tries = models.IntegerField(default=0, db_default=0)
    found_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["bulk_id", "run_id"], name="bulk_has_a_run_once"),
            models.CheckConstraint(
                condition=Q(outcome="waiting", settled_at__isnull=True)
                | Q(outcome__in=["done", "skipped", "refused"], settled_at__isnull=False),
                name="bulkitem_waits_or_is_settled",
            ),
        ]
        indexes = [
            models.Index(
                fields=["bulk_id", "tries", "n"],
                condition=Q(outcome="waiting"),
                name="bulkitem_waiting",
            ),
            models.Index(fields=["found_at"], name="bulkitem_by_age"),
        ]


class ApiKey(models.Model):
    """A key that workers and scripts call with: a salted hash, shown once when it is made."""

    id = models.UUIDField(primary_key=True)
    name = models.TextField()
    scopes = ArrayField(models.TextField())
    salt = models.BinaryField()
    digest = models.BinaryField()
    hint = models.TextField()
    created_by = models.TextField()
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name"], name="key_name_is_unique")]
