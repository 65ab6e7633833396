"""A durable function: interrupt it anywhere and start it again, and it goes on where it was.

    AGENTSTATE_URL=http://127.0.0.1:8000 AGENTSTATE_KEY=… python durable_report.py 42

Three pages are fetched and summed up by a model that is made up, so it runs offline. Start it twice
at once: the second waits for the first and prints what that one found. Start it when it is done:
it prints the same once more and does nothing.
"""

from __future__ import annotations

import os
import sys
import time

from agentstate_client import BudgetExhausted, Client, NewBudget
from agentstate_client.durable import Durable

TTL_SECONDS = 15

client = Client(os.environ["AGENTSTATE_URL"], os.environ["AGENTSTATE_KEY"], worker="report")
durable = Durable(client, ttl_seconds=TTL_SECONDS)


@durable.step
def fetch(page: int) -> str:
    print(f"fetching page {page}")
    time.sleep(0.2)  # far away
    return f"page {page} says that there are {page * 7}"


@durable.step
def model(prompt: str) -> dict[str, object]:
    """An answer, and the tokens that it took. Asked once for each prompt, whatever happens."""
    print("asking the model")
    answer = f"what follows from {len(prompt)} characters"
    return {"text": answer, "tokens": len(prompt.split()) + len(answer.split())}


@durable(budgets=[NewBudget("tokens", cap=1_000)])
def report(pages: int) -> str:
    texts = [fetch(page) for page in range(1, pages + 1)]
    answer = model("\n".join(texts))
    # Charged once: with the same id, going on after a crash charges nothing more.
    durable.run.budget("tokens").spend(answer["tokens"], id="answer")
    return answer["text"]


if __name__ == "__main__":
    key = sys.argv[1] if len(sys.argv) > 1 else "42"
    with client:
        try:
            print("report:", report.call(key, (3,), wait_seconds=2 * TTL_SECONDS))
        except BudgetExhausted as used_up:
            print(f"{used_up.spent} of {used_up.cap} tokens are spent")
