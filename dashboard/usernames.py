"""What somebody new may be called, whichever way they come: form, command line or provider.

Who has a name keeps it, whatever is refused today.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from agentstate.store.rules.names import has_ink

# No address can have them as a part of it: browsers take them for the folder itself or its parent.
DOTS = frozenset({".", ".."})
NO_ADDRESS = "No address can have a name of dots alone: choose another one."
NO_INK = "Nobody can see this name: it stands beside what they do."
TAKEN = "Somebody is called {name} already, and capitals alone tell nobody apart."


def new_name(text: str) -> str:
    """The name as it is kept, `shaped`, which nobody has in other capitals. That nobody has it as
    it is, is for whoever makes it to see. Raises ValidationError, in words for who typed it."""
    name = shaped(text)
    other = User.objects.filter(username__iexact=name).exclude(username=name).first()
    if other is not None:
        raise ValidationError(TAKEN.format(name=other.get_username()))
    return name


def shaped(text: str) -> str:
    """The name with full-width letters, ligatures and the like as their plain letters (Unicode's
    NFKC, as Django's own forms have it). Raises ValidationError for what no name can be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError("A name is a text: these octets are no UTF-8.") from None
    name = User.normalize_username(text)
    User._meta.get_field("username").clean(name, None)
    if name in DOTS:
        raise ValidationError(NO_ADDRESS)
    if not has_ink(name):
        raise ValidationError(NO_INK)
    return name
