# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs in the release's own interpreter, sent there by program.py: talks HTTP to the server and answers what came back.

Only requests, no verdicts: those are verdict.py's. It runs twice. Phase ``wait``, without the key: ``{"waiting": why}``
while not ready, then ``{"ready": seconds}``, ``{"locked": why}`` where even /health wants the key, or ``{"refused": why}``
where waiting longer is of no use. Phase ``ask``: one ``{"reply": {...}}`` a request, then ``{"done": true}``, or
``{"late": true}`` when the time was up before.

One request at a time, but for those that are meant to run together: what is given up piles up in the server. The
connection of a request that broke off is closed, by which the server knows that nobody waits any more, and nothing else
is asked.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from typing import Any, Callable, Dict, List, Optional
from urllib.parse import quote

LARGEST_REPLY = 16 * 1024 * 1024
HEALTH_SECONDS = 60
METRICS_SECONDS = 30
EXCERPT = 300
UNTRUSTED = "the certificate is not trusted"
NO_TLS = "what listens there speaks no TLS"

Say = Callable[[Dict[str, Any]], None]


def main(request: Dict[str, Any], answers: int) -> None:
    os.set_inheritable(answers, False)
    lock = threading.Lock()
    with os.fdopen(answers, "w", encoding="utf-8") as stream:

        def say(answer: Dict[str, Any]) -> None:
            with lock:
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


class _Late(Exception):
    """The time for all requests is up."""


class _Client:
    def __init__(self, request: Dict[str, Any]) -> None:
        import requests

        self._sessions = requests.Session
        self._errors = requests.RequestException
        # What is refused here stays refused: an address that no request can be sent to.
        self._hopeless = (
            requests.exceptions.InvalidURL,
            requests.exceptions.InvalidSchema,
            requests.exceptions.MissingSchema,
        )
        self._request = request
        key = request["api_key"]
        self._spellings = [key, json.dumps(key)[1:-1], quote(key, safe="")] if key else []
        self._started = time.monotonic()

    def _new_session(self) -> Any:
        session = self._sessions()
        # No proxy and no .netrc of this host's may stand between the gate and the server.
        session.trust_env = False
        session.verify = (self._request["ca_file"] or True) if self._request["validate_certs"] else False
        # One connection a request: none that the server closes for idleness just when it is used again, none left behind.
        session.headers["Connection"] = "close"
        if self._request["api_key"]:
            session.headers["Authorization"] = f"Bearer {self._request['api_key']}"
        return session

    def wait(self, say: Say) -> None:
        """Polls /health, slower and slower, each time with time to answer, until it answers 200."""
        limit = self._request["ready_timeout"]
        attempts = 0
        while True:
            left = self._started + limit - time.monotonic()
            if left <= 0:
                return
            reply = self._ask("health", "GET", "/health", None, min(HEALTH_SECONDS, max(left, 1.0)))
            if reply["status"] == 200:
                say({"ready": round(time.monotonic() - self._started, 2)})
                return
            if reply.get("hopeless"):
                say({"refused": reply["error"]})
                return
            if reply["status"] is not None and not 500 <= reply["status"] < 600:
                said = f"GET /health answered {reply['status']}: {reply['excerpt']}"
                say({"locked" if reply["status"] in (401, 403) and not self._request["api_key"] else "refused": said})
                return
            say({"waiting": reply["error"] or f"GET /health answered {reply['status']}"})
            attempts += 1
            time.sleep(min(1.0 if attempts < 30 else 2.0, max(left, 0.05)))

    def ask_all(self, say: Say) -> None:
        try:
            if self._generate_all(say) and self._describe(say):
                say({"done": True})
            else:
                # What broke off because the time for all is up says so.
                self._limit(0)
        except _Late:
            say({"late": True})

    def _generate_all(self, say: Say) -> bool:
        """All generations, with the counters before, between and after them; false when one broke off."""
        self._count(say, 0)
        for asked in self._request["sequential"]:
            reply = self._generate(asked, self._limit(self._request["request_timeout"]))
            say({"reply": reply})
            if reply["status"] is None:
                return False
        self._count(say, 1)
        if not self._at_once(self._request["concurrent"], say):
            return False
        self._count(say, 2)
        return True

    def _at_once(self, every: List[Dict[str, Any]], say: Say) -> bool:
        together = threading.Barrier(len(every)) if every else None
        statuses: List[Optional[int]] = []
        limit = self._limit(self._request["request_timeout"])

        def one(asked: Dict[str, Any]) -> None:
            if together:
                together.wait()
            reply = self._generate(asked, limit)
            statuses.append(reply["status"])
            say({"reply": reply})

        threads = [threading.Thread(target=one, args=(asked,), daemon=True) for asked in every]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(statuses) == len(every) and None not in statuses

    def _describe(self, say: Say) -> bool:
        """The server's own words and a chat completion; false when one broke off."""
        limit = self._request["request_timeout"]
        info = self._ask("server_info", "GET", "/server_info", None, self._limit(limit))
        if info["status"] == 404:
            info = self._ask("server_info", "GET", "/get_server_info", None, self._limit(limit))
        say({"reply": info})
        if info["status"] is None:
            return False
        name = (info["json"] or {}).get("served_model_name") if isinstance(info["json"], dict) else None
        body = {
            "model": name or "default",
            "messages": [{"role": "user", "content": self._request["chat_prompt"]}],
            "temperature": 0,
            "max_tokens": self._request["max_new_tokens"],
        }
        chat = self._ask("chat", "POST", "/v1/chat/completions", body, self._limit(limit))
        say({"reply": chat})
        return chat["status"] is not None

    def _count(self, say: Say, number: int) -> None:
        """The counters of /metrics that the gate reads. A server without them is asked for nothing less."""
        reply = self._ask("counters", "GET", "/metrics", None, self._limit(METRICS_SECONDS))
        say({"reply": {**reply, "number": number}})

    def _generate(self, asked: Dict[str, Any], limit: float) -> Dict[str, Any]:
        body: Dict[str, Any] = {
            "text": asked["prompt"],
            # No return_logprob and no grammar: speculative servers refuse both.
            "sampling_params": {"temperature": 0, "max_new_tokens": self._request["max_new_tokens"]},
        }
        if asked["kind"] == "stream":
            body["stream"] = True
        return {**self._ask(asked["kind"], "POST", "/generate", body, limit), "number": asked["number"]}

    def _limit(self, seconds: float) -> float:
        """What one request may take; raises _Late when nothing is left of the time for all."""
        left = self._started + self._request["gate_timeout"] - time.monotonic()
        if left <= 0:
            raise _Late
        return min(seconds, left)

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
        content = bytearray()
        try:
            with (
                self._new_session() as session,
                session.request(
                    method,
                    self._request["url"].rstrip("/") + path,
                    json=body,
                    timeout=limit,
                    allow_redirects=False,
                    stream=True,
                ) as response,
            ):
                for chunk in response.iter_content(65536):
                    content += chunk
                    if kind == "stream" and "first_token_seconds" not in reply and b"\n" in content:
                        reply["first_token_seconds"] = time.monotonic() - started
                    if len(content) > LARGEST_REPLY:
                        raise self._errors(f"the reply is larger than {LARGEST_REPLY >> 20} MiB")
                    if time.monotonic() - started > limit:
                        raise self._errors(f"the reply was not complete after {limit:.0f} s")
        except self._errors as error:
            reply["error"] = self._reason(error)
            reply["hopeless"] = isinstance(error, self._hopeless) or reply["error"].startswith((UNTRUSTED, NO_TLS))
        else:
            reply["status"] = response.status_code
            reply["content_type"] = response.headers.get("Content-Type", "")
            self._read(reply, bytes(content))
        reply["started"] = round(started - self._started, 6)
        reply["seconds"] = round(time.monotonic() - started, 6)
        return reply

    def _read(self, reply: Dict[str, Any], content: bytes) -> None:
        text = content.decode("utf-8", "replace")
        reply["excerpt"] = self._without_key(text)[:EXCERPT]
        if reply["kind"] == "counters":
            wanted = self._request["counters"]
            reply["lines"] = [line for line in text.splitlines() if line.startswith(wanted)]
        elif "event-stream" in reply["content_type"]:
            self._read_events(reply, text)
        elif "json" in reply["content_type"]:
            try:
                reply["json"] = json.loads(content)
            except ValueError:
                reply["error"] = "the reply is not JSON, though its content type says so"

    @staticmethod
    def _read_events(reply: Dict[str, Any], text: str) -> None:
        """The last event of a stream, which tells all; events are lines that begin with ``data:``."""
        events = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
        if len(events) < 2 or events[-1] != "[DONE]":
            reply["error"] = f"the stream broke off after {len(events)} events"
            return
        try:
            reply["json"] = json.loads(events[-2])
        except ValueError:
            reply["error"] = "the last event of the stream is not JSON"

    def _reason(self, error: Exception) -> str:
        text = self._without_key(str(error))
        if "Read timed out" in text or "ReadTimeout" in type(error).__name__:
            return f"no answer in time ({text[-120:]})"
        distrusted = re.search(r"certificate verify failed: (.*?)(?: \(_ssl|[\"')]|$)", text)
        if distrusted:
            return (
                f"{UNTRUSTED}: {distrusted.group(1)}; "
                "name the certificate of its authority in ca_file, or set validate_certs to false"
            )
        if "WRONG_VERSION_NUMBER" in text or "wrong version number" in text or "record layer failure" in text:
            return f"{NO_TLS}; does its address begin with http://?"
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
        for spelling in self._spellings:
            text = text.replace(spelling, "REDACTED")
        return text
