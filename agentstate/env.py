"""Settings from the environment: typed, bounded, and refused at start with name, value and rule.

Every variable that the product reads is read through a function of this module, so that a typing
error is one clear line at start and never a surprise at night. An empty variable counts as unset.
"""

import importlib.util
import json
import os
import re
from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CACHES = "django.core.cache.backends"
CACHE_SECONDS = 0.25
YES = frozenset({"1", "true", "yes", "on"})
WHOLE = re.compile(r"-?[0-9]{1,18}")
NO = frozenset({"0", "false", "no", "off"})
ROLES = ("viewer", "operator", "senior", "admin")
BROKERS = ("pgmq", "amqp", "amqps", "redis", "rediss")

# The store's rules, which need Django to be imported; a test holds the two against each other.
BUDGET_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@~-]{0,62}[A-Za-z0-9])?")
CAP_MAX = 2**53 - 1
BUDGETS_MAX = 20
BUDGETS_RULE = (
    'a JSON list of up to 20 budgets like {"name": "tokens", "unit": "tokens", "cap": 500000},'
    " each name once; parent, a shared budget, may be given as well"
)


class BadSetting(Exception):
    """A variable of the environment breaks its rule. The text names it, its value and the rule."""

    def __init__(self, name: str, value: str, rule: str, *, secret: bool = False) -> None:
        shown = "(not shown)" if secret else repr(value)
        super().__init__(f"{name} is {shown}, but must be {rule}")
        self.name, self.value, self.rule = name, value, rule


def text(name: str, *, default: str = "", secret: bool = False, at_least: int = 0) -> str:
    """The variable as it is, without surrounding blanks. at_least: its shortest length if set."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if len(value) < at_least:
        raise BadSetting(name, value, f"at least {at_least} characters long", secret=secret)
    return value


def broker(name: str, *, default: str) -> str:
    """The address of a broker of one of the three kinds that the tests run on."""
    value = text(name, default=default, secret=True)
    if value.split("://", 1)[0] not in BROKERS or "://" not in value:
        rule = f"an address that begins with {', '.join(f'{kind}://' for kind in BROKERS)}"
        raise BadSetting(name, value, rule, secret=True)
    return value


def choice(name: str, *, default: str, among: Collection[str]) -> str:
    """One of a few words."""
    value = text(name, default=default)
    if value not in among:
        raise BadSetting(name, value, f"one of {', '.join(sorted(among))}")
    return value


def flag(name: str, *, default: bool) -> bool:
    """Yes or no, in any of the usual spellings."""
    value = text(name).lower()
    if not value:
        return default
    if value not in YES | NO:
        raise BadSetting(name, value, "1, true, yes, on, 0, false, no or off")
    return value in YES


def traces(name: str) -> bool:
    """Whether spans are made; not without the packages that make them."""
    value = flag(name, default=False)
    needed = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    if value and not all(map(_is_there, needed)):
        rule = "no while opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http are missing"
        raise BadSetting(name, text(name), rule)
    return value


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def integer(name: str, *, default: int, at_least: int, at_most: int) -> int:
    """A whole number within bounds, both included."""
    value = text(name)
    if not value:
        return default
    rule = f"a whole number from {at_least} to {at_most}"
    # Not left to int(), which also takes underscores, blanks and digits of other scripts.
    if not WHOLE.fullmatch(value) or not at_least <= int(value) <= at_most:
        raise BadSetting(name, value, rule)
    return int(value)


def seconds(name: str, *, default: int, at_least: int, at_most: int) -> int:
    """A duration in whole seconds within bounds."""
    try:
        return integer(name, default=default, at_least=at_least, at_most=at_most)
    except BadSetting as bad:
        raise BadSetting(name, bad.value, bad.rule.replace("number", "number of seconds")) from None


def age_seconds(name: str, *, at_most: int) -> int | None:
    """How long something is kept, in whole seconds; None when it is not set: for ever."""
    return seconds(name, default=0, at_least=1, at_most=at_most) or None


def budgets(name: str) -> tuple[dict[str, Any], ...]:
    """Budgets as a JSON list, each with name and cap, and where it is given unit and parent."""
    value = text(name, default="[]")
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise BadSetting(name, value, BUDGETS_RULE) from None
    if not isinstance(found, list) or len(found) > BUDGETS_MAX or not all(map(_is_budget, found)):
        raise BadSetting(name, value, BUDGETS_RULE)
    if len({budget["name"] for budget in found}) != len(found):
        raise BadSetting(name, value, BUDGETS_RULE)
    return tuple(found)


def _is_budget(found: Any) -> bool:
    if not isinstance(found, dict) or not {"name", "cap"} <= set(found):
        return False
    named = {member: value for member, value in found.items() if member != "cap"}
    return (
        set(named) <= {"name", "unit", "parent"}
        and all(isinstance(v, str) and BUDGET_NAME.fullmatch(v) for v in named.values())
        and type(found["cap"]) is int
        and 0 <= found["cap"] <= CAP_MAX
    )


def cache(name: str) -> dict[str, Any]:
    """Where copies are kept, as Django takes it: in this process, or in a Redis that all share."""
    value = text(name, secret=True)
    if not value:
        # Small: what is not in it is made again.
        return {"BACKEND": f"{CACHES}.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 1_000}}
    if not value.startswith(("redis://", "rediss://")) or len(value.split("://", 1)[1]) == 0:
        raise BadSetting(name, value, "redis://host:port/number, or rediss://…", secret=True)
    if importlib.util.find_spec("redis") is None:
        rule = "unset while the Python package `redis` is not installed"
        raise BadSetting(name, value, rule, secret=True)
    options = {
        "serializer": "agentstate.caching.Plain",
        # A cache that does not answer is passed over; nobody waits for it.
        "socket_connect_timeout": CACHE_SECONDS,
        "socket_timeout": CACHE_SECONDS,
    }
    return {"BACKEND": f"{CACHES}.redis.RedisCache", "LOCATION": value, "OPTIONS": options}


def words(name: str, *, default: tuple[str, ...] = ()) -> list[str]:
    """A list, separated by commas."""
    value = text(name)
    return [word.strip() for word in value.split(",") if word.strip()] if value else list(default)


def secrets(name: str, *, at_least: int) -> list[str]:
    """Secrets with commas between them, each at least so many characters long."""
    found = words(name)
    if any(len(one) < at_least for one in found):
        raise BadSetting(name, "", f"at least {at_least} characters each", secret=True)
    return found


def origins(name: str) -> list[str]:
    """A list of origins such as https://console.example.org, separated by commas."""
    found = words(name)
    for origin in found:
        if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
            raise BadSetting(name, origin, "origins like https://console.example.org, no path")
    return found


def rates(name: str, *, at_most: int) -> dict[str, int]:
    """A whole number for each of several names: `reporter=5,fleet=0`."""
    found: dict[str, int] = {}
    for word in words(name):
        of, _, value = word.rpartition("=")
        if not of or not WHOLE.fullmatch(value) or not 0 <= int(value) <= at_most:
            raise BadSetting(name, word, f"name=number, each from 0 to {at_most}, with commas")
        found[of] = int(value)
    return found


def origin(name: str) -> str:
    """One origin such as https://console.example.org, or nothing."""
    found = origins(name)
    if len(found) > 1:
        raise BadSetting(name, text(name), "one origin like https://console.example.org, no path")
    return found[0] if found else ""


def issuer(name: str) -> str:
    """Where an OpenID Connect provider is: https, or http on this machine alone."""
    value = text(name).rstrip("/")
    parts = urlsplit(value)
    local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if value and not ((parts.scheme == "https" or local) and parts.hostname and not parts.query):
        raise BadSetting(name, value, "an address like https://sso.example.org/realms/ops")
    return value


def roles(name: str) -> dict[str, str]:
    """A role for each of several groups of somebody else's: `sre=operator,platform=admin`."""
    found: dict[str, str] = {}
    for word in words(name):
        group, _, role = word.rpartition("=")
        if not group or role not in ROLES:
            raise BadSetting(name, word, f"group=role with commas, a role of {', '.join(ROLES)}")
        found[group.strip()] = role
    return found


def networks(name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Networks like 10.0.0.0/8 or fd00::/8, or single addresses, separated by commas."""
    found = []
    for word in words(name):
        try:
            found.append(ip_network(word))
        except ValueError:
            raise BadSetting(name, word, "networks like 10.0.0.0/8, fd00::/8, 127.0.0.1") from None
    return tuple(found)


def path(name: str, *, default: Path) -> Path:
    """A file or folder, made absolute; `~` is the home folder. It need not exist."""
    value = text(name)
    if "\0" in value:
        raise BadSetting(name, value, "a path without a NUL character")
    return Path(os.path.abspath(Path(value).expanduser())) if value else default


def folder(name: str) -> Path | None:
    """A folder that must exist, or None when the variable is not set."""
    value = text(name)
    if not value:
        return None
    found = path(name, default=Path("/"))
    if not found.is_dir():
        raise BadSetting(name, value, "an existing folder")
    return found
