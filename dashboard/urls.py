"""The console's addresses."""

from typing import Any

from allauth.account import views as sign_in
from allauth.mfa.base import views as factors
from allauth.mfa.recovery_codes import views as recovery
from allauth.mfa.webauthn import views as webauthn
from django.conf import settings
from django.urls import URLPattern, path
from django.views.generic import RedirectView

from dashboard import oidc
from dashboard.administration import people as _people  # noqa: F401  what it registers
from dashboard.administration import tables as _tables  # noqa: F401
from dashboard.administration.site import site
from dashboard.views import (
    account,
    actions,
    ages,
    alerts,
    bounds,
    budgets,
    bulks,
    bundles,
    caps,
    checks,
    chosen,
    contention,
    deeds,
    exports,
    jump,
    keys,
    leases,
    now,
    people,
    proposals,
    quiet,
    receipts,
    rules,
    runs,
    saved,
    session,
    setup,
    story,
    system,
    targets,
    workers,
)


def named(route: str, view: Any, *names: str, **parts: str) -> list[URLPattern]:
    """One address under several names: allauth's pages look for each other by their own."""
    return [path(route, view, parts, name=name) for name in names]


PROVIDER = {"provider_id": settings.OIDC_PROVIDER}
SIGN_IN = [
    path("setup", setup.show, name="setup"),
    *named("login", session.Login.as_view(), "login", "account_login"),
    *named("logout", session.Logout.as_view(), "logout", "account_logout"),
    path("login/second", factors.authenticate, name="mfa_authenticate"),
    path("login/again", account.guarded(sign_in.reauthenticate), name="account_reauthenticate"),
    path("login/again/second", account.guarded(factors.reauthenticate), name="mfa_reauthenticate"),
    path("login/again/key", account.guarded(webauthn.reauthenticate_webauthn),
         name="mfa_reauthenticate_webauthn"),
    *named("login/oidc", oidc.begin, "begin-oidc", "openid_connect_login", **PROVIDER),
    *named("login/oidc/done", oidc.end, "openid_connect_callback", **PROVIDER),
    *named("account", account.show, "account", "mfa_index", "mfa_list_webauthn"),
    path("account/password", account.guarded(account.Password.as_view()),
         name="account_change_password"),
    path("account/sign-out", account.sign_out_everywhere, name="sign-out-everywhere"),
    path("account/app", account.guarded(account.AddApp.as_view()), name="mfa_activate_totp"),
    path("account/app/off", account.guarded(account.RemoveApp.as_view()),
         name="mfa_deactivate_totp"),
    path("account/keys/new", account.guarded(account.AddKey.as_view()), name="mfa_add_webauthn"),
    path("account/keys/<int:pk>/remove", account.guarded(account.RemoveKey.as_view()),
         name="mfa_remove_webauthn"),
    path("account/codes", account.guarded(recovery.view_recovery_codes),
         name="mfa_view_recovery_codes"),
    path("account/codes/new", account.guarded(account.NewCodes.as_view()),
         name="mfa_generate_recovery_codes"),
]  # fmt: skip

urlpatterns = [
    *SIGN_IN,
    path("", now.show, name="home"),
    path("now", now.show, name="now"),
    path("settings", chosen.show, name="settings"),
    path("settings/quiet", quiet.of_person, name="own-quiet"),
    path("settings/zone", chosen.choose_zone, name="choose-zone"),
    path("theme", session.choose_theme, name="theme"),
    path("jump", jump.jump, name="jump"),
    path("runs", runs.show, name="runs"),
    # No run is called "-".
    path("runs/-/refresh", runs.refresh, name="runs-refresh"),
    path("runs/-/counts", runs.counts, name="runs-counts"),
    path("runs/-/filter", runs.show_facets, name="runs-filter"),
    path("runs/-/suggestions", runs.show_suggestions, name="runs-suggestions"),
    path("runs/-/export", exports.export, name="runs-export"),
    path("runs/-/views", saved.show, name="runs-views"),
    path("runs/-/views/<int:number>/<str:action>", saved.act, name="runs-view-act"),
    path("runs/<str:key>", story.show, name="run"),
    path("runs/<str:key>/refresh", story.refresh, name="run-refresh"),
    path("runs/<str:key>/timeline", story.show_timeline, name="run-timeline"),
    path("runs/<str:key>/events/<int:seq>/payload", story.payload, name="run-payload"),
    path("runs/<str:key>/invariants", checks.show, name="run-invariants"),
    path("runs/<str:key>/export", checks.export_run, name="run-export"),
    path("runs/<str:key>/bundle", bundles.ask, name="run-bundle"),
    path("runs/<str:key>/bundle/file", bundles.make, name="run-bundle-file"),
    *(
        path(f"runs/<str:key>/{action}", deeds.act, {"action": action}, name=f"run-{action}")
        for action in deeds.DEEDS
    ),
    path("runs/<str:key>/<str:action>", story.act, name="run-act"),
    path("leases", leases.show, name="leases"),
    path("leases/<str:unit>", leases.show_unit, name="lease"),
    path("leases/<str:unit>/reclaim", leases.reclaim, name="reclaim"),
    path(
        "leases/<str:unit>/proposals/<str:proposal>/decline",
        proposals.decline,
        name="decline-proposal",
    ),
    path("workers", workers.show, name="workers"),
    path("workers/<str:name>/revoke-key", workers.revoke_key, name="worker-revoke-key"),
    path("workers/<str:name>/<str:action>", workers.act, name="worker-act"),
    path("contention", contention.show, name="contention"),
    path("budgets", budgets.show, name="budgets"),
    path("budgets/<str:name>", budgets.show_one, name="budget"),
    path("budgets/<str:name>/cap", caps.change_cap, name="budget-cap"),
    path("runs/<str:key>/budgets/<str:name>", budgets.show_one, name="run-budget"),
    path("runs/<str:key>/budgets/<str:name>/cap", caps.change_cap, name="run-budget-cap"),
    path("bulk", bulks.show, name="bulks"),
    # No bulk is called "new".
    path("bulk/new", bulks.begin, name="bulk-new"),
    path("bulk/<str:bulk>", bulks.show_one, name="bulk"),
    path("bulk/<str:bulk>/stop", bulks.stop, name="bulk-stop"),
    path("bulk/<str:bulk>/outcomes.csv", bulks.export, name="bulk-export"),
    path("alerts", alerts.show, name="alerts"),
    path("alerts/<str:rule>/acknowledge", alerts.acknowledge, name="acknowledge"),
    path("alerts/<str:rule>/snooze", alerts.snooze, name="snooze"),
    path("alerts/<str:rule>/bounds", bounds.change, name="bounds"),
    # No rule and no target is called "-".
    path("alerts/-/rules/-/new", rules.make, name="rule-new"),
    path("alerts/-/rules/<str:rule>", rules.edit, name="rule-edit"),
    path("alerts/-/rules/<str:rule>/delete", rules.delete, name="rule-delete"),
    path("alerts/-/targets", targets.show, name="targets"),
    path("alerts/-/targets/-/new", targets.make, name="target-new"),
    path("alerts/-/targets/<str:name>", targets.show_one, name="target"),
    path("alerts/-/targets/<str:name>/test", targets.test, name="target-test"),
    path("alerts/-/targets/<str:name>/change", targets.change, name="target-change"),
    path("alerts/-/targets/<str:name>/rotate", targets.rotate, name="target-rotate"),
    path("alerts/-/targets/<str:name>/quiet", quiet.of_target, name="target-quiet"),
    path("alerts/-/targets/<str:name>/delete", targets.delete, name="target-delete"),
    path("alerts/-/deliveries/<str:delivery>", targets.show_delivery, name="delivery"),
    path("receipts", receipts.show, name="receipts"),
    path("bundles", bundles.show, name="bundles"),
    path("audit", actions.show, name="audit"),
    path("audit/-/new", actions.count_new, name="audit-new"),
    path("audit/-/export", actions.export, name="audit-export"),
    path("people/<str:name>/sign-out", account.sign_out, name="person-sign-out"),
    path("system", system.show, name="system"),
    path("system/retention", ages.show, name="retention"),
    path("system/retention/<str:kind>", ages.change, name="retention-age"),
    path("keys", keys.show, name="keys"),
    # No key is called "-".
    path("keys/-/new", keys.make, name="key-new"),
    path("keys/<str:name>/revoke", keys.revoke, name="key-revoke"),
    path("people/<str:name>/link", people.make_link, name="person-link"),
    path("password/<str:uidb64>/<str:token>", people.SetPassword.as_view(), name="set-password"),
    path("admin", RedirectView.as_view(pattern_name="admin:index"), name="admin"),
    path("admin/", site.urls),
]
