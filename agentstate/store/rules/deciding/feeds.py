"""Checkpoints of those who read the feed."""

from __future__ import annotations

from agentstate.store.commands import CheckpointSet, SetCheckpoint
from agentstate.store.errors import Invalid, VersionConflict
from agentstate.store.rules.deciding.desk import Deciding


def set_checkpoint(ask: SetCheckpoint, on: Deciding) -> CheckpointSet:
    facts = on.draft.facts
    if ask.position > facts.feed_position:
        raise Invalid("position", f"at most {facts.feed_position}, the feed's last position")
    stands = facts.consumers.get(ask.consumer, 0)
    if ask.position < stands:
        raise VersionConflict(
            f"{ask.consumer} is at {stands}: a checkpoint never goes back",
            current={"consumer": ask.consumer, "position": stands},
        )
    # The next command of this transaction sees it, too.
    facts.consumers[ask.consumer] = ask.position
    on.draft.writes.other.append(("checkpoint", {"ask": ask, "by": on.by.principal}))
    return CheckpointSet(consumer=ask.consumer, position=ask.position, at=on.draft.now)
