# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent as bytes: the sources it needs, and the one-line program that loads them on a host without writing a file."""

from __future__ import annotations

import functools
import json
import pathlib
import zlib

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import MAGIC

PACKAGE = "ansible_collections.ddtree.fleet.plugins.module_utils"
MODULES = (
    "_tree",
    "_workers",
    "_hashing",
    "_index",
    "_manifest",
    "_releases",
    "_lease",
    "_stream.wire",
    "_stream.listing",
    "_stream.codec",
    "_stream.addresses",
    "_stream.stripes",
    "_stream.handshake",
    "_stream.fanout",
    "_stream.pace",
    "_stream.progress",
    "_stream.relocation",
    "_stream.interpreter",
    "_stream.environment",
    "_stream.bytecode",
    "_stream.sinks",
    "_stream.sender",
    "_stream.receiver",
    "_stream.link",
    "_stream.inbox",
    "_stream.place",
    "_stream.local",
    "_stream.staging",
    "_stream.source",
    "_stream.target",
    "_stream.conversation",
    "_stream.agent",
)
MIN_PYTHON = (3, 9)

# Runs first, under whatever Python the host has: says which, and whether the processor has instructions for AES (where it does
# not tell, that is taken as yes), then reads the loader and the sources. Must parse everywhere.
BOOTSTRAP = (
    "import os,sys;o=sys.stdout;c='/proc/cpuinfo';a=not os.access(c,4) or b' aes' in open(c,'rb').read();"
    "o.write('%s %%d.%%d %%d\\n'%%(sys.version_info[:2]+(a,)));o.flush();"
    "i=sys.stdin.buffer;exec(i.read(int(i.readline()or 0)))" % MAGIC
)

# Runs second: makes the sources importable under their own names, frees standard output from stray prints, starts the agent.
LOADER = (
    """
import fcntl, importlib.abc, importlib.util, json, os, sys, zlib
SOURCES = json.loads(zlib.decompress(i.read(int(i.readline()))))
class Loader(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES or any(other.startswith(name + ".") for other in SOURCES):
            return importlib.util.spec_from_loader(name, self, is_package=self.is_package(name))
    def is_package(self, name):
        return name not in SOURCES
    def get_source(self, name):
        return SOURCES.get(name, "")
sys.meta_path.insert(0, Loader())
sys.dont_write_bytecode = True
for pipe in (0, 1):
    try:
        fcntl.fcntl(pipe, 1031, 1 << 20)  # F_SETPIPE_SZ: fewer switches between this process and sshd
    except OSError:
        pass
stdout = os.fdopen(os.dup(1), "wb", 1 << 20)
os.dup2(2, 1)
from %s._stream import agent
agent.main(i, stdout)
"""
    % PACKAGE
)


@functools.cache
def bundle() -> bytes:
    """What follows the bootstrap on an agent's standard input: loader and sources, each after its length."""
    folder = pathlib.Path(__file__).resolve().parent.parent / "module_utils"
    sources = {
        f"{PACKAGE}.{name}": (folder / (name.replace(".", "/") + ".py")).read_text(encoding="utf-8") for name in MODULES
    }
    parts = [LOADER.encode(), zlib.compress(json.dumps(sources).encode())]
    return b"".join(b"%d\n" % len(part) + part for part in parts)
