"""Break the store on purpose, one rule or guard at a time, and see that a test notices.

    python -m bench.mutations              # all of them; a line each, and how many were caught
    python -m bench.mutations fence clock  # those whose name has one of these words

Each is done in a copy of the tracked files, so nothing here is touched. A mutation counts as caught
when the tests that are named beside it fail with it; that they pass without it is run first. Exit
code 1 when one was not caught, or no longer fits the code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from agentstate.embedded import FORGETFUL, EmbeddedPostgres

ROOT = Path(__file__).resolve().parent.parent
RULES, DECIDING = "agentstate/store/rules/", "agentstate/store/rules/deciding/"
EXECUTE, SQL = "agentstate/store/execute.py", "agentstate/store/rowsql.py"
LEASES_PLAIN = "agentstate/store/migrations/sql/leases_plain.py"
LIMIT_SECONDS = 600
SAID_CHARS = 400
# A file in the copy while the database there is not the one that its code makes.
NEW_DATABASE = "new-database"
_ENDED = re.compile(r"(FAILED|ERROR) \S+\.py")  # as pytest sums up


@dataclass(frozen=True, slots=True)
class Mutation:
    """name: what no longer holds. test: the pytest node, or several, that has to fail.

    old, new: of the text in `path`. also: further replacements that belong to it.
    """

    name: str
    path: str
    old: str
    new: str
    test: str
    also: tuple[tuple[str, str, str], ...] = ()


MUTATIONS = (
    Mutation(
        "the fence is not compared",
        RULES + "runs.py",
        "if run.token != token or run.holder != by.principal:",
        "if False:",
        "tests/store/test_leases.py::test_a_holder_that_slept_through_its_lease_cannot_write",
    ),
    Mutation(
        "a token counts with any key",
        RULES + "runs.py",
        "if run.token != token or run.holder != by.principal:",
        "if run.token != token:",
        "tests/store/test_leases.py::test_a_token_counts_only_with_the_key_it_was_given_to",
    ),
    Mutation(
        "a run that was leased takes writes without a token",
        RULES + "runs.py",
        "if run.ever_leased and not",
        "if run.token is not None and not",
        "tests/store/test_leases.py::test_a_run_that_was_ever_leased_takes_nothing_without_a_token",
    ),
    Mutation(
        "the clock is read before the locks",
        EXECUTE,
        "        cursor.execute(sql.BEGIN, [self.lock_timeout])\n",
        "        cursor.execute(sql.BEGIN, [self.lock_timeout])\n"
        "        cursor.execute('SELECT agentstate_now()')\n"
        "        self.early = cursor.fetchone()[0]\n",
        "tests/store/test_races.py::"
        "test_a_renewal_that_waits_past_the_expiry_behind_a_mere_lock_has_lost",
        also=(
            (
                EXECUTE,
                "        now, self.xact_id, tokens = look.rows()[0]\n",
                "        _, self.xact_id, tokens = look.rows()[0]\n        now = self.early\n",
            ),
        ),
    ),
    Mutation(
        "a plain append needs no fence",
        "agentstate/store/migrations/sql/append_events.py",
        "                ELSE w.token = r.token AND w.principal = r.holder END\n",
        "                ELSE true END\n",
        "tests/store/test_plain.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "plain appends count only the last one of a run",
        "agentstate/store/migrations/sql/append_events.py",
        "            sum(w.gap) OVER whole_run AS gaps,",
        "            max(w.gap) OVER whole_run AS gaps,",
        "tests/store/test_plain.py::test_a_day_of_paced_writes_takes_no_more_than_the_limit",
    ),
    Mutation(
        "a renewal by the short way needs no token of its own",
        LEASES_PLAIN,
        "(l.token = w.token AND l.holder = w.by AND l.expires_at > at_",
        "(l.holder = w.by AND l.expires_at > at_",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "the short way renews what has run out",
        LEASES_PLAIN,
        "(l.token = w.token AND l.holder = w.by AND l.expires_at > at_",
        "(l.token = w.token AND l.holder = w.by",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "the short way renews and does not tell of a drain",
        LEASES_PLAIN,
        "            AND NOT split_part(l.owner, '~', 1) = ANY (drained)",
        "            AND true",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "the short way of renewals reads the clock before it locks",
        LEASES_PLAIN,
        "    SELECT array_agg(DISTINCT f.owner), array_agg(f.place",
        "    at_ := agentstate_now();\n    SELECT array_agg(DISTINCT f.owner), array_agg(f.place",
        "tests/store/test_races.py::test_a_renewal_that_waits_past_the_expiry_behind_a_mere_lock_has_lost",
        also=((LEASES_PLAIN, "    at_ := agentstate_now();\n    drained :=", "    drained :="),),
    ),
    Mutation(
        "a look refuses what no row tells of",
        "agentstate/store/looks.py",
        "    AND EXISTS (SELECT FROM agentstate_refusal o",
        "    AND NOT EXISTS (SELECT FROM agentstate_refusal o",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "a look does not ask how often the run was started",
        "agentstate/store/looks.py",
        " AND r.attempt < r.max_attempts))",
        "))",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "the short way gives out what was started too often",
        LEASES_PLAIN,
        "                AND r.attempt < r.max_attempts AND",
        "                AND",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "the short way gives out a run and does not tell of its open effects",
        LEASES_PLAIN,
        "                AND NOT EXISTS (SELECT FROM agentstate_openeffect o"
        " WHERE o.run_id = r.id))\n",
        "                )\n",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "what lapses is found a minute late",
        LEASES_PLAIN,
        "at_ + interval '1 second')",
        "at_ + interval '1 minute')",
        "tests/store/test_short_leases.py::test_a_lease_that_lapses_is_claimed_at_that_moment",
    ),
    Mutation(
        "claims answer a request again without its record",
        "agentstate/store/claims.py",
        "        first_time = keyed.unanswered(cursor, self.asks)\n",
        "        first_time = set(range(len(self.asks)))\n",
        "tests/store/test_short_leases.py::test_a_repeated_claim_is_answered_from_the_first",
    ),
    Mutation(
        "the outbox is skipped",
        EXECUTE,
        "        _put(cursor, sql.INSERT_OUTBOX, _outbox(draft))\n",
        "",
        "tests/store/test_feed.py::test_a_change_becomes_one_position_with_its_numbers_and_types",
    ),
    Mutation(
        "the feed's reader goes by an id given before COMMIT",
        "agentstate/store/feed.py",
        "        SELECT gid FROM agentstate_outbox ORDER BY gid LIMIT %(limit)s)\n",
        "        SELECT gid FROM agentstate_outbox WHERE gid > coalesce((SELECT max(position)"
        " FROM agentstate_feed), 0) ORDER BY gid LIMIT %(limit)s)\n",
        "tests/store/test_feed.py::test_an_event_that_commits_late_is_not_skipped",
    ),
    Mutation(
        "the idempotency record is not looked up",
        EXECUTE,
        "        self._replay_kept(cursor)\n",
        "",
        "tests/store/test_idempotency.py::"
        "test_the_second_request_gets_the_first_answer_and_writes_nothing",
    ),
    Mutation(
        "the fingerprint of a repeated request is not compared",
        EXECUTE,
        "if bytes(fingerprint) != item.ask.under.fingerprint:",
        "if False:",
        "tests/store/test_idempotency.py::test_a_key_used_for_another_request_is_refused",
    ),
    Mutation(
        "two with one key in a batch are both done",
        EXECUTE,
        "            if earlier is not None:\n",
        "            if False:\n",
        "tests/store/test_idempotency.py::test_two_commands_with_one_key_in_a_batch_have_one_effect",
    ),
    Mutation(
        "a refused command leaves its half behind",
        EXECUTE,
        "        except Refusal as refusal:\n            return refusal\n",
        "        except Refusal as refusal:\n            draft.adopt(fork)\n"
        "            return refusal\n",
        "tests/store/test_runs.py::"
        "test_a_composite_write_that_is_refused_in_its_middle_leaves_nothing",
    ),
    Mutation(
        "a batch adopts what comes before its refusal",
        DECIDING + "batches.py",
        "    if failed:\n        raise BatchRefused(",
        "    if failed and not results:\n        raise BatchRefused(",
        "tests/store/test_batch.py::"
        "test_one_failing_of_three_writes_nothing_and_every_failure_is_told",
    ),
    Mutation(
        "at its expiry a lease still holds",
        "agentstate/store/rows.py",
        "self.expires_at is not None and now < self.expires_at",
        "self.expires_at is not None and now <= self.expires_at",
        "tests/store/test_leases.py::test_at_expires_at_itself_the_lease_is_over",
    ),
    Mutation(
        "a lapsed lease is renewed when nobody took it",
        RULES + "leases.py",
        "    if not held.live(now):\n",
        "    if False:\n",
        "tests/store/test_leases.py::test_at_expires_at_itself_the_lease_is_over",
    ),
    Mutation(
        "a renewal adds to what is left",
        RULES + "leases.py",
        "        renewed_at=now,\n        expires_at=now + timedelta(seconds=ask.ttl_seconds),\n"
        "        renewals=held",
        "        renewed_at=now,\n        expires_at=(held.expires_at or now)"
        " + timedelta(seconds=ask.ttl_seconds),\n        renewals=held",
        "tests/store/test_short_leases.py::test_one_after_the_other_it_is_the_rule",
    ),
    Mutation(
        "a live lease is given away",
        RULES + "leases.py",
        "    if lease.live(now):\n        raise LeaseHeld(\n"
        '            f"{lease.owner} holds {lease.unit}",',
        '    if False:\n        raise LeaseHeld(\n            f"{lease.owner} holds {lease.unit}",',
        "tests/store/test_races.py::test_twenty_acquire_one_new_unit_and_one_gets_it",
    ),
    Mutation(
        "terms follow a clock that was set back",
        RULES + "leases.py",
        "    starts_at = now if ended_at is None else max(now, ended_at)\n",
        "    starts_at = now\n",
        "tests/store/test_leases.py::test_terms_never_overlap_even_when_the_clock_is_set_back",
    ),
    Mutation(
        "a reclaim takes whoever holds it",
        RULES + "leases.py",
        "    if lease is not None and (lease.token, lease.owner) == (token, owner):\n",
        "    if lease is not None:\n",
        "tests/store/test_leases.py::test_a_reclaim_names_the_holder_it_means",
    ),
    Mutation(
        "a reclaim leaves the former token current",
        DECIDING + "leases.py",
        "run, owner=None, token=None, holder=None, last_token=spent_token or run",
        "run, last_token=spent_token or run",
        "tests/store/test_leases.py::"
        "test_an_operator_reclaims_a_lapsed_lease_and_the_former_holder_is_fenced_at_once",
    ),
    Mutation(
        "a run that has ended keeps its token",
        RULES + "runs.py",
        "        token=None,\n        holder=None,\n        ended_token=run.token,",
        "        ended_token=run.token,",
        "tests/rules/test_rules.py::test_a_terminal_run_has_no_owner_and_no_token_that_counts",
    ),
    Mutation(
        "a run that has ended can end again",
        RULES + "runs.py",
        "    check_open(run)\n    allowed = allowed_moves(run.status)\n",
        "    allowed = ('running', 'cancelled', 'completed', 'failed')\n",
        "tests/store/test_runs.py::test_moves_follow_the_table_and_terminal_states_absorb",
    ),
    Mutation(
        "an expected number is not compared",
        RULES + "runs.py",
        "if expected_seq is not None and expected_seq != run.last_seq:",
        "if False:",
        "tests/store/test_races.py::test_two_append_seq_5_and_one_gets_it",
    ),
    Mutation(
        "an expected number may be too low",
        RULES + "runs.py",
        "if expected_seq is not None and expected_seq != run.last_seq:",
        "if expected_seq is not None and expected_seq > run.last_seq:",
        "tests/store/test_races.py::test_two_append_seq_5_and_one_gets_it",
    ),
    Mutation(
        "If-Match is not compared",
        RULES + "runs.py",
        "if if_match is not None and if_match != run.version:",
        "if False:",
        "tests/store/test_runs.py::test_if_match_guards_the_version",
    ),
    Mutation(
        "known event ids are appended again",
        DECIDING + "runs.py",
        "        if known:\n            return _appended_before(known, run)\n",
        "",
        "tests/store/test_runs.py::"
        "test_repeating_a_batch_with_ids_appends_nothing_and_answers_as_before",
        also=(
            (
                DECIDING + "runs.py",
                "    known = runs.check_ids(ask.events, stored, run)\n"
                "    if known:\n        return _appended_before(known, run)\n"
                "    runs.check_version",
                "    runs.check_version",
            ),
        ),
    ),
    Mutation(
        "what another key wrote under a token is confirmed",
        RULES + "runs.py",
        "    return actor == by.principal and token == stored_token\n",
        "    return token == stored_token\n",
        "tests/store/test_own_replay.py::test_the_next_holder_repeats_an_event_id_with_another_key",
    ),
    Mutation(
        "a cap admits one more",
        RULES + "budgets.py",
        "if level.reserved + level.spent + amount > level.cap:",
        "if level.reserved + level.spent + amount > level.cap + 1:",
        "tests/rules/test_rules.py::test_nothing_is_admitted_beyond_a_cap_and_all_levels_agree",
    ),
    Mutation(
        "holds do not count against the cap",
        RULES + "budgets.py",
        "if level.reserved + level.spent + amount > level.cap:",
        "if level.spent + amount > level.cap:",
        "tests/store/test_reservations.py::test_a_hold_counts_against_the_cap",
    ),
    Mutation(
        "only the innermost level is asked",
        RULES + "budgets.py",
        "    for level in levels:\n        if level.reserved",
        "    for level in levels[-1:]:\n        if level.reserved",
        "tests/rules/test_rules.py::test_nothing_is_admitted_beyond_a_cap_and_all_levels_agree",
    ),
    Mutation(
        "runs are not locked",
        SQL,
        'ORDER BY id FOR NO KEY UPDATE\n"""\n# Root to leaf',
        'ORDER BY id\n"""\n# Root to leaf',
        "tests/faults/test_stepped_pairs.py::test_one_that_needs_a_row_of_the_other_really_waits",
    ),
    Mutation(
        "an overdraft admits more",
        RULES + "budgets.py",
        "        overdrawn=spent + reserved > level.cap,\n",
        "        overdrawn=False,\n",
        "tests/store/test_reservations.py::"
        "test_more_than_was_held_is_recorded_in_full_and_stops_everything_until_the_cap_allows",
    ),
    Mutation(
        "a hold outlives its token",
        "agentstate/store/rows.py",
        "now >= self.expires_at or (self.token is not None and self.token != current_token)",
        "now >= self.expires_at",
        "tests/store/test_reservations.py::"
        "test_an_overtaken_worker_settles_nothing_and_its_hold_is_given_back",
    ),
    Mutation(
        "a lost COMMIT is believed by its number alone",
        EXECUTE,
        'there = batch.is_there(cursor) if status == "committed" else None',
        'there = status == "committed"',
        "tests/store/test_lost_commit.py",
    ),
    Mutation(
        "the leader of a batch that fails keeps the lead",
        "agentstate/store/lanes.py",
        "        finally:\n            self._hand_on()\n",
        "        finally:\n            pass\n",
        "tests/store/test_lanes.py::test_leadership_is_handed_on_when_the_leader_fails",
    ),
    Mutation(
        "a refusal leaves no row",
        EXECUTE,
        "        _put(cursor, sql.INSERT_REFUSALS, self._refusals(draft))\n",
        "",
        "tests/store/test_leases.py tests/client/test_swapping.py",
    ),
    Mutation(
        "a lapse is noted at every sweep",
        DECIDING + "leases.py",
        "replace(lease, noted_token=lease.token)",
        "replace(lease, noted_token=None)",
        "tests/store/test_leases.py::test_the_sweep_tells_of_a_lapse_once_and_changes_nothing_else",
    ),
    Mutation(
        "whoever ended a run is known by the token alone",
        DECIDING + "desk.py",
        "        return given and run.terminal and token == run.ended_token\n",
        "        return run.terminal and token == run.ended_token\n",
        "tests/store/test_own_replay.py::"
        "test_who_was_not_given_the_token_that_ended_a_run_adds_nothing_late",
    ),
    Mutation(
        "room that moves between slots grows",
        RULES + "slots.py",
        "iter(_even(room - first, len(slots) - 1))",
        "iter(_even(room, len(slots) - 1))",
        "tests/rules/test_rules.py::test_room_that_is_dealt_anew_is_neither_lost_nor_made",
    ),
    Mutation(
        "an effect ends that never began",
        RULES + "draft.py",
        "        if begun is None:\n            raise Invalid(",
        "        if begun is None:\n            return\n            raise Invalid(",
        "tests/store/test_effects.py::test_the_end_of_what_was_never_begun_is_refused",
    ),
    Mutation(
        "the next holder is not told of effects without an outcome",
        DECIDING + "leases.py",
        "    return on.draft.facts.open_effects.get(run.id, ((), 0))\n",
        "    return (), 0\n",
        "tests/store/test_effects.py::"
        "test_the_next_holder_is_told_by_claim_what_was_begun_and_not_ended",
    ),
    Mutation(
        "renewals are turned away with the lists",
        "agentstate/admission.py",
        "PLACES_PART = {Kind.LISTS: 0.5, Kind.FEED: 0.65, Kind.WRITES: 0.85, Kind.LAST: 1.0}",
        "PLACES_PART = {Kind.LISTS: 0.5, Kind.FEED: 0.65, Kind.WRITES: 0.85, Kind.LAST: 0.5}",
        "tests/rules/test_admission.py::"
        "test_places_are_bounded_and_some_are_left_for_what_matters_more",
    ),
    Mutation(
        "a free thread goes to whoever matters least",
        "agentstate/admission.py",
        "        for kind in reversed(Kind):\n            waiting =",
        "        for kind in Kind:\n            waiting =",
        "tests/rules/test_admission.py::"
        "test_of_those_who_wait_the_most_important_goes_first_and_of_one_kind_the_oldest",
    ),
    Mutation(
        "a checkpoint goes back",
        DECIDING + "feeds.py",
        "    if ask.position < stands:\n",
        "    if False:\n",
        "tests/store/test_feed_readers.py::"
        "test_a_checkpoint_never_goes_back_and_not_beyond_the_feed",
    ),
    Mutation(
        "a stream does not look again once it listens",
        "agentstate/live/follow.py",
        " if listened else 0.0\n",
        "\n",
        "tests/faults/test_lost_wakeups.py::"
        "test_a_stream_that_begins_when_an_event_is_written_has_it",
    ),
    Mutation(
        "what a key does as an operator is not in the audit",
        DECIDING + "runs.py",
        'by.kind == "key" and (run.ever_leased',
        'by.kind == "nobody" and (run.ever_leased',
        "tests/cases/test_operators.py::"
        "test_each_change_of_state_says_who_made_it_and_a_refused_try_is_there_too",
    ),
    Mutation(
        "a status that nobody knows counts as an end",
        "agentstate/store/rows.py",
        "        return self.status in TERMINAL\n",
        '        return self.status not in ("pending", "running", "paused")\n',
        "tests/cases/test_deploy.py::test_what_a_newer_release_wrote_is_shown_and_left_as_it_is",
    ),
    Mutation(
        "a session may stand still in a transaction",
        "agentstate/postgres.py",
        '    if not pooled:\n        limit = f"-c idle',
        '    if False:\n        limit = f"-c idle',
        "tests/cases/test_limits.py::test_a_session_that_stands_still_in_a_transaction_is_ended",
    ),
    Mutation(
        "the two hours of a clock change are told alike",
        "dashboard/zones.py",
        'if "%H" in form and is_twice(at) else text',
        "if False else text",
        "tests/cases/test_times.py::test_the_hour_that_comes_twice_is_told_apart_everywhere",
    ),
    Mutation(
        "every window of a browser has a stream",
        "dashboard/static/dashboard/windows.js",
        "const STREAMS = 3;",
        "const STREAMS = 30;",
        "tests/cases/browser/test_windows.py::"
        "test_eight_windows_side_by_side_all_load_keep_up_and_act",
    ),
    Mutation(
        "the pauses of an outage outlast it",
        "dashboard/static/dashboard/live.js",
        "{ stateOf(region).failures = 0; soon(region); }",
        "soon(region);",
        "tests/cases/browser/test_outages.py::test_an_open_page_goes_on_soon_after_a_503_by_itself",
    ),
)


def main(words: list[str]) -> int:
    return run([m for m in MUTATIONS if not words or any(word in m.name for word in words)])


def run(chosen: Sequence[Mutation], *, keeps: Container[str] = ()) -> int:
    """See that each is noticed, and say how many were. The exit code of `main`.

    keeps: the names of those whose test may have the database that the one before left, which takes
    longer to make than most tests take. What depends on how far its sequences are may not.
    """
    with tempfile.TemporaryDirectory(prefix="agentstate-mutations-") as folder:
        Path(folder).chmod(0o755)  # the server's own user must get in, which is not root
        copy = Path(folder) / "copy"
        _copy(copy)
        (copy / "var" / "test").mkdir(parents=True)
        with EmbeddedPostgres(copy / "var" / "test" / "postgres", settings=FORGETFUL).held():
            broken = _broken(copy, chosen)
            missed = [
                m for m in chosen if m.test in broken or not _caught(copy, m, m.name in keeps)
            ]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutations were caught")
    return 1 if missed else 0


def _broken(copy: Path, chosen: Sequence[Mutation]) -> set[str]:
    """Those tests that do not pass as the code is: of these nothing can be said."""
    tests = sorted({m.test for m in chosen})
    lines = _pytest(copy, " ".join(tests)).splitlines()
    failed = [line.split()[1] for line in lines if _ENDED.match(line)]
    broken = {test for test in tests for node in failed if node.startswith(tuple(test.split()))}
    for test in sorted(broken):
        print(f"BROKEN  it fails as it is: {test}", flush=True)
    return broken


def _copy(copy: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    settings = copy / "tests" / "settings.py"
    text = settings.read_text()
    own = 'TEST_DATABASE = f"test_agentstate_p{os.getpid()}"'
    assert own in text
    settings.write_text(text.replace(own, 'TEST_DATABASE = "test_agentstate_mutated"'))


def _caught(copy: Path, mutation: Mutation, keeps: bool) -> bool:
    began = time.monotonic()
    edits = ((mutation.path, mutation.old, mutation.new), *mutation.also)
    kept = {path: (copy / path).read_text() for path, _, _ in edits}
    for path, old, new in edits:
        text = (copy / path).read_text()
        if text.count(old) != 1:
            print(f"STALE   {mutation.name}: its text is {text.count(old)} times in {path}")
            return False
        _write(copy / path, text.replace(old, new))
    try:
        made = not keeps or any("/migrations/" in path for path, _, _ in edits)
        why = _fails(copy, f"{'--create-db ' if made else ''}{mutation.test}")
    finally:
        if made:
            (copy / NEW_DATABASE).touch()
        for path, text in kept.items():
            _write(copy / path, text)
    word = "caught" if why else "MISSED"
    print(f"{word}  {time.monotonic() - began:5.1f} s  {mutation.name}", flush=True)
    if why:
        print(f"                  {why[:SAID_CHARS]}", flush=True)
    return bool(why)


def _write(file: Path, text: str) -> None:
    """Without what was compiled of it: that is taken for a file of the same second and size."""
    file.write_text(text)
    if file.suffix == ".py":
        Path(cache_from_source(str(file))).unlink(missing_ok=True)


def _fails(copy: Path, tests: str) -> str:
    """What the first test that fails in the copy says; nothing when all pass. One that hangs
    fails."""
    try:
        lines = _pytest(copy, f"-x {tests}", seconds=LIMIT_SECONDS).splitlines()
    except subprocess.TimeoutExpired:
        (copy / NEW_DATABASE).touch()  # it was killed, and left there whatever it had written
        return f"it is not over after {LIMIT_SECONDS} s"
    told = [line for line in lines if _ENDED.match(line)]
    said = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return " · ".join((*told[:1], *said[:1]))


def _pytest(copy: Path, arguments: str, *, seconds: float | None = None) -> str:
    """What pytest says in the copy. Raises SystemExit when it did not come to the tests."""
    env = os.environ | {"AGENTSTATE_HOME": str(copy / "var")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    fresh = copy / NEW_DATABASE
    if fresh.exists():
        fresh.unlink()
        arguments = f"--create-db {arguments}"
    command = f"exec {sys.executable} -m pytest -q -p no:cacheprovider --reuse-db {arguments}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=copy,
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    if done.returncode not in (0, 1):
        print(done.stdout[-2_000:], done.stderr[-2_000:])
        raise SystemExit(f"pytest ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
