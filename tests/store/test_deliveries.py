"""Deliveries as they are kept: written with what they tell of, taken once, settled by who tried."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from agentstate import store as the_store
from agentstate.store import alerts, deliveries, retention, targets
from agentstate.store.callers import SYSTEM
from agentstate.store.commands import (
    ChangeTarget,
    DeleteTarget,
    ResendDelivery,
    SnoozeAlert,
    TryTarget,
)
from agentstate.store.delivering import (
    ATTEMPTS,
    CLAIM_SECONDS,
    GIVE_UP_FAILURES,
    GIVEN_UP,
    NO_WORD,
    TARGET_OFF,
    TARGETS_MAX,
    TOO_MANY,
    WAITING_MAX,
    Answer,
    signing,
)
from agentstate.store.errors import Exists, Invalid, NotAllowed, NotFound, VersionConflict
from agentstate.store.minutes import TALLY, Tally
from agentstate.store.sealing import Unreadable, seal, unseal
from tests.store.asking import ANA, SENIOR, at_once, rows

ADDRESS = "https://hooks.example.org/T0/s3cret-path"
FINE = Answer(arrived=True, text="fine", status=200, took_ms=12)
NO = Answer(arrived=False, text="no", status=500, took_ms=34)


@pytest.fixture(autouse=True)
def _nothing_counted_yet(transactional_db, monkeypatch):
    """Nothing writes what was counted by itself: on a busy machine slow writes are an alert."""
    monkeypatch.setattr(Tally, "due", False)
    TALLY.forget()


def make(name="ops", kind="webhook", address=ADDRESS, hint="https://hooks.example.org/…", **more):
    # Of one rule: how long writes take on a busy machine is an alert, too.
    more.setdefault("rules", ["overdue-runs"])
    return targets.create_target(
        name=name, kind=kind, address=address, hint=hint, by=SYSTEM, **more
    )


def ask(command, by=SYSTEM):
    return the_store.execute(command, by=by)


def fire(store, clock):
    """A run is past its deadline, and somebody has looked."""
    store.create("late", deadline_at=clock.now + timedelta(seconds=10))
    clock.advance(seconds=10)
    alerts.evaluate_all()


def end(store, clock):
    store.move("late", "cancelled")
    clock.advance(seconds=70)
    alerts.evaluate_all()


def log(**wanted):
    found = deliveries.read(**wanted)
    return [(d.target, d.what, d.state) for d in found if d.rule in ("", "overdue-runs")]


def try_all(answer=FINE, limit=100):
    claims = deliveries.claim(limit=limit)
    return [deliveries.settle(claim, answer) for claim in claims]


# --- written with what they tell of --------------------------------------------------------------


def test_each_target_that_wants_it_is_told_in_the_transaction_of_the_change(store, clock):
    make("all", rules=[])
    make("only-fenced", rules=["fenced"])
    make("alerts-only", least="alert")
    fire(store, clock)
    assert log() == [("all", "firing", "waiting"), ("alerts-only", "firing", "waiting")]
    alerts.evaluate_all()
    assert len(log()) == 2
    message = deliveries.claim(limit=1)[0].message
    assert '"rule": "overdue-runs"' in message.replace('":"', '": "')
    assert "late" in message


def test_if_the_evaluation_is_rolled_back_nobody_is_told(store, clock):
    make()
    store.create("late", deadline_at=clock.now + timedelta(seconds=10))
    clock.advance(seconds=10)
    with transaction.atomic():
        alerts.evaluate_all()
        transaction.set_rollback(True)
    assert log() == []
    alerts.evaluate_all()
    assert log() == [("ops", "firing", "waiting")]


def test_two_evaluators_tell_once(store, clock):
    make()
    store.create("late", deadline_at=clock.now + timedelta(seconds=10))
    alerts.evaluate_all()
    clock.advance(seconds=10)
    at_once(6, lambda n: alerts.evaluate_all())
    assert log() == [("ops", "firing", "waiting")]


def test_what_still_fires_is_told_again_until_somebody_is_at_it(store, clock, settings):
    settings.ALERT_AGAIN_SECONDS = 600
    make()
    fire(store, clock)
    for _ in range(3):
        clock.advance(seconds=600)
        alerts.evaluate_all()
    assert [what for _, what, _ in log()] == ["again", "again", "again", "firing"]


@pytest.mark.long
@pytest.mark.many
def test_more_than_a_hundred_are_not_kept_waiting_and_the_log_says_so(store, clock, settings):
    settings.ALERT_AGAIN_SECONDS = 1
    make()
    fire(store, clock)
    for _ in range(WAITING_MAX + 1):
        clock.advance(seconds=2)
        alerts.evaluate_all()
    assert rows("SELECT state, count(*) FROM agentstate_delivery GROUP BY 1 ORDER BY 1") == [
        ("dropped", 2), ("waiting", WAITING_MAX)]  # fmt: skip
    assert deliveries.read()[0].answer == TOO_MANY


# --- snooze --------------------------------------------------------------------------------------


def snooze(seconds=600, version=1, by=ANA, rule="overdue-runs"):
    return ask(SnoozeAlert(rule=rule, version=version, seconds=seconds, reason="known"), by=by)


def stands(rule="overdue-runs"):
    return next(s for r, s in alerts.read().standings if r.name == rule)


def test_a_snoozed_alert_tells_nobody_and_is_told_when_the_time_is_over(store, clock):
    make()
    fire(store, clock)
    done = snooze(seconds=600)
    assert (done.until, done.by) == (clock.now + timedelta(seconds=600), "person:ana")
    assert alerts.count_firing() == 0
    assert stands().shown(clock.now) == "snoozed"
    clock.advance(seconds=599)
    alerts.evaluate_all()
    assert [what for _, what, _ in log()] == ["firing"]
    clock.advance(seconds=1)
    alerts.evaluate_all()
    assert [what for _, what, _ in log()] == ["again", "firing"]
    assert stands().shown(clock.now) == "alert"
    assert rows("SELECT action, reason FROM agentstate_operatoraction WHERE action LIKE 'alert%%'"
                ) == [("alert.snoozed", "known")]  # fmt: skip


def test_one_may_be_woken_and_a_rule_be_snoozed_before_it_fires(store, clock):
    make()
    alerts.evaluate_all()
    snooze(seconds=600)
    fire(store, clock)
    assert log() == []
    assert snooze(seconds=None, version=stands().version).until is None
    alerts.evaluate_all()
    assert [what for _, what, _ in log()] == ["firing"]


def test_a_snooze_is_about_what_was_seen_and_bounded(store, clock):
    fire(store, clock)
    with pytest.raises(VersionConflict):
        snooze(version=9)
    with pytest.raises(NotFound):
        snooze(rule="none")
    with pytest.raises(NotAllowed):
        snooze(by=the_store.Caller(kind="person", name="vi"))
    for seconds in (0, 59, 30 * 86_400 + 1, True, 1.5):
        with pytest.raises(Invalid):
            snooze(seconds=seconds)


# --- taken and settled ---------------------------------------------------------------------------


def test_one_that_arrived_is_settled_with_what_was_answered(store, clock):
    make()
    fire(store, clock)
    assert try_all() == ["delivered"]
    (line,) = deliveries.read()
    assert (line.state, line.attempts, line.status, line.answer, line.took_ms) == (
        "delivered", 1, 200, "fine", 12)  # fmt: skip
    assert (line.settled_at, line.trying) == (clock.now, False)
    assert deliveries.claim(limit=10) == []
    assert targets.find("ops").delivered_at == clock.now


def test_many_workers_at_once_take_each_delivery_once(store, clock):
    for number in range(8):
        make(f"t-{number}")
    fire(store, clock)
    taken = [claim for found in at_once(6, lambda n: deliveries.claim(limit=3)) for claim in found]
    assert len({claim.id for claim in taken}) == len(taken)
    assert rows("SELECT max(attempts) FROM agentstate_delivery") == [(1,)]


def test_while_somebody_is_at_it_nobody_else_begins(store, clock):
    for number in range(3):
        make(f"t-{number}")
    fire(store, clock)
    (first,) = deliveries.claim(limit=1)
    assert deliveries.claim(limit=10) == []
    deliveries.settle(first, FINE)
    assert len(deliveries.claim(limit=10)) == 2


def test_a_failure_is_tried_again_later_and_in_the_end_no_more(store, clock):
    make()
    fire(store, clock)
    states = []
    for _ in range(ATTEMPTS):
        states += try_all(NO)
        assert try_all(NO) == []
        clock.advance(seconds=7_200)
    assert states == ["waiting"] * (ATTEMPTS - 1) + ["failed"]
    assert try_all() == []


def test_whoever_died_in_a_try_is_followed_by_another_one(store, clock):
    """Killed in the middle: the claim runs out, and the delivery goes out again, with its id."""
    make()
    fire(store, clock)
    (dead,) = deliveries.claim(limit=1)
    clock.advance(seconds=CLAIM_SECONDS - 1)
    assert deliveries.claim(limit=1) == []
    clock.advance(seconds=1)
    (second,) = deliveries.claim(limit=1)
    assert (second.id, second.attempt) == (dead.id, 2)
    assert deliveries.settle(dead, NO) is None
    assert deliveries.settle(second, FINE) == "delivered"
    assert deliveries.settle(dead, FINE) is None


def test_one_that_came_back_late_with_a_success_is_believed(store, clock):
    make()
    fire(store, clock)
    (slow,) = deliveries.claim(limit=1)
    clock.advance(seconds=CLAIM_SECONDS)
    (other,) = deliveries.claim(limit=1)
    assert deliveries.settle(slow, FINE) == "delivered"
    assert deliveries.settle(other, NO) is None
    assert deliveries.read()[0].state == "delivered"


def test_a_last_try_without_a_word_is_told_as_such(store, clock):
    make()
    ask(TryTarget(name="ops"))
    assert len(deliveries.claim(limit=1)) == 1
    clock.advance(seconds=CLAIM_SECONDS)
    assert deliveries.claim(limit=1) == []
    (line,) = deliveries.read()
    assert (line.state, line.answer) == ("failed", NO_WORD)


def test_the_end_never_comes_before_the_beginning(store, clock):
    make()
    fire(store, clock)
    try_all(NO)
    end(store, clock)
    clock.advance(seconds=1)
    (first,) = deliveries.claim(limit=10)
    assert '"alert.firing"' in first.message
    deliveries.settle(first, FINE)
    (second,) = deliveries.claim(limit=10)
    assert '"alert.over"' in second.message


def test_one_target_that_is_slow_does_not_take_all_the_places(store, clock):
    slow = make("slow")
    make("quick", least="alert")
    fire(store, clock)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO agentstate_delivery (id, target_id, target, rule, what, message, state,"
            " attempts, attempts_max, next_at, answer, created_at)"
            " SELECT gen_random_uuid(), t.id, 'slow', 'r' || n, 'firing', '{}', 'waiting', 0, 8,"
            " agentstate_now() - interval '1 hour', '', agentstate_now()"
            " FROM agentstate_alerttarget t, generate_series(1, 30) n WHERE t.name = 'slow'"
        )
    assert slow.secret
    names = [claim.target for claim in deliveries.claim(limit=12)]
    assert names.count("slow") == deliveries.PER_TARGET
    assert "quick" in names


def test_when_a_target_answers_again_what_waits_for_it_waits_no_longer(store, clock):
    make()
    fire(store, clock)
    try_all(NO)
    clock.advance(seconds=11)
    for _ in range(2):
        try_all(NO)
        clock.advance(seconds=31)
    ask(TryTarget(name="ops"))
    clock.advance(seconds=1)
    assert try_all(NO) != []
    ask(TryTarget(name="ops"))
    assert try_all() == ["delivered"]
    assert try_all() == ["delivered"]


# --- targets -------------------------------------------------------------------------------------


def test_secrets_are_sealed_and_shown_once(clock):
    made = make()
    assert made.secret.startswith("whsec_")
    assert made.secret not in repr(made)
    ((address, secret),) = rows("SELECT address, secret FROM agentstate_alerttarget")
    assert "s3cret" not in address
    assert made.secret not in secret
    assert (unseal(address), unseal(secret)) == (ADDRESS, made.secret)
    assert "s3cret" not in repr(targets.find("ops"))
    said = rows("SELECT actor, action, object, after::text FROM agentstate_operatoraction")
    assert [line[:3] for line in said] == [("system:agentstate", "target.created", "ops")]
    assert "s3cret" not in said[0][3]


def test_a_repeated_request_makes_one_target_and_shows_no_secret_again(clock):
    under = the_store.Circumstances(idempotency_key="k", fingerprint=b"same")
    assert make(under=under).secret
    again = make(under=under)
    assert (again.created.replayed, again.secret) == (True, None)
    assert rows("SELECT count(*) FROM agentstate_alerttarget") == [(1,)]
    assert rows(
        "SELECT count(*) FROM agentstate_idempotencyrecord"
        " WHERE answer::text LIKE '%%whsec%%' OR answer::text LIKE '%%s3cret%%'"
    ) == [(0,)]


def test_under_another_key_of_the_site_nothing_can_be_read_and_that_is_told(store, clock, settings):
    make()
    fire(store, clock)
    settings.SECRET_KEY = "another " * 8
    (claim,) = deliveries.claim(limit=1)
    assert (claim.address, claim.secret) == (None, None)
    with pytest.raises(Unreadable):
        unseal(rows("SELECT address FROM agentstate_alerttarget")[0][0])


def test_a_key_that_the_site_had_before_still_opens(settings):
    old = settings.SECRET_KEY
    sealed = seal("x")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another " * 8, [old]
    assert unseal(sealed) == "x"


def test_names_kinds_and_rules_are_checked(clock):
    make()
    with pytest.raises(Exists):
        make()
    for wrong in (
        {"name": ""}, {"name": "a b"}, {"kind": "fax"}, {"least": "ok"}, {"rules": ["none"]},
        {"reason": "a\nb"},
    ):  # fmt: skip
        with pytest.raises(Invalid):
            make(**{"name": "other"} | wrong)
    with pytest.raises(NotAllowed):
        targets.create_target(name="x", kind="webhook", address=ADDRESS, hint="h", by=SENIOR)
    for number in range(TARGETS_MAX - 1):
        make(f"t-{number}")
    with pytest.raises(Invalid, match="no room"):
        make("one-more")


def change(name="ops", version=1, reason="quiet hours", by=SYSTEM, **more):
    return ask(ChangeTarget(name=name, version=version, reason=reason, **more), by=by)


def test_one_that_is_off_is_told_nothing_and_what_waited_is_dropped(store, clock):
    make()
    fire(store, clock)
    done = change(enabled=False)
    assert (done.enabled, done.version) == (False, 2)
    assert deliveries.claim(limit=10) == []
    (line,) = deliveries.read()
    assert (line.state, line.answer) == ("dropped", TARGET_OFF)
    end(store, clock)
    assert len(log()) == 1
    assert targets.find("ops").off_why == "switched off by system:agentstate: quiet hours"
    assert change(version=2, enabled=True, least="alert").least == "alert"
    assert targets.find("ops").off_at is None
    with pytest.raises(VersionConflict) as refused:
        change(version=2, enabled=False)
    assert refused.value.current["version"] == 3


def test_of_two_at_once_the_second_is_told(clock):
    make()
    outcomes = at_once(4, lambda n: change(enabled=bool(n % 2)))
    assert sum(isinstance(outcome, VersionConflict) for outcome in outcomes) == 3


def test_of_two_that_make_the_same_name_one_does(clock):
    outcomes = at_once(4, lambda n: make())
    assert sum(isinstance(outcome, Exists) for outcome in outcomes) == 3


def test_a_deleted_target_takes_its_secrets_with_it_and_leaves_its_log(store, clock):
    make()
    fire(store, clock)
    try_all()
    ask(DeleteTarget(name="ops", version=1, reason="moved"))
    assert rows("SELECT count(*) FROM agentstate_alerttarget") == [(0,)]
    (line,) = deliveries.read()
    assert (line.target, line.state, line.resendable) == ("ops", "delivered", False)
    with pytest.raises(NotFound):
        ask(ResendDelivery(delivery=deliveries.read_id(line.id)))
    with pytest.raises(NotFound):
        ask(DeleteTarget(name="ops", version=1, reason="moved"))


def test_one_that_fails_too_often_is_switched_off_told_and_can_be_mended(store, clock):
    make("bad")
    make("good", rules=["overdue-runs", "failing-targets"])
    fire(store, clock)
    failed = 0
    while targets.find("bad").enabled:
        assert failed < 50
        claims = deliveries.claim(limit=10)
        for claim in claims:
            deliveries.settle(claim, NO if claim.target == "bad" else FINE)
            failed += claim.target == "bad"
        clock.advance(seconds=600)
    bad = targets.find("bad")
    assert failed >= GIVE_UP_FAILURES
    assert (bad.off_why, bad.failures) == (GIVEN_UP, failed)
    assert rows("SELECT actor, action, object FROM agentstate_operatoraction"
                " WHERE action = 'target.switched-off'") == [
        ("system:deliveries", "target.switched-off", "bad")]  # fmt: skip
    alerts.evaluate_all()
    assert (str(stands("failing-targets").state), stands("failing-targets").message) == (
        "warn", "targets that cannot be reached: bad")  # fmt: skip
    assert [d.target for d in deliveries.read() if d.rule == "failing-targets"] == ["good"]
    change("bad", version=bad.version, enabled=True)
    mended = targets.find("bad")
    assert (mended.failures, mended.failing_since, mended.off_why) == (0, None, None)


# --- tests and sending again ---------------------------------------------------------------------


def test_a_test_is_sent_once_also_to_one_that_is_off(clock):
    make()
    change(enabled=False)
    first = ask(TryTarget(name="ops"))
    assert ask(TryTarget(name="ops")).delivery == first.delivery
    (claim,) = deliveries.claim(limit=10)
    assert '"alert.test"' in claim.message
    assert deliveries.settle(claim, NO) == "failed"
    assert targets.find("ops").failures == 0
    with pytest.raises(NotFound):
        ask(TryTarget(name="none"))
    with pytest.raises(NotAllowed):
        ask(TryTarget(name="ops"), by=SENIOR)


def test_a_message_is_sent_again_with_its_id(store, clock):
    make()
    fire(store, clock)
    try_all()
    (line,) = deliveries.read()
    done = ask(ResendDelivery(delivery=deliveries.read_id(line.id)))
    assert (done.delivery, done.target) == (line.id, "ops")
    assert try_all(NO) == ["waiting"]
    assert deliveries.find(line.id).attempts == 2
    change(enabled=False)
    with pytest.raises(Invalid, match="switch it on"):
        ask(ResendDelivery(delivery=deliveries.read_id(line.id)))


def test_the_log_is_read_in_pages_and_goes_after_thirty_days(store, clock, settings):
    settings.ALERT_AGAIN_SECONDS = 60
    make()
    make("other", rules=["fenced"])
    fire(store, clock)
    for _ in range(4):
        clock.advance(seconds=60)
        alerts.evaluate_all()
    whole = [d.id for d in deliveries.read(target="ops")]
    first = [d.id for d in deliveries.read(limit=2)]
    rest = [d.id for d in deliveries.read(limit=10, before=first[-1])]
    assert first + rest == whole
    assert len(whole) == 5
    assert deliveries.read(target="other") == []
    with pytest.raises(Invalid, match="before"):
        deliveries.read(before="msg_nonsense")
    try_all()
    clock.advance(days=31)
    assert retention.purge("deliveries") == 1
    assert len(deliveries.read()) == 4


@pytest.mark.parametrize("text", ["", "msg_", "msg_" + "g" * 32, "x" * 36, "msg_" + "A" * 32])
def test_what_is_no_id_is_no_delivery(text, db):
    assert deliveries.read_id(text) is None
    assert deliveries.find(text) is None


# --- another secret ------------------------------------------------------------------------------


def test_for_a_day_both_secrets_sign_and_then_the_new_one_alone(store, clock):
    made = targets.create_target(
        name="ops", kind="webhook", address="https://a.example.org/x", hint="h", by=SYSTEM
    )
    done = targets.rotate_secret(name="ops", version=1, reason="leaked", by=SYSTEM)
    assert done.secret not in (None, made.secret)
    assert done.rotated.version == 2
    kept = unseal(rows("SELECT secret FROM agentstate_alerttarget")[0][0])
    day = timedelta(days=1)
    assert signing(kept, clock.now + day - timedelta(seconds=1)) == [done.secret, made.secret]
    assert signing(kept, clock.now + day) == [done.secret]
    again = targets.rotate_secret(name="ops", version=2, reason="again", by=SYSTEM)
    kept = unseal(rows("SELECT secret FROM agentstate_alerttarget")[0][0])
    assert signing(kept, clock.now) == [again.secret, done.secret]
    actions = rows("SELECT action, reason FROM agentstate_operatoraction ORDER BY id")
    assert actions[-1] == ("target.secret-rotated", "again")


def test_a_rotation_is_about_what_was_seen_and_about_one_that_signs(store, clock):
    targets.create_target(
        name="ops", kind="webhook", address="https://a.example.org/x", hint="h", by=SYSTEM
    )
    targets.create_target(name="mail", kind="apprise", address="mailto://x", hint="h", by=SYSTEM)
    with pytest.raises(VersionConflict):
        targets.rotate_secret(name="ops", version=7, reason="x", by=SYSTEM)
    with pytest.raises(Invalid):
        targets.rotate_secret(name="mail", version=1, reason="x", by=SYSTEM)
    with pytest.raises(NotFound):
        targets.rotate_secret(name="none", version=1, reason="x", by=SYSTEM)
    with pytest.raises(NotAllowed):
        targets.rotate_secret(name="ops", version=1, reason="x", by=ANA)
