# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replays a folder of recorded SGLang replies over HTTP, and bends them on demand. Standard library only.

Counters are served as they were recorded. Text is made up from the prompt (the same prompt gives the same text), since
the recorded models know next to nothing; --as-recorded leaves it alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, List, Optional

TEXT = "the a small server answers with quiet words about rivers and trains that run over long green hills every day"
WORDS = TEXT.split()
OPEN_PATHS = ("/health", "/health_generate", "/metrics")


class Replay:
    """What to answer; shared by all requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.started = time.monotonic()
        self.generated = 0
        self.lock = threading.Lock()

    def recorded(self, name: str) -> Any:
        return json.loads((self.options.folder / name).read_text(encoding="utf-8"))

    def ready(self) -> bool:
        return time.monotonic() - self.started >= self.options.delay_ready

    def server_info(self) -> Any:
        info = self.recorded("server_info.json")
        info["enable_deterministic_inference"] = self.options.deterministic
        if self.options.api_key:
            for part in (info, *info["internal_states"]):
                part["api_key"] = self.options.api_key
        return info

    def generate(self, body: Dict[str, Any]) -> Any:
        number = self._count()
        short = body.get("sampling_params", {}).get("max_new_tokens") == 1
        reply = self.recorded("generate_short.json" if short else "generate.json")
        if not self.options.as_recorded:
            salt = str(number) if self.options.vary else ""
            picks = _picks(str(body.get("text")) + salt, len(reply["output_ids"]))
            reply["output_ids"], reply["text"] = picks, " ".join(WORDS[pick] for pick in picks)
        if self.options.degenerate:
            reply["output_ids"], reply["text"] = [0] * len(reply["output_ids"]), "!" * len(reply["output_ids"])
        if self.options.speculate_first is not None and number > self.options.speculate_first:
            reply["meta_info"] = {
                key: value for key, value in reply["meta_info"].items() if not key.startswith("spec_")
            }
        if self.options.new_names:
            meta = reply["meta_info"]
            for old, new in (("accepted", "num_correct"), ("proposed", "num_proposed")):
                if f"spec_{old}_drafts" in meta:
                    meta[f"spec_{new}_drafts"] = meta.pop(f"spec_{old}_drafts")
        return reply

    def chat(self, body: Dict[str, Any]) -> Any:
        self._count()
        reply = copy.deepcopy(self.recorded("chat.json"))
        message = reply["choices"][0]["message"]
        if not self.options.as_recorded:
            text = " ".join(WORDS[pick] for pick in _picks(json.dumps(body.get("messages")), 16))
            message["reasoning_content" if self.options.reasoning else "content"] = text
            message["content" if self.options.reasoning else "reasoning_content"] = None
        if self.options.degenerate:
            message["content"] = "!" * 16
        return reply

    def _count(self) -> int:
        with self.lock:
            self.generated += 1
            if self.options.die_after is not None and self.generated > self.options.die_after:
                print("RuntimeError: the replayed server dies as asked", flush=True)
                os._exit(3)
            return self.generated


def _picks(text: str, count: int) -> List[int]:
    seed = zlib.crc32(text.encode())
    picks = []
    for _step in range(count):
        seed = (seed * 1103515245 + 12345) % 2**31
        picks.append((seed >> 8) % len(WORDS))
    return picks


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    replay: Replay

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._allowed(path):
            return
        if path in ("/health", "/health_generate"):
            self._send(200 if self.replay.ready() else 503, b"", "text/plain")
        elif path in ("/server_info", "/get_server_info"):
            self._json(self.replay.server_info())
        elif path == "/metrics":
            self._send(200, (self.replay.options.folder / "metrics.txt").read_bytes(), "text/plain; version=0.0.4")
        else:
            self._json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self.path.partition("?")[0]
        if not self._allowed(path):
            return
        options = self.replay.options
        if path not in ("/generate", "/v1/chat/completions"):
            self._json({"detail": "Not Found"}, 404)
            return
        if options.hang:
            time.sleep(3600)
        time.sleep(options.slow)
        if options.html:
            self._send(200, b"<html><body>502 Bad Gateway</body></html>", "text/html")
        elif options.refuse:
            key = f" (the key is {options.api_key})" if options.api_key else ""
            self._json({"error": {"message": f"refused as asked{key}"}}, 400)
        else:
            self._json(self.replay.generate(body) if path == "/generate" else self.replay.chat(body))

    def _allowed(self, path: str) -> bool:
        key = self.replay.options.api_key
        if not key or path in OPEN_PATHS or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._json({"error": "Unauthorized"}, 401)
        return False

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        print(format % arguments, flush=True)


def parsed(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replay recorded SGLang replies.")
    parser.add_argument("folder", type=Path, help="a folder of recorded replies")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 is any free one; a line printed at start names it")
    parser.add_argument("--delay-ready", type=float, default=0.0, metavar="S", help="/health answers 503 that long")
    parser.add_argument("--exit-at-start", action="store_true", help="print an error and exit with status 1")
    parser.add_argument("--die-after", type=int, metavar="N", help="exit with status 3 at the generation after the Nth")
    parser.add_argument("--hang", action="store_true", help="generations never answer")
    parser.add_argument("--slow", type=float, default=0.0, metavar="S", help="generations answer that late")
    parser.add_argument("--html", action="store_true", help="generations answer with a proxy's HTML")
    parser.add_argument("--refuse", action="store_true", help="generations answer 400")
    parser.add_argument("--degenerate", action="store_true", help="generations are one token over and over")
    parser.add_argument("--vary", action="store_true", help="the same prompt never gives the same text")
    parser.add_argument("--deterministic", action="store_true", help="server_info promises deterministic inference")
    parser.add_argument("--speculate-first", type=int, metavar="N", help="only the first N generations speculate")
    parser.add_argument("--new-names", action="store_true", help="counters have the names of 0.5.23")
    parser.add_argument("--reasoning", action="store_true", help="chat text comes as reasoning_content")
    parser.add_argument("--as-recorded", action="store_true", help="recorded text, not text made up from the prompt")
    parser.add_argument("--api-key", help="the Bearer token to ask for; printed at start, as SGLang does")
    return parser.parse_args(arguments)


def main() -> int:
    options = parsed()
    print(f"server_args=ServerArgs(folder='{options.folder}', api_key={options.api_key!r})", flush=True)
    if options.exit_at_start:
        print("ValueError: the replayed server refuses to start, as asked", flush=True)
        return 1
    Handler.replay = Replay(options)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
