"""Pages and the API, for a WSGI server: `granian --interface wsgi agentstate.wsgi:application`."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")

application = get_wsgi_application()
