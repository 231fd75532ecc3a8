# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in the release's own interpreter, sent there by program.py: talks HTTP to the server and answers what came back.

Only requests, no verdicts: those are server.py's. One request at a time, since those that are given up pile up there.
It runs twice. Phase ``wait``, without the key: ``{"waiting": why}`` while not ready, then ``{"ready": seconds}``, or
``{"refused": why}`` where waiting longer is of no use. Phase ``ask``: one ``{"reply": {...}}`` a request, then
``{"done": true}``.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Dict, Optional

LARGEST_REPLY = 16 * 1024 * 1024
HEALTH_SECONDS = 60
EXCERPT = 300


def main(request: Dict[str, Any], answers: int) -> None:
    os.set_inheritable(answers, False)
    with os.fdopen(answers, "w", encoding="utf-8") as stream:

        def say(answer: Dict[str, Any]) -> None:
            stream.write(json.dumps(answer) + "\n")
            stream.flush()

        try:
            client = _Client(request)
        except ImportError as error:
            say({"refused": f"the release has no usable requests package: {error}"})
            return
        if request["phase"] == "wait":
            client.wait(say)
        else:
            client.ask_all(say)
            say({"done": True})


class _Client:
    def __init__(self, request: Dict[str, Any]) -> None:
        import requests

        self._errors = requests.RequestException
        # What is refused here stays refused: an address that no request can be sent to.
        self._hopeless = (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.exceptions.MissingSchema,
            requests.exceptions.SSLError,
        )
        self._request = request
        self._session = requests.Session()
        # No proxy and no .netrc of this host's may stand between the gate and the server.
        self._session.trust_env = False
        if request["api_key"]:
            self._session.headers["Authorization"] = f"Bearer {request['api_key']}"

    def wait(self, say: Callable[[Dict[str, Any]], None]) -> None:
        """Polls /health, slower and slower, each time with time to answer, until it answers 200."""
        started = time.monotonic()
        limit = self._request["ready_timeout"]
        attempts = 0
        while True:
            left = started + limit - time.monotonic()
            if left <= 0:
                return
            reply = self._ask("health", "GET", "/health", None, min(HEALTH_SECONDS, max(left, 1.0)))
            if reply["status"] == 200:
                say({"ready": round(time.monotonic() - started, 2)})
                return
            if reply.get("hopeless"):
                say({"refused": reply["error"]})
                return
            if reply["status"] is not None and not 500 <= reply["status"] < 600:
                say({"refused": f"GET /health answered {reply['status']}: {reply['excerpt']}"})
                return
            say({"waiting": reply["error"] or f"GET /health answered {reply['status']}"})
            attempts += 1
            time.sleep(min(1.0 if attempts < 30 else 2.0, max(left, 0.05)))

    def ask_all(self, say: Callable[[Dict[str, Any]], None]) -> None:
        limit = self._request["request_timeout"]
        tokens = self._request["max_new_tokens"]
        for number, prompt in enumerate(self._request["prompts"]):
            # No return_logprob and no grammar: speculative servers refuse both.
            body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}}
            reply = self._ask("generate", "POST", "/generate", body, limit)
            say({"reply": {**reply, "number": number}})
            if reply["status"] is None:
                return
        info = self._ask("server_info", "GET", "/server_info", None, limit)
        if info["status"] == 404:
            info = self._ask("server_info", "GET", "/get_server_info", None, limit)
        say({"reply": info})
        if info["status"] is None:
            return
        name = (info["json"] or {}).get("served_model_name") if isinstance(info["json"], dict) else None
        body = {
            "model": name or "default",
            "messages": [{"role": "user", "content": self._request["chat_prompt"]}],
            "temperature": 0,
            "max_tokens": tokens,
        }
        say({"reply": self._ask("chat", "POST", "/v1/chat/completions", body, limit)})

    def _ask(self, kind: str, method: str, path: str, body: Optional[Dict[str, Any]], limit: float) -> Dict[str, Any]:
        """One request with ``limit`` seconds for all of it; ``status`` is None when no whole reply came."""
        reply: Dict[str, Any] = {
            "kind": kind,
            "status": None,
            "content_type": "",
            "json": None,
            "excerpt": "",
            "error": "",
        }
        started = time.monotonic()
        try:
            with self._session.request(
                method,
                self._request["url"].rstrip("/") + path,
                json=body,
                timeout=limit,
                allow_redirects=False,
                stream=True,
            ) as response:
                content = b""
                for chunk in response.iter_content(65536):
                    content += chunk
                    if len(content) > LARGEST_REPLY:
                        raise self._errors(f"the reply is larger than {LARGEST_REPLY >> 20} MiB")
                    if time.monotonic() - started > limit:
                        raise self._errors(f"the reply was not complete after {limit:.0f} s")
        except self._hopeless as error:
            reply["error"], reply["hopeless"] = self._reason(error), True
        except self._errors as error:
            reply["error"] = self._reason(error)
        else:
            reply["status"] = response.status_code
            reply["content_type"] = response.headers.get("Content-Type", "")
            reply["excerpt"] = self._without_key(content.decode("utf-8", "replace"))[:EXCERPT]
            try:
                reply["json"] = json.loads(content) if "json" in reply["content_type"] else None
            except ValueError:
                reply["error"] = "the reply is not JSON, though its content type says so"
        reply["seconds"] = round(time.monotonic() - started, 4)
        return reply

    def _reason(self, error: Exception) -> str:
        text = self._without_key(str(error))
        if "Read timed out" in text or "ReadTimeout" in type(error).__name__:
            return f"no answer in time ({text[-120:]})"
        for known in (
            "Connection refused",
            "Connection reset by peer",
            "Remote end closed connection without response",
        ):
            if known in text:
                return known
        return f"{type(error).__name__}: {text[:EXCERPT]}"

    def _without_key(self, text: str) -> str:
        """Done here already, since half a key at the end of an excerpt is not recognised later."""
        key = self._request["api_key"]
        return text.replace(key, "REDACTED") if key else text
