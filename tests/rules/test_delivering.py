"""Who is told what and when, and when a target is given up: rules without a database."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate.store.alerting import (
    RULES,
    Figure,
    Notice,
    Rule,
    State,
    What,
    evaluate,
    news,
    told_of,
)
from agentstate.store.delivering import (
    ASKED_SECONDS_MAX,
    ATTEMPTS,
    DELIVERED,
    FAILED,
    GIVE_UP_FAILURES,
    GIVEN_UP,
    GONE,
    PAUSES_SECONDS,
    WAITING,
    Answer,
    Health,
    Sent,
    after,
    in_words,
    is_told,
    message_of,
    pause_seconds,
    trial_message,
)

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HOUR = 3_600
RULE = Rule(
    name="r", title="R", unit="count", warn=5, alert=10, message="{value} of them", advice="look",
    hold_seconds=60,
)  # fmt: skip


class Story:
    """A rule that is judged every 15 s, and what people outside are told of it."""

    def __init__(self, *, again_seconds=HOUR, rule=RULE):
        self.rule, self.again_seconds = rule, again_seconds
        self.now, self.stands, self.told = START, None, []

    def sees(self, value, *, seconds=15, times=1):
        for _ in range(times):
            self.now += timedelta(seconds=seconds)
            after = evaluate(self.rule, Figure(value=value), self.stands, self.now)
            notice = news(self.rule, self.stands, after, self.now, again_seconds=self.again_seconds)
            if notice is not None:
                self.told.append((str(notice.what), str(notice.standing.state)))
                after = told_of(notice, self.now)
            self.stands = after
        return self

    def change(self, **values):
        self.stands = replace(self.stands, **values)
        return self

    def snooze(self, minutes):
        until = self.now + timedelta(minutes=minutes)
        return self.change(snoozed_until=until, snoozed_by="person:ana", snoozed_why="known")

    def acknowledge(self):
        return self.change(
            acknowledged_at=self.now, acknowledged_by="person:ana", acknowledged_why="on it"
        )


def test_a_beginning_a_worsening_an_easing_and_an_end_are_told_once_each():
    story = Story().sees(0).sees(6, times=4).sees(12, times=4).sees(6, times=8).sees(0, times=8)
    assert story.told == [
        ("firing", "warn"), ("firing", "alert"), ("eased", "warn"), ("over", "ok")]  # fmt: skip


def test_what_stands_is_told_again_after_the_sites_time_and_not_before():
    story = Story(again_seconds=600).sees(12).sees(12, times=39)
    assert story.told == [("firing", "alert")]
    assert story.sees(12).told == [("firing", "alert"), ("again", "alert")]
    assert len(Story(again_seconds=0).sees(12, times=1_000).told) == 1


def test_a_rule_may_ask_to_be_told_again_less_often():
    rule = replace(RULES["key-expires"], message="{value}")
    story = Story(again_seconds=60, rule=rule)
    assert len(story.sees(1, seconds=HOUR, times=24).told) == 1
    assert len(story.sees(1, seconds=HOUR).told) == 2


def test_one_that_somebody_is_at_is_not_told_again_unless_it_gets_worse():
    story = Story(again_seconds=60).sees(6).acknowledge().sees(6, times=20)
    assert story.told == [("firing", "warn")]
    assert story.sees(12).told[-1] == ("firing", "alert")


def test_one_that_is_snoozed_is_told_of_only_when_it_is_over():
    story = Story(again_seconds=60).sees(6).snooze(30).sees(12, times=20)
    assert story.told == [("firing", "warn")]
    assert story.sees(0, times=8).told == [("firing", "warn"), ("over", "ok")]
    quiet = Story().sees(0).snooze(30).sees(12, times=8).sees(0, times=8)
    assert quiet.told == []


def test_when_a_snooze_is_over_what_still_fires_is_told():
    story = Story().sees(12).acknowledge().snooze(5).sees(12, times=19)
    assert story.told == [("firing", "alert")]
    assert story.stands.shown(story.now) == "snoozed"
    story.sees(12)
    assert story.told == [("firing", "alert"), ("again", "alert")]
    assert (story.stands.snoozed_until, story.stands.snoozed_by) == (None, None)
    assert story.stands.shown(story.now) == "alert"


@given(
    st.lists(
        st.one_of(
            st.sampled_from([0, 6, 12]),
            st.sampled_from(["ack", "snooze"]),
        ),
        max_size=60,
    )
)
def test_whatever_happens_people_know_the_beginning_before_the_end(steps):
    """Told firing and told over take turns, and whoever is told last while it is quiet is told
    that it is over."""
    story = Story(again_seconds=60).sees(0)
    for step in steps:
        if step == "ack":
            if story.stands.firing:
                story.acknowledge()
        elif step == "snooze":
            story.snooze(2)
        else:
            story.sees(step, times=3)
    story.sees(0, times=10)
    open_now = False
    for what, state in story.told:
        assert (what == "over") == (state == "ok")
        assert open_now or what == "firing"
        open_now = what != "over"
    assert not open_now


def notice(severity=State.WARN, rule="overdue-runs", what=What.FIRING):
    standing = evaluate(
        RULES[rule], Figure(value=3, facts={"runs": ["a"], "names": "purge"}), None, START
    )
    return Notice(what=what, severity=severity, standing=standing)


def test_a_target_says_of_what_and_from_where_it_wants_to_be_told():
    assert is_told(notice(), least="warn", rules=[])
    assert not is_told(notice(), least="alert", rules=[])
    assert is_told(notice(State.ALERT), least="alert", rules=["fenced", "overdue-runs"])
    assert not is_told(notice(State.ALERT), least="alert", rules=["fenced"])


# --- what becomes of a try -----------------------------------------------------------------------

FINE = Health(enabled=True, failures=0, failing_since=None)
NO = Answer(arrived=False, text="no", status=500)


def sent(attempts=1, *, most=ATTEMPTS, what="firing"):
    return Sent(what=what, state=WAITING, attempts=attempts, attempts_max=most, next_at=START)


def test_what_arrived_is_delivered_and_the_target_well_again():
    failing = Health(enabled=True, failures=7, failing_since=START)
    done, health = after(sent(), failing, Answer(arrived=True, text=""), START, draw=0.5)
    assert (done.state, health) == (DELIVERED, FINE)


def test_each_failure_waits_longer_and_the_last_one_is_the_end():
    states = [after(sent(n), FINE, NO, START, draw=0)[0] for n in range(1, ATTEMPTS + 1)]
    assert [s.state for s in states] == [WAITING] * (ATTEMPTS - 1) + [FAILED]
    waits = [(s.next_at - START).total_seconds() for s in states[:-1]]
    assert waits == [pause / 2 for pause in PAUSES_SECONDS]


@given(st.integers(1, 100), st.floats(0, 1), st.none() | st.floats(0, 1e9))
def test_a_pause_is_between_half_and_all_of_its_length_and_heeds_the_receiver(n, draw, asked):
    pause = pause_seconds(n, draw=draw, asked=asked)
    full = PAUSES_SECONDS[min(n, len(PAUSES_SECONDS)) - 1]
    assert max(full / 2, min(asked or 0, ASKED_SECONDS_MAX)) <= pause
    assert pause <= max(full, min(asked or 0, ASKED_SECONDS_MAX))


def test_a_target_is_given_up_after_many_failures_over_a_long_time():
    early = Health(enabled=True, failures=50, failing_since=START)
    soon = START + timedelta(seconds=HOUR - 1)
    assert after(sent(), early, NO, soon, draw=0)[1].enabled
    few = Health(enabled=True, failures=GIVE_UP_FAILURES - 2, failing_since=START)
    late = START + timedelta(seconds=HOUR)
    assert after(sent(), few, NO, late, draw=0)[1].enabled
    _, health = after(sent(), early, NO, late, draw=0)
    assert (health.enabled, health.off_why) == (False, GIVEN_UP)


def test_one_that_says_that_it_is_gone_is_switched_off_at_once():
    answer = Answer(arrived=False, text="", status=410)
    _, health = after(sent(), FINE, answer, START, draw=0)
    assert (health.enabled, health.off_why, health.failures) == (False, GONE, 1)
    assert health.failing_since == START


@pytest.mark.parametrize("enabled", [True, False])
def test_a_test_that_fails_says_nothing_of_how_the_target_has_been(enabled):
    health = Health(enabled=enabled, failures=0, failing_since=None)
    done, after_it = after(sent(1, most=1, what="test"), health, NO, START, draw=0)
    assert (done.state, after_it) == (FAILED, health)


# --- in words ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", [What.FIRING, What.AGAIN, What.EASED, What.OVER])
def test_every_message_can_be_told_in_words(rule, what):
    facts = {
        "writes": 412, "accepted": 300, "count": 2, "names": "purge", "words": "at most 50 ms",
        "name": "fleet", "until": "03:12:07", "least": "80 %", "newest": "2.1.0", "runs": ["a"],
    }  # fmt: skip
    bad = 1 if RULES[rule].falling else 1e6
    standing = evaluate(RULES[rule], Figure(value=bad, facts=facts), None, START)
    due = Notice(what=what, severity=State.ALERT, standing=standing)
    message = message_of(due, RULES[rule], START, console="https://console.example.org")
    title, text = in_words(message)
    assert title.endswith(f": {RULES[rule].title}")
    assert text.endswith("https://console.example.org/alerts")
    assert (RULES[rule].advice in text) == (what != What.OVER)


def test_a_test_says_that_nothing_is_wrong():
    title, text = in_words(trial_message("ops", START, by="person:ana", console=""))
    assert (title, text) == (
        "agentstate: a test", "A test that person:ana asked for: nothing is wrong.")  # fmt: skip
