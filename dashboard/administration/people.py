"""People, their roles, and the views that were saved: what is not the store's.

A person is never deleted, because their name stands beside what they did; they are switched off. A
role is a group's name and nothing else: what it may is in `dashboard/access.py`. Passwords come in
and never go out: they are typed here, or by the person behind a link that works once.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.html import format_html
from unfold.forms import AdminPasswordChangeForm
from unfold.widgets import (
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from agentstate import store
from dashboard import zones
from dashboard.access import NO_ROLE, ROLES
from dashboard.administration.reading import LINK, ForAdmins
from dashboard.administration.site import site
from dashboard.models import SavedView
from dashboard.pages import circumstances
from dashboard.sessions import end_sessions
from dashboard.usernames import new_name

NO_CHOICE = ("", f"{NO_ROLE}: may not look")
LAST_ADMIN = "Nobody else could administer this site: make somebody else an admin first."
MOVED = (
    "Somebody else changed this meanwhile: the role is {role} now, {active}. Nothing was changed."
)


def audit(request: Any, action: str, thing: str, **more: Any) -> None:
    """Write down what was done, in the transaction that does it."""
    under = circumstances(request)
    store.record_action(by=request.access.caller, action=action, thing=thing, under=under, **more)


def facts(person: User) -> dict[str, Any]:
    """What the audit tells of a person: never a password. Read anew: what is asked is the new."""
    found = User.objects.get(pk=person.pk)
    return {"role": role_of(found), "active": found.is_active}


class PersonForm(forms.ModelForm):  # type: ignore[type-arg]
    """Role and whether they may come in, guarded by what was seen of both. The last admin stays
    one.
    """

    role = forms.ChoiceField(
        choices=[NO_CHOICE, *((role, role) for role in ROLES)],
        required=False,
        show_hidden_initial=True,  # what was seen comes back with the form
        widget=UnfoldAdminSelectWidget,
        help_text="From viewer to admin each may what the one before it may.",
    )

    class Meta:
        model = User
        fields = ("is_active",)
        labels = {"is_active": "May sign in"}
        help_texts = {"is_active": "Switched off, their sessions end with the next request."}

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.fields["is_active"].show_hidden_initial = True
        if self.instance.pk:
            role = role_of(self.instance)
            self.fields["role"].initial = "" if role == NO_ROLE else role
            if self.instance.is_superuser:
                self.fields["role"].disabled = True
                self.fields["role"].help_text = "A superuser of Django's is always an admin."

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or {}
        if self.instance.pk:
            self.check_seen(found)
        stays = found.get("is_active") and (
            self.instance.is_superuser or found.get("role") == "admin"
        )
        if self.instance.pk and not stays:
            # Two who take the role from each other at once: the second one sees what the first did.
            Group.objects.select_for_update().get(name="admin")
            admins = User.objects.filter(
                Q(groups__name="admin") | Q(is_superuser=True), is_active=True
            )
            if set(admins.values_list("pk", flat=True)) == {self.instance.pk}:
                raise forms.ValidationError(LAST_ADMIN)
        return found

    def check_seen(self, asked: dict[str, Any]) -> None:
        """Raises ValidationError when the person is neither as the form was made of nor as it asks
        for. From here on nobody else changes them; sent again, the form is made of what is now.
        """
        person = User.objects.select_for_update(no_key=True).get(pk=self.instance.pk)
        role = role_of(person)
        now = {"role": "" if role == NO_ROLE else role, "is_active": str(person.is_active)}
        if person.is_superuser:
            now["role"] = asked.get("role", "")
        seen = {name: self.data.get(self[name].html_initial_name, "") for name in now}
        if seen == now or now == {name: str(asked.get(name, "")) for name in now}:
            return
        told = {self[name].html_initial_name: value for name, value in now.items()}
        self.data = {**self.data, **told}
        active = "they may sign in" if person.is_active else "they may not sign in"
        raise forms.ValidationError(MOVED.format(role=role, active=active))


def role_of(person: User) -> str:
    """Also of one who may not sign in."""
    held = {group.name for group in person.groups.all()}
    return next((role for role in reversed(ROLES) if role in held), NO_ROLE)


class NewPersonForm(PersonForm):
    """A name, a role, and a password, or none: then they set one behind a link."""

    password1 = forms.CharField(
        label="Password",
        required=False,
        strip=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="Leave it empty to give them a link behind which they set one themselves.",
    )
    password2 = forms.CharField(
        label="Password, again",
        required=False,
        strip=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
    )

    class Meta(PersonForm.Meta):
        fields = ("username", "is_active")  # type: ignore[assignment]
        widgets = {"username": UnfoldAdminTextInputWidget}
        labels = PersonForm.Meta.labels | {"username": "Name"}
        help_texts = PersonForm.Meta.help_texts | {
            "username": "Letters, digits and @ . + - _ only. It stands beside what they do."
        }

    def clean_username(self) -> str:
        return new_name(self.cleaned_data["username"])

    def clean(self) -> dict[str, Any]:
        found = super().clean()
        first, second = found.get("password1", ""), found.get("password2", "")
        if first != second:
            self.add_error("password2", "The two differ.")
        elif first:
            try:
                validate_password(first, User(username=found.get("username", "")))
            except forms.ValidationError as refused:
                self.add_error("password1", refused)
        return found

    def save(self, commit: bool = True) -> User:
        person: User = super().save(commit=False)
        if typed := self.cleaned_data["password1"]:
            person.set_password(typed)
        else:
            person.set_unusable_password()
        if commit:
            person.save()
        return person


class PasswordForm(AdminPasswordChangeForm):  # type: ignore[misc]
    """Two fields. Who should not come in is switched off, not left without a password."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.fields.pop("usable_password", None)


@admin.register(User, site=site)
class People(UserAdmin, ForAdmins):  # type: ignore[type-arg,misc]
    one, many, known_by = "person", "people", "username"
    form, add_form = PersonForm, NewPersonForm
    # Django's own says that more can be set afterwards. Here it cannot.
    add_form_template = "admin/change_form.html"
    change_password_form = PasswordForm
    ordering = ("username",)
    list_display = ("called", "role", "may_sign_in", "signed_in", "made")
    list_filter = ("groups", "is_active")
    search_fields = ("username__icontains",)
    search_help_text = "Part of the name"
    filter_horizontal = ()
    fieldsets = ((None, {"fields": ("called", "role", "is_active", "signed_in", "made")}),)
    add_fieldsets = (
        (None, {"fields": ("username", "role", "is_active", "password1", "password2")}),
    )
    change_form_before_template = "administration/person.html"
    list_before_template = None

    @admin.display(description="name", ordering="username")
    def called(self, person: User) -> str:
        return person.username

    @admin.display(description="may sign in", boolean=True)
    def may_sign_in(self, person: User) -> bool:
        return person.is_active

    @admin.display(description="signed in last", ordering="last_login")
    def signed_in(self, person: User) -> str:
        return zones.full(person.last_login) if person.last_login else "never"

    @admin.display(description="made", ordering="date_joined")
    def made(self, person: User) -> str:
        return zones.full(person.date_joined)

    @admin.display(description="role")
    def role(self, person: User) -> str:
        return "admin (superuser)" if person.is_superuser else role_of(person)

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).prefetch_related("groups")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("called", "signed_in", "made") if obj else ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return True

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return True

    def save_model(self, request: Any, obj: User, form: Any, change: bool) -> None:
        request.was = facts(obj) if change else {}
        super().save_model(request, obj, form, change)

    def save_related(self, request: Any, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        person = form.instance
        if not person.is_superuser:
            role = form.cleaned_data.get("role")
            person.groups.set(Group.objects.filter(name=role) if role else [])
        now_is = facts(person)
        if request.was != now_is:
            action = "person.changed" if change else "person.created"
            audit(request, action, person.username, before=request.was, after=now_is)
        request.is_told = True

    def response_add(
        self, request: HttpRequest, obj: User, post_url_continue: str | None = None
    ) -> HttpResponse:
        """To the person, where the link for their password is made."""
        if obj.has_usable_password():
            messages.success(request, f"{obj.username} is made and may sign in.")
        else:
            messages.warning(
                request, f"{obj.username} is made and has no password yet: make a link, below."
            )
        return redirect("admin:auth_user_change", obj.pk)

    def response_change(self, request: HttpRequest, obj: User) -> HttpResponse:
        messages.success(request, f"{obj.username} is changed.")
        return redirect("admin:auth_user_changelist")

    def log_change(self, request: Any, obj: User, message: Any) -> None:  # type: ignore[override]
        """Of Django's calls only the one for a password that was typed is news here."""
        if not getattr(request, "is_told", False):
            is_own = obj.pk == request.user.pk
            end_sessions(obj, keep=request.session.session_key if is_own else None)
            audit(request, "person.password-set", obj.username)


@admin.register(Group, site=site)
class Roles(ForAdmins):
    """The four roles, with who has them."""

    one, many = "role", "roles"
    ordering = ("id",)
    list_display = ("name", "may", "people")
    fields = ("name", "may", "who")
    readonly_fields = fields
    change_form_before_template = "administration/roles.html"
    list_before_template = "administration/roles.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        found: QuerySet[Group] = super().get_queryset(request).filter(name__in=ROLES)
        return found.annotate(members=Count("user"))

    @admin.display(description="may")
    def may(self, group: Group) -> str:
        return ", ".join(s for s in store.SCOPES if s in ROLES[group.name])

    @admin.display(description="people")
    def people(self, group: Any) -> int:
        found: int = group.members
        return found

    @admin.display(description="who")
    def who(self, group: Group) -> str:
        return ", ".join(
            group.user_set.order_by("username").values_list("username", flat=True)[:200]
        )


@admin.register(SavedView, site=site)
class SavedViews(ForAdmins):
    """Lists under a name. They are made and changed on Runs; here those of others can be ended."""

    one, many = "saved view", "saved views"
    delete_confirmation_template = "administration/delete_view.html"
    ordering = ("name", "id")
    list_display = ("name", "whose", "shown", "changed_by", "changed_at")
    fields = ("name", "whose", "shown", "columns", "version", "changed_by", "changed_at")
    readonly_fields = fields
    search_fields = ("name__icontains",)
    search_help_text = "Part of the name"

    @admin.display(description="whose")
    def whose(self, view: SavedView) -> str:
        return view.owner.get_username() if view.owner else "the team"

    @admin.display(description="filter")
    def shown(self, view: SavedView) -> str:
        text = view.filter or "all"
        return format_html('<a class="{}" href="/runs?{}">{}</a>', LINK, view.listing.query, text)

    def get_queryset(self, request: HttpRequest) -> QuerySet[SavedView]:
        found: QuerySet[SavedView] = super().get_queryset(request)
        return found.select_related("owner")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return True

    def delete_model(self, request: HttpRequest, obj: SavedView) -> None:
        before = {"owner": self.whose(obj), "filter": obj.filter}
        audit(request, "view.deleted", obj.name, before=before)
        super().delete_model(request, obj)

    def response_delete(self, request: HttpRequest, obj_display: str, obj_id: int) -> HttpResponse:
        messages.success(request, f"“{obj_display}” is deleted.")
        return redirect("admin:dashboard_savedview_changelist")

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """One at a time: each asks."""
        raise PermissionDenied
