"""Django's settings. What a site may change comes from the environment, by way of env.py."""

import hashlib
import os
import secrets
from typing import Any

from django.utils.csp import CSP

from agentstate import admin_look, env, postgres, where
from agentstate.embedded import EmbeddedPostgres

if os.environ.get("DJANGO_SETTINGS_MODULE"):
    # A site's process. One of tests (ephemeral) reads this file, too, and has modules of its own.
    where.make_importable()
BASE_DIR = where.BASE

# Embedded data, the secret key, logs.
AGENTSTATE_HOME = env.path("AGENTSTATE_HOME", default=where.state_folder())

# What this process is; shown as application_name in pg_stat_activity, so that one can tell whose
# connection holds a lock.
AGENTSTATE_PROCESS = env.text("AGENTSTATE_PROCESS", default="command")


KEY_LOST = (
    "a key of at least 32 characters that nobody guesses. Put back the one that was there. Without"
    " it: remove the file; then everybody signs in anew, and sets up second steps and alert targets"
    " again"
)


def kept_secret_key() -> str:
    """The key in AGENTSTATE_HOME, made by whoever comes first. Only its owner can read it.

    Raises BadSetting for a file that holds none: to make another one is for a person to decide.
    """
    kept = AGENTSTATE_HOME / "secret-key"
    AGENTSTATE_HOME.mkdir(parents=True, exist_ok=True)
    if not kept.exists():
        # Written aside, then linked: link() refuses when another start was quicker.
        draft = AGENTSTATE_HOME / f"secret-key.{os.getpid()}.{secrets.token_hex(4)}"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(50))
            file.flush()
            os.fsync(file.fileno())  # a name that outlives a power cut with nothing in it is worse
        try:
            os.link(draft, kept)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    key = kept.read_text(errors="replace").strip()
    # Where power was cut a file may hold zeros, or what a disk made of it: anybody guesses those.
    if len(key) < 32 or not key.isprintable() or "\ufffd" in key or len(set(key)) < 5:
        raise env.BadSetting(str(kept), key, KEY_LOST, secret=True)
    return key


# Signs sessions and cursors. Changing it logs everybody out; several machines need the same one.
SECRET_KEY_GIVEN = bool(os.environ.get("AGENTSTATE_SECRET_KEY", "").strip())
SECRET_KEY = env.text("AGENTSTATE_SECRET_KEY", secret=True, at_least=32) or kept_secret_key()
# Former ones: what they signed and sealed stays good, so that the key can be changed.
SECRET_KEY_FALLBACKS = env.secrets("AGENTSTATE_SECRET_KEY_FALLBACKS", at_least=32)
# Pages with settings and stack traces for whoever causes an error: on a developer's machine only.
DEBUG = env.flag("AGENTSTATE_DEBUG", default=False)
# The names under which the console may be reached. Loopback only, unless said otherwise.
ALLOWED_HOSTS = env.words("AGENTSTATE_HOSTS", default=("localhost", "127.0.0.1", "[::1]"))
# Origins whose forms are accepted, when a proxy changes what the browser sees.
CSRF_TRUSTED_ORIGINS = env.origins("AGENTSTATE_ORIGINS")
# True behind a proxy that speaks HTTPS and sets X-Forwarded-Proto: cookies only over HTTPS, HSTS.
HTTPS = env.flag("AGENTSTATE_HTTPS", default=False)
# How many proxies of ours add to X-Forwarded-For: whose sign-ins are counted together. Too few: all
# people are one address. Too many: whoever sends such a header chooses what they are counted as.
PROXIES = env.integer("AGENTSTATE_PROXIES", default=1 if HTTPS else 0, at_least=0, at_most=10)
# A second web process, loaded and idle, that begins the moment the first one dies.
AGENTSTATE_STANDBY = env.flag("AGENTSTATE_STANDBY", default=True)

INSTALLED_APPS = [
    "agentstate.store",
    "agentstate.api",
    "dashboard",
    "tasks",
    "unfold.apps.BasicAppConfig",  # before the admin, whose templates it has its own of
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "django_htmx",
    "heroicons",
    "allauth",
    "dashboard.sign_in_app.SignIn",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
]

# Every request passes these two, and those of the console CONSOLE_MIDDLEWARE (middleware.py).
MIDDLEWARE = ["agentstate.middleware.RequestMark", "agentstate.middleware.ConsoleStack"]
CONSOLE_MIDDLEWARE = [
    "agentstate.middleware.Compression",
    # Outside of all that may answer by itself, a wrong Host among it.
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]

UNFOLD = admin_look.UNFOLD

ROOT_URLCONF = "agentstate.urls"
WSGI_APPLICATION = "agentstate.wsgi.application"
APPEND_SLASH = False

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.csp",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

DATABASE_URL = env.text("DATABASE_URL", secret=True)
EMBEDDED = not DATABASE_URL
DATABASE_PARTS = (
    postgres.parse(DATABASE_URL)
    if DATABASE_URL
    else postgres.embedded_parts(str(EmbeddedPostgres(AGENTSTATE_HOME / "postgres").socket))
)
# The same database past a pooler in transaction mode, for what needs a session of its own: LISTEN,
# the broker in the database, migrations, backups. Unset: as DATABASE_URL.
SESSION_URL = env.text("DATABASE_SESSION_URL", secret=True)
if SESSION_URL and EMBEDDED:
    raise env.BadSetting(
        "DATABASE_SESSION_URL", SESSION_URL, "unset while DATABASE_URL is not set", secret=True
    )
SESSION_PARTS = (
    postgres.parse(SESSION_URL, name="DATABASE_SESSION_URL") if SESSION_URL else DATABASE_PARTS
)
DATABASES = {
    "default": postgres.django_entry(
        DATABASE_PARTS,
        application_name=f"agentstate {AGENTSTATE_PROCESS}",
        pooled=bool(SESSION_URL),
    )
}
# How long a web or stream process waits for one answer of PostgreSQL; then the connection is closed
# and the caller is told. Nothing that it asks may take so long: locks are waited for 3 s, and the
# console's questions have time-outs of their own. Jobs and commands may ask for more.
ANSWER_SECONDS = 8.0 if AGENTSTATE_PROCESS in ("web", "streams") else None
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Copies that can be lost (caching.py). In this process: nothing to run, and other processes' writes
# are known by their hints. In Redis: shared, and a write ends a copy for all of them.
CACHES = {
    "default": env.cache("AGENTSTATE_CACHE_URL") | {"KEY_PREFIX": "agentstate", "VERSION": 1},
    "answers": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "answers",
        "OPTIONS": {"MAX_ENTRIES": 500},
    },
}

# One answer for all who refresh the same part within a second. Tests that step the clock say no.
AGENTSTATE_SHARED_ANSWERS = True

# Celery. Remote control is off: its reply queue has a name that pgmq cannot hold.
CELERY_BROKER_URL = env.broker("CELERY_BROKER_URL", default="pgmq://localhost")
# Longer than the longest task with its countdown: a task that takes longer runs twice.
VISIBILITY_SECONDS = 600
if CELERY_BROKER_URL.startswith("pgmq"):
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "conn_string": postgres.broker_conninfo(SESSION_PARTS),
        "init_extension": False,
        "use_notify": False,  # workers turn it on (tasks/app.py)
        "notify_throttle_interval_ms": 0,
        "wait_time_seconds": 0,
        "polling_interval": 1,
        "visibility_timeout": VISIBILITY_SECONDS,
        "pool_size": 4,
    }
elif CELERY_BROKER_URL.startswith("amqp"):
    # It has no visibility timeout; sent is what it has said that it keeps.
    CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True}
else:
    CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": VISIBILITY_SECONDS}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
# The broker gives out again what was in work when the connection went; both have one effect.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Not less than 4: pgmq acknowledges between polls, and a slot is free only then.
CELERY_WORKER_PREFETCH_MULTIPLIER = 4
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TIMEZONE = "UTC"
# A host's clock that is put back holds nothing up.
CELERY_BEAT_SCHEDULER = "tasks.beat:SteadyScheduler"

# What is uploaded (a bundle to be opened) is in memory already, and touches no disk: more than any
# body that is read.
FILE_UPLOAD_MAX_MEMORY_SIZE = 8 * 1024 * 1024

STATIC_URL = "/static/"
# Found where the apps keep them: a start needs no collectstatic, and nothing is ever out of date.
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 60
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
# Times where Django writes them, in the admin: a language's own formats go before DATETIME_FORMAT.
FORMAT_MODULE_PATH = "dashboard.formats"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
# A link behind which a person sets their password works once, and so long.
PASSWORD_RESET_TIMEOUT = 86_400
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

# Signing in (django-allauth): a name and a password, a second factor for who wants one, and an
# OpenID Connect provider if there is one. Nobody signs up. Tries are counted by dashboard/tries.py,
# so allauth's own counters, which each process would keep for itself, are off.
ACCOUNT_ADAPTER = "dashboard.sign_in.Accounts"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_SIGNUP_ENABLED = False
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGOUT_REDIRECT_URL = "login"
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_RATE_LIMITS = False
# What protects an account is changed only by who has just shown that it is theirs.
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300
ACCOUNT_REAUTHENTICATION_METHODS = ("password", "mfa")  # no code by mail: none is sent
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_ADAPTER = "dashboard.sign_in.Factors"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_FORMS = {
    "authenticate": "dashboard.sign_in.SecondFactor",
    "reauthenticate": "dashboard.sign_in.SecondFactorAgain",
    "add_webauthn": "dashboard.sign_in.NewKey",
    "authenticate_webauthn": "dashboard.sign_in.KeyFactor",
    "reauthenticate_webauthn": "dashboard.sign_in.KeyFactorAgain",
}
MFA_RATE_LIMITS = False
MFA_RECOVERY_CODES_SHOW_ONCE = True
MFA_TOTP_ISSUER = "agentstate"
MFA_TOTP_TOLERANCE = 1
# A browser gives a security key no other origin; without HTTPS it is one only of this machine.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not HTTPS

# The provider; its groups give roles, and nothing else does: whoever is in none of these is not let
# in. Without an issuer there is no such way to sign in.
OIDC_ISSUER = env.issuer("AGENTSTATE_OIDC_ISSUER")
OIDC_CLIENT_ID = env.text("AGENTSTATE_OIDC_CLIENT_ID")
OIDC_CLIENT_SECRET = env.text("AGENTSTATE_OIDC_CLIENT_SECRET", secret=True)
OIDC_ROLES = env.roles("AGENTSTATE_OIDC_ROLES")
OIDC_GROUPS_CLAIM = env.text("AGENTSTATE_OIDC_GROUPS_CLAIM", default="groups")
OIDC_NAME = env.text("AGENTSTATE_OIDC_NAME", default="single sign-on")
# Whom it knows is known as its own: another issuer's people are others, whatever they are called.
OIDC_PROVIDER = f"oidc-{hashlib.sha256(OIDC_ISSUER.encode()).hexdigest()[:12]}"
SOCIALACCOUNT_ADAPTER = "dashboard.oidc.Providers"
SOCIALACCOUNT_LOGIN_ON_GET = True
SOCIALACCOUNT_STORE_TOKENS = False
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": OIDC_PROVIDER,
                "name": OIDC_NAME,
                "client_id": OIDC_CLIENT_ID,
                "secret": OIDC_CLIENT_SECRET,
                "settings": {"server_url": OIDC_ISSUER},
            }
        ]
        if OIDC_ISSUER
        else [],
    }
}

SESSION_ENGINE = "dashboard.sessions"
AUTHENTICATION_BACKENDS = ["dashboard.sessions.Backend"]
SESSION_COOKIE_NAME = "agentstate_session"
# From the login on; then the password is asked again. Shorter: people sign in more often. Longer: a
# cookie that was stolen is good for longer.
SESSION_COOKIE_AGE = env.seconds(
    "AGENTSTATE_SESSION_SECONDS", default=12 * 3_600, at_least=60, at_most=30 * 86_400
)
# Unused for so long. An open page that refreshes is a use, and rests after an hour without a touch.
SESSION_IDLE_SECONDS = env.seconds(
    "AGENTSTATE_SESSION_IDLE_SECONDS", default=2 * 3_600, at_least=60, at_most=30 * 86_400
)
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = "agentstate_csrf"
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "dashboard.views.errors.forged"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
# What comes over plain HTTP all the same goes to HTTPS; the API and health checks do not pass here.
SECURE_SSL_REDIRECT = HTTPS
SILENCED_SYSTEM_CHECKS = [
    # These look for their middleware in MIDDLEWARE; it is in CONSOLE_MIDDLEWARE. A test asks them
    # again with that in its place (tests/bootstrap/test_production.py).
    "security.W001",
    "security.W002",
    "security.W003",
    "admin.E408",
    "admin.E409",
    "admin.E410",
    # Preloading is asked for by the owner of a whole domain, not by a console in it.
    "security.W021",
]
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SECURE_CSP: dict[str, list[str]] = {
    "default-src": [CSP.SELF],
    "script-src": [CSP.SELF, CSP.NONCE],
    "style-src": [CSP.SELF, CSP.NONCE],
    "img-src": [CSP.SELF, "data:"],
    "connect-src": [CSP.SELF],
    "object-src": [CSP.NONE],
    "base-uri": [CSP.SELF],
    "form-action": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
}

# Whether the role viewer shows what agents sent: data of events, attrs and results.
VIEWERS_SEE_PAYLOADS = env.flag("AGENTSTATE_VIEWERS_SEE_PAYLOADS", default=True)

# Of runs that are created without saying so. Retention counts from the end of a run; unset keeps
# runs for ever. Shorter: less to look back on. A budget that a run does not bring gets this cap.
DEFAULT_RETAIN_SECONDS = env.age_seconds("AGENTSTATE_RETAIN_SECONDS", at_most=10 * 366 * 86_400)
DEFAULT_BUDGETS = env.budgets("AGENTSTATE_DEFAULT_BUDGETS")

# What `execute` asks is prepared once per connection; not behind a pooler that cannot keep that.
PREPARED_STATEMENTS = env.flag("AGENTSTATE_PREPARED_STATEMENTS", default=not SESSION_URL)

# Of one run, over all its writers: more is 429 run-hot. Higher: one hot run may slow others down.
# Lower: a busy worker waits. Twice as many at once after a pause; 0: no limit.
RUN_WRITES_PER_SECOND = env.integer(
    "AGENTSTATE_RUN_WRITES_PER_SECOND", default=2_000, at_least=0, at_most=100_000
)

# Of one API key in one process: more is 429 rate-limited; twice as many at once after a pause; 0:
# no limit. Higher: one eager script slows all down. Lower: it waits. Keys named in the second have
# their own.
KEY_REQUESTS_PER_SECOND = env.integer(
    "AGENTSTATE_KEY_REQUESTS_PER_SECOND", default=0, at_least=0, at_most=100_000
)
KEY_RATES = env.rates("AGENTSTATE_KEY_RATES", at_most=100_000)

# Of one web process, waiting or in a thread; lists get half of them, renewals all. Higher: callers
# wait longer when it is too much. Lower: they are sent away (503 overloaded) sooner.
REQUESTS_MAX = env.integer("AGENTSTATE_REQUESTS_MAX", default=256, at_least=20, at_most=10_000)

# What still fires is told again after so long; 0: once. Shorter: nobody reads it any more.
ALERT_AGAIN_SECONDS = env.seconds(
    "AGENTSTATE_ALERT_AGAIN_SECONDS", default=3_600, at_least=0, at_most=7 * 86_400
)
# Where alerts may be delivered beside the public internet: 10.0.0.0/8, 127.0.0.1, fd00::/8, …
# Whoever may add a target reaches what is there.
DELIVERY_NETWORKS = env.networks("AGENTSTATE_DELIVERY_NETWORKS")
# The console as people reach it; messages link to it when it is set.
CONSOLE_URL = env.origin("AGENTSTATE_CONSOLE_URL")

# A run that came as a trace is ended when no span has come for so long: after the span without a
# parent, and where that does not come. Shorter: spans that are late begin a further run. Longer: it
# is shown as running.
TRACE_QUIET_SECONDS = env.seconds(
    "AGENTSTATE_TRACE_QUIET_SECONDS", default=60, at_least=1, at_most=86_400
)
TRACE_IDLE_SECONDS = env.seconds(
    "AGENTSTATE_TRACE_IDLE_SECONDS", default=3_600, at_least=1, at_most=30 * 86_400
)

LOG_LEVEL = env.choice(
    "AGENTSTATE_LOG_LEVEL", default="INFO", among=("DEBUG", "INFO", "WARNING", "ERROR")
)
# json: for programs, one object a line. line: for people. Both have the same ids (logs.py).
LOG_FORMAT = env.choice("AGENTSTATE_LOG_FORMAT", default="line", among=("json", "line"))
# An entry for each request, at INFO. Some 50 µs and 300 octets each; what failed is logged anyway.
LOG_REQUESTS = env.flag("AGENTSTATE_LOG_REQUESTS", default=False)
# Spans of OpenTelemetry, for each request and task. Where to, and how many of them, is said by
# OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, …).
TRACES = env.traces("AGENTSTATE_TRACES")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        style: {"()": "agentstate.logs.formatter", "style": style} for style in ("json", "line")
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        # Django's own would write to its own handler as well; a 404 or 409 is no warning of ours.
        "django": {"handlers": [], "propagate": True, "level": "INFO"},
        "django.request": {"level": "ERROR"},
        # Anybody can send a wrong Host; the answer is 400, and no line and no stack are due.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        "django.security.RequestDataTooBig": {"level": "CRITICAL"},  # nor of more than is read
        "django.server": {"handlers": [], "propagate": True},
        "httpx": {"level": "WARNING"},
    },
}
