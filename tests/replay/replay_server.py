# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Replays a folder of recorded SGLang replies over HTTP or HTTPS, and bends them on demand. Standard library only.

Counters of replies are served as they were recorded, those of /metrics move on from what was recorded. Text is made up
from the prompt (the same prompt gives the same text), since the recorded models know next to nothing; --as-recorded
leaves it alone. What it prints is the unit's journal: requests, and how many generations ran at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import socket
import ssl
import sys
import threading
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

TEXT = "the a small server answers with quiet words about rivers and trains that run over long green hills every day"
WORDS = TEXT.split()
OPEN_PATHS = ("/health", "/health_generate", "/metrics")


class Replay:
    """What to answer; shared by all requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.probed = 0.0
        self.generated = 0
        self.running = 0
        self.most = 0
        self.gained: Counter[str] = Counter()
        self.lock = threading.Lock()

    def recorded(self, name: str) -> Any:
        return json.loads((self.options.folder / name).read_text(encoding="utf-8"))

    def ready(self) -> bool:
        self.probed = self.probed or time.monotonic()
        return time.monotonic() - self.probed >= self.options.delay_ready

    def server_info(self) -> Any:
        info = self.recorded("server_info.json")
        info["enable_deterministic_inference"] = self.options.deterministic
        if self.options.api_key:
            for part in (info, *info["internal_states"]):
                part["api_key"] = self.options.api_key
        return info

    def metrics(self) -> bytes:
        """As recorded, with the passes of what was generated since added; a mode's line appears with its first pass."""
        text = (self.options.folder / "metrics.txt").read_text(encoding="utf-8")
        with self.lock:
            gained = dict(self.gained)
        for mode, count in gained.items():
            pattern = re.compile(rf'^(sglang:cuda_graph_passes_total{{.*mode="{mode}".*}}) (\S+)$', re.MULTILINE)
            found = pattern.search(text)
            if found:
                text = pattern.sub(f"{found.group(1)} {float(found.group(2)) + count}", text)
            else:
                text += f'sglang:cuda_graph_passes_total{{mode="{mode}",tp_rank="0"}} {float(count)}\n'
        return text.encode()

    def generate(self, body: Dict[str, Any], number: int, beside: bool) -> Any:
        reply = self.recorded("generate.json")
        if body.get("sampling_params", {}).get("max_new_tokens") == 1:
            reply = self.recorded("generate_short.json")
        if not self.options.as_recorded:
            salt = str(number) if self.options.vary else ""
            picks = _picks(str(body.get("text")) + salt, len(reply["output_ids"]))
            reply["output_ids"], reply["text"] = picks, " ".join(WORDS[pick] for pick in picks)
        if self.options.degenerate:
            reply["output_ids"], reply["text"] = [0] * len(reply["output_ids"]), "!" * len(reply["output_ids"])
        meta = reply["meta_info"]
        silent = self.options.speculate_first is not None and number > self.options.speculate_first
        if silent or (beside and self.options.speculate_alone):
            meta = {key: value for key, value in meta.items() if not key.startswith("spec_")}
        if "spec_verify_ct" in meta and self.options.no_acceptance:
            meta.update(spec_verify_ct=meta["completion_tokens"] - 1, spec_accepted_drafts=0, spec_accept_rate=0.0)
            meta["spec_accept_length"] = meta["completion_tokens"] / meta["spec_verify_ct"]
        self._pass(meta)
        if self.options.new_names:
            for old, new in (("accepted", "num_correct"), ("proposed", "num_proposed")):
                if f"spec_{old}_drafts" in meta:
                    meta[f"spec_{new}_drafts"] = meta.pop(f"spec_{old}_drafts")
        return {**reply, "meta_info": meta}

    def _pass(self, meta: Dict[str, Any]) -> None:
        """Count the forward passes of one generation, in graphs or not as server_info says, unless --eager."""
        eager = self.options.eager or self.recorded("server_info.json")["disable_cuda_graph"]
        with self.lock:
            self.gained["prefill_none"] += 1
            decoded = meta.get("spec_verify_ct", meta["completion_tokens"] - 1)
            self.gained["decode_none" if eager else "decode_cuda_graph"] += decoded

    def chat(self, body: Dict[str, Any]) -> Any:
        path = self.options.folder / "chat.json"
        # Not every run has one; that of the plain run says nothing about it.
        reply = json.loads((path if path.exists() else path.parents[1] / "plain" / "chat.json").read_text("utf-8"))
        message = reply["choices"][0]["message"]
        if not self.options.as_recorded:
            text = " ".join(WORDS[pick] for pick in _picks(json.dumps(body.get("messages")), 16))
            message["reasoning_content" if self.options.reasoning else "content"] = text
            message["content" if self.options.reasoning else "reasoning_content"] = None
        if self.options.degenerate:
            message["content"] = "!" * 16
        return reply

    @contextmanager
    def turn(self) -> Iterator[int]:
        """The number of one generation, from 1, while it runs."""
        with self.lock:
            self.generated += 1
            number = self.generated
            self.running += 1
            if self.running > self.most:
                self.most = self.running
                print(f"{self.most} generations at once", flush=True)
            if self.options.die_after is not None and number > self.options.die_after:
                print("RuntimeError: the replayed server dies as asked", flush=True)
                os._exit(3)
        try:
            yield number
        finally:
            with self.lock:
                self.running -= 1


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
    # Headers and body are written apart; together with delayed acknowledgements each reply would take 40 ms more.
    disable_nagle_algorithm = True
    replay: Replay

    def do_GET(self) -> None:
        path = self._allowed_path()
        if path in ("/health", "/health_generate"):
            if self.replay.options.health_hangs:
                self._hang()
            else:
                self._send(200 if self.replay.ready() else 503, b"", "text/plain")
        elif path in ("/server_info", "/get_server_info"):
            self._json(self.replay.server_info())
        elif path == "/metrics" and not self.replay.options.no_metrics:
            self._send(200, self.replay.metrics(), "text/plain; version=0.0.4")
        elif path:
            self._json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = self._allowed_path()
        if path in ("/generate", "/v1/chat/completions"):
            with self.replay.turn() as number:
                self._answer(path, body, number)
        elif path:
            self._json({"detail": "Not Found"}, 404)

    def _answer(self, path: str, body: Dict[str, Any], number: int) -> None:
        options = self.replay.options
        if options.hang_after is not None and number > options.hang_after:
            self._hang()
            return
        time.sleep(options.slow)
        # Those that began meanwhile run beside this one as well.
        beside = self.replay.running > 1
        if options.html:
            self._send(200, b"<html><body>502 Bad Gateway</body></html>", "text/html")
        elif options.refuse or number in options.refuse_number:
            key = f" (the key is {options.api_key})" if options.api_key else ""
            self._json({"error": {"message": f"refused as asked{key}"}}, 400)
        elif path != "/generate":
            self._json(self.replay.chat(body))
        elif body.get("stream"):
            self._stream(self.replay.generate(body, number, beside))
        else:
            self._json(self.replay.generate(body, number, beside))

    def _hang(self) -> None:
        """Never answer; notice when the client has closed the connection."""
        while not select.select([self.connection], [], [], 1)[0] or self.connection.recv(1, socket.MSG_PEEK):
            pass
        self.close_connection = True
        print("the client has closed a connection that hung", flush=True)

    def _stream(self, reply: Dict[str, Any]) -> None:
        """The first token, half of the text, all of it with the counters, the end: as events of a chunked reply."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for share in (1, len(reply["output_ids"]) // 2):
            meta = {key: value for key, value in reply["meta_info"].items() if not key.startswith("spec_")}
            meta.update(completion_tokens=share, finish_reason=None)
            self._event(json.dumps({**reply, "output_ids": reply["output_ids"][:share], "meta_info": meta}))
        if self.replay.options.cut_streams:
            self.close_connection = True
        else:
            self._event(json.dumps(reply))
            self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _allowed_path(self) -> str:
        """The path below the base path; empty when the request was answered with an error already."""
        path, base = self.path.partition("?")[0], self.replay.options.base_path
        if not path.startswith(base):
            self._json({"detail": "Not Found"}, 404)
            return ""
        # As SGLang's own check of the key, which looks at the whole path: below a base path nothing is open.
        is_open = path in OPEN_PATHS
        path = path[len(base) :]
        key = self.replay.options.api_key
        if not key or is_open or self.headers.get("Authorization") == f"Bearer {key}":
            return path
        self._json({"error": "Unauthorized"}, 401)
        return ""

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


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # As many may come at once as a test asks for.
    request_queue_size = 128


def parsed(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replay recorded SGLang replies.")
    parser.add_argument("folder", type=Path, help="a folder of recorded replies")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 is any free one; a line printed at start names it")
    parser.add_argument("--base-path", default="", metavar="PATH", help="everything lies below this path")
    parser.add_argument(
        "--certificate", metavar="FILE", help="speak TLS, with the certificate and key of this PEM file"
    )
    parser.add_argument(
        "--delay-ready",
        type=float,
        default=0.0,
        metavar="S",
        help="/health answers 503 that long after the first probe; inf: for ever",
    )
    parser.add_argument("--health-hangs", action="store_true", help="/health never answers")
    parser.add_argument("--no-metrics", action="store_true", help="/metrics is not there")
    parser.add_argument("--say", metavar="LINE", help="a line to print at start")
    parser.add_argument("--exit-at-start", action="store_true", help="print an error and exit with status 1")
    parser.add_argument("--die-after", type=int, metavar="N", help="exit with status 3 at the generation after the Nth")
    parser.add_argument("--hang", dest="hang_after", action="store_const", const=0, help="generations never answer")
    parser.add_argument("--hang-after", type=int, metavar="N", help="generations after the Nth never answer")
    parser.add_argument("--slow", type=float, default=0.0, metavar="S", help="generations answer that late")
    parser.add_argument("--html", action="store_true", help="generations answer with a proxy's HTML")
    parser.add_argument("--refuse", action="store_true", help="generations answer 400")
    parser.add_argument("--refuse-number", type=int, action="append", default=[], metavar="N", help="the Nth does")
    parser.add_argument("--cut-streams", action="store_true", help="streams end in the middle")
    parser.add_argument("--degenerate", action="store_true", help="generations are one token over and over")
    parser.add_argument("--vary", action="store_true", help="the same prompt never gives the same text")
    parser.add_argument("--deterministic", action="store_true", help="server_info promises deterministic inference")
    parser.add_argument("--speculate-first", type=int, metavar="N", help="only the first N generations speculate")
    parser.add_argument(
        "--speculate-alone", action="store_true", help="generations that run beside others do not speculate"
    )
    parser.add_argument("--no-acceptance", action="store_true", help="no draft is accepted")
    parser.add_argument(
        "--eager", action="store_true", help="decoding runs without CUDA graphs, whatever server_info says"
    )
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
    if options.say:
        print(options.say, flush=True)
    Handler.replay = Replay(options)
    server = Server((options.host, options.port), Handler)
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
