"""Who may what at the console: a line for each address, looked up by `pages.page` at each request.

docs/access.md is the same table, and tests/dashboard/test_who_may_what.py walks every address of
the URLconf as everybody and compares. An address without a line fails it.
"""

from __future__ import annotations

from dataclasses import dataclass

EVERYBODY = "everybody"  # also who is not logged in
PERSON = "person"  # whoever is logged in, also without a role


@dataclass(frozen=True, slots=True)
class Line:
    """What looking (GET) and sending (POST) need: a scope, PERSON or EVERYBODY; None: no such way.

    more: what else may be asked for, and who says so.
    """

    get: str | None = None
    post: str | None = None
    more: str = ""


_READ = Line("read")
_OPERATE = Line("read", "operate")
_OVERRIDE = Line("read", "override")
_ADMIN = Line("read", "admin")
_OF_ADMIN = Line("admin", "admin")
_OPEN = Line(EVERYBODY)
_OWN = Line(PERSON, PERSON)

LINES: dict[str, Line] = {
    "": _READ,
    "setup": Line(EVERYBODY, EVERYBODY, "only while there is no admin, with the code"),
    "login": Line(EVERYBODY, EVERYBODY),
    "logout": Line(None, EVERYBODY),
    "login/second": Line(EVERYBODY, EVERYBODY, "after the password"),
    "login/again": _OWN,
    "login/again/second": Line(PERSON, PERSON, "who has a second step"),
    "login/again/key": Line(PERSON, PERSON, "who has a security key"),
    "login/oidc": Line(EVERYBODY, EVERYBODY, "only with a provider"),
    "login/oidc/done": Line(EVERYBODY, EVERYBODY, "only with a provider"),
    "account": Line(PERSON),
    "account/password": Line(PERSON, PERSON, "who has a password here"),
    "account/sign-out": Line(None, PERSON),
    "account/app": _OWN,
    "account/app/off": Line(PERSON, PERSON, "who has an authenticator app"),
    "account/keys/new": _OWN,
    "account/keys/<int:pk>/remove": Line(PERSON, PERSON, "one's own key"),
    "account/codes": Line(PERSON, None, "who has a second step"),
    "account/codes/new": Line(PERSON, PERSON, "who has a second step"),
    "now": _READ,
    "settings": Line("read", "read"),
    "settings/quiet": Line("read", "read"),
    "settings/zone": Line(None, "read"),
    "theme": Line(None, EVERYBODY),
    "jump": _READ,
    "runs": _READ,
    "runs/-/refresh": _READ,
    "runs/-/counts": _READ,
    "runs/-/filter": _READ,
    "runs/-/suggestions": _READ,
    "runs/-/export": Line("read", "read", "attrs and results with payloads"),
    "runs/-/views": Line("read", "read", "a view of the team with operate"),
    "runs/-/views/<int:number>/<str:action>": Line(None, "read", "a view of the team with operate"),
    "runs/<str:key>": _READ,
    "runs/<str:key>/refresh": _READ,
    "runs/<str:key>/timeline": _READ,
    "runs/<str:key>/events/<int:seq>/payload": Line("payloads"),
    "runs/<str:key>/invariants": _READ,
    "runs/<str:key>/export": Line("payloads"),
    "runs/<str:key>/bundle": _READ,
    "runs/<str:key>/bundle/file": Line("read", None, "digests in place of payloads without them"),
    "runs/<str:key>/signal": _OPERATE,
    "runs/<str:key>/brake": _OPERATE,
    "runs/<str:key>/edit": _OPERATE,
    "runs/<str:key>/keep": _OPERATE,
    "runs/<str:key>/<str:action>": _OPERATE,
    "leases": _READ,
    "leases/<str:unit>": _READ,
    "leases/<str:unit>/reclaim": Line("read", "operate", "from a live holder with override"),
    "leases/<str:unit>/proposals/<str:proposal>/decline": Line(None, "operate"),
    "workers": _READ,
    "workers/<str:name>/revoke-key": _ADMIN,
    "workers/<str:name>/<str:action>": _OPERATE,
    "contention": _READ,
    "budgets": _READ,
    "budgets/<str:name>": _READ,
    "budgets/<str:name>/cap": _OVERRIDE,
    "runs/<str:key>/budgets/<str:name>": _READ,
    "runs/<str:key>/budgets/<str:name>/cap": _OVERRIDE,
    "alerts": _READ,
    "alerts/<str:rule>/acknowledge": _OPERATE,
    "alerts/<str:rule>/snooze": _OPERATE,
    "alerts/<str:rule>/bounds": _OPERATE,
    "alerts/-/rules/-/new": _OPERATE,
    "alerts/-/rules/<str:rule>": _OPERATE,
    "alerts/-/rules/<str:rule>/delete": _OPERATE,
    "alerts/-/targets": _READ,
    "alerts/-/targets/-/new": _ADMIN,
    "alerts/-/targets/<str:name>": _READ,
    "alerts/-/targets/<str:name>/test": Line(None, "admin"),
    "alerts/-/targets/<str:name>/change": _ADMIN,
    "alerts/-/targets/<str:name>/rotate": _ADMIN,
    "alerts/-/targets/<str:name>/delete": _ADMIN,
    "alerts/-/targets/<str:name>/quiet": _ADMIN,
    "alerts/-/deliveries/<str:delivery>": _ADMIN,
    "receipts": _READ,
    "bundles": Line("read", "read", "the file is read, and nothing stored"),
    "audit": _READ,
    "audit/-/new": _READ,
    "audit/-/export": _READ,
    "bulk": _READ,
    "bulk/new": Line("read", "read", "to begin: operate, of more than 50 override"),
    "bulk/<str:bulk>": _READ,
    "bulk/<str:bulk>/stop": _OPERATE,
    "bulk/<str:bulk>/outcomes.csv": _READ,
    "system": _READ,
    "system/retention": _READ,
    "system/retention/<str:kind>": _ADMIN,
    "keys": Line("admin"),
    "keys/-/new": _OF_ADMIN,
    "keys/<str:name>/revoke": _OF_ADMIN,
    "people/<str:name>/sign-out": _ADMIN,
    "people/<str:name>/link": _OF_ADMIN,
    "password/<str:uidb64>/<str:token>": Line(EVERYBODY, EVERYBODY, "with a link of an admin"),
    "admin": Line(EVERYBODY, EVERYBODY, "it only leads to the next line"),
    "admin/": Line("admin", "admin", "and every address below it"),
    "live/console": _READ,
    # Programs' own: with a key, or for everybody.
    "live/v1/runs/<str:key>/events": Line("key: read"),
    "live/v1/feed": Line("key: read"),
    "api/v1/openapi.json": _OPEN,
    "api/v1/docs": _OPEN,
    "health/live": _OPEN,
    "health/ready": _OPEN,
    "health/jobs": _OPEN,
    "metrics": Line("key: read"),
    "problems/": _OPEN,
    "problems/<str:code>": _OPEN,
}

# What the audit calls it, where it is not the address's own name.
ACTIONS = {
    "run-pause": "run.paused",
    "run-resume": "run.running",
    "run-cancel": "run.cancelled",
    "run-signal": "run.signalled",
    "run-brake": "run.braked",
    "run-edit": "run.changed",
    "run-keep": "run.changed",
    "reclaim": "lease.reclaimed",
    "decline-proposal": "lease.proposal-declined",
    "budget-cap": "budget.cap-changed",
    "run-budget-cap": "budget.cap-changed",
    "worker-drain": "worker.drained",
    "worker-stop-draining": "worker.undrained",
    "worker-revoke-key": "key.revoked",
    "acknowledge": "alert.acknowledged",
    "snooze": "alert.snoozed",
    "bounds": "alert-rule.changed",
    "target-new": "target.created",
    "target-test": "target.tested",
    "target-change": "target.changed",
    "target-rotate": "target.secret-rotated",
    "target-delete": "target.deleted",
    "delivery": "delivery.resent",
    "bulk-stop": "bulk.stopped",
    "retention-age": "retention.changed",
    "key-new": "key.created",
    "key-revoke": "key.revoked",
    "person-link": "person.link-made",
    "person-sign-out": "person.signed-out",
}
