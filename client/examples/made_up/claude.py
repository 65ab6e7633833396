"""A Claude Code that is made up: it speaks the SDK's protocol, and asks no model.

A transport for `query(…, transport=MadeUpClaude())`. It answers the SDK's requests, asks the
hooks before a prompt and before a tool as Claude Code does, and uses its one tool, `Read`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import Transport

SESSION = "5f0f2a3e-0000-4000-8000-000000000001"
MODEL = "made-up"


class MadeUpClaude(Transport):
    """reads: how many files it reads, one model call each, before it answers."""

    def __init__(self, reads: int = 1) -> None:
        self.reads, self.hooks = reads, dict[str, list[str]]()
        self.calls = self.tools = 0
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._working: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Nothing to start."""

    async def write(self, data: str) -> None:
        """A line of the SDK's."""
        said = json.loads(data)
        if said["type"] == "control_request":
            request = said["request"]
            if request["subtype"] == "initialize":
                self.hooks = {
                    name: [id for matcher in matchers for id in matcher["hookCallbackIds"]]
                    for name, matchers in (request.get("hooks") or {}).items()
                }
            answer = {"subtype": "success", "request_id": said["request_id"], "response": {}}
            self._out.put_nowait({"type": "control_response", "response": answer})
        elif said["type"] == "control_response":
            response = said["response"]
            self._answers.pop(response["request_id"]).set_result(response.get("response") or {})
        elif said["type"] == "user":
            self._working = asyncio.create_task(self._work(said["message"]["content"]))

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._out.get()) is not None:
            yield message

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
        self._out.put_nowait(None)

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        """No prompt comes any more: what was said is the last, as the real one then ends."""
        self._out.put_nowait(None)

    async def think(self) -> None:
        """A model call: here one may wait, or fail."""
        self.calls += 1

    async def _work(self, prompt: str) -> None:
        if await self._is_stopped("UserPromptSubmit", {"prompt": prompt}):
            return self._end("", is_error=True)
        for number in range(1, self.reads + 1):
            await self.think()
            use = {"type": "tool_use", "id": f"toolu-{number}", "name": "Read",
                   "input": {"file_path": f"page-{number}"}}  # fmt: skip
            # One answer in two parts, which repeat id and usage.
            self._say(f"msg-{number}", {"type": "text", "text": "I look."})
            self._say(f"msg-{number}", use)
            asked = {"tool_name": "Read", "tool_input": use["input"], "tool_use_id": use["id"]}
            if await self._is_stopped("PreToolUse", asked):
                return self._end("", is_error=True)
            self.tools += 1
            block = {"type": "tool_result", "tool_use_id": use["id"], "content": "sunny in Rome"}
            message = {"role": "user", "content": [block]}
            self._out.put_nowait({"type": "user", "message": message, "session_id": SESSION})
        await self.think()
        self._say("msg-last", {"type": "text", "text": "It is sunny in Rome."})
        return self._end("It is sunny in Rome.")

    async def _is_stopped(self, hook: str, asked: dict[str, Any]) -> bool:
        """Ask the SDK's hooks, and wait for what they say."""
        for callback in self.hooks.get(hook, []):
            id = f"ask-{len(self._answers)}-{self.calls}-{hook}"
            future = self._answers[id] = asyncio.get_running_loop().create_future()
            given = {"session_id": SESSION, "hook_event_name": hook, **asked}
            request = {"subtype": "hook_callback", "callback_id": callback, "input": given,
                       "tool_use_id": asked.get("tool_use_id")}  # fmt: skip
            self._out.put_nowait({"type": "control_request", "request_id": id, "request": request})
            if (await future).get("continue") is False:
                return True
        return False

    def _say(self, id: str, block: dict[str, Any]) -> None:
        """A part of an answer. As with the real one its output is not whole yet."""
        usage = {"input_tokens": 120, "output_tokens": 1}
        message = {"id": id, "type": "message", "role": "assistant", "model": MODEL,
                   "content": [block], "usage": usage}  # fmt: skip
        self._out.put_nowait({"type": "assistant", "message": message, "session_id": SESSION,
                              "parent_tool_use_id": None})  # fmt: skip

    def _end(self, result: str, *, is_error: bool = False) -> None:
        """The running totals of the process: 120 and 30 tokens and 0.25 ¢ for each call."""
        totals = {"inputTokens": 120 * self.calls, "outputTokens": 30 * self.calls,
                  "costUSD": 0.0025 * self.calls}  # fmt: skip
        self._out.put_nowait({
            "type": "result", "subtype": "error_during_execution" if is_error else "success",
            "duration_ms": 5, "duration_api_ms": 5, "is_error": is_error, "num_turns": self.calls,
            "session_id": SESSION, "result": result, "total_cost_usd": totals["costUSD"],
            "usage": {"input_tokens": 120, "output_tokens": 30}, "modelUsage": {MODEL: totals},
        })  # fmt: skip
