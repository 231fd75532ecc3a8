#!/usr/bin/python
# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_smoke
short_description: Prove that an SGLang environment can serve, or that a running server speculates
version_added: 0.1.0
description:
  - With O(gate=environment) looks at a Python environment before anything live changes - version, declared
    requirements, deep imports, symbols, probes, the service's command line parsed by the build's own parser, and a kernel
    launched on every GPU.
  - With O(gate=server) waits for a server that systemd runs, lets it generate, and proves from each reply's own
    counters that speculative decoding runs and that drafts are accepted.
  - Nothing is changed, in check mode or not, but for O(baseline_file) with O(baseline=record). A gate that does not pass
    fails the task with one message that lists every failed check.
  - The API key is read on the host and never leaves it. Everything that is returned has its value replaced.
author:
  - the ddtree.fleet authors (@ddtree)
options:
  gate:
    description: Which gate to run.
    type: str
    choices: [environment, server]
    required: true
  dest:
    description:
      - The path at which the environment is used.
      - Required for O(gate=environment).
    type: path
  release:
    description:
      - The staged release to look at, where it is not the one at O(dest).
      - It is bind-mounted over O(dest), read-only, in a mount namespace that only the gate sees. This needs root.
      - When O(dest) does not exist, an empty directory is made there as mount point and removed afterwards.
    type: path
  distribution:
    description: The distribution whose version and requirements are looked at. Empty looks at neither.
    type: str
    default: sglang
  version:
    description:
      - The version that must run. It is the package's own C(__version__). Metadata that says otherwise is a remark.
      - Not given, any version passes.
    type: str
  requirements:
    description:
      - Whether every requirement that O(distribution) declares for this platform must be installed.
      - A requirement that is installed in another version than declared is only a remark.
    type: bool
    default: true
  requirements_ignore:
    description: Names of requirements that may be missing.
    type: list
    elements: str
    default: []
  imports:
    description:
      - Modules that must import. The defaults go down to the HTTP server, the scheduler and the speculative worker.
      - Add the module of the model class, such as V(sglang.srt.models.kimi_k25).
    type: list
    elements: str
    default:
      - sglang.srt.server_args
      - sglang.srt.entrypoints.http_server
      - sglang.srt.managers.scheduler
      - sglang.srt.speculative.dflash_worker
  symbols:
    description:
      - Dotted names that must exist, such as V(sgl_kernel.tree_speculative_sampling_target_only). Their modules are imported.
      - A name that is none is a failed check too, since packages leave that behind where their own optional import failed.
    type: list
    elements: str
    default: []
  probes:
    description:
      - Values that the release's own interpreter must compute, each from an expression or from a call.
      - With neither O(probes[].equals) nor O(probes[].matches) the value must only be true.
    type: list
    elements: dict
    default: []
    suboptions:
      expression:
        description: A Python expression.
        type: str
      call:
        description: The dotted name of what to call, such as V(sglang.srt.utils.is_cuda). Its modules are imported.
        type: str
      args:
        description: What O(probes[].call) is called with, in this order.
        type: list
        elements: raw
      kwargs:
        description: What O(probes[].call) is called with by name.
        type: dict
      imports:
        description: Modules to import first. O(probes[].expression) names them in full.
        type: list
        elements: str
        default: []
      equals:
        description: The value that it must have. A tuple equals the list of what is in it.
        type: raw
      matches:
        description: A regular expression that must be found in the value as C(str) writes it.
        type: str
  command_line:
    description:
      - The arguments that follow C(-m sglang.launch_server) in the service, parsed by the build's own parser.
      - A C(--config) argument is left out, since its file may exist only for the service, and reported in
        RV(not_verified).
      - An API key among the arguments is refused, since every process of the host can read it there.
    type: list
    elements: str
    default: []
  kernels:
    description:
      - Whether a kernel of torch and one of sgl_kernel are launched on every GPU that the service's O(environment) lets it see.
      - V(auto) does where C(nvidia-smi) or torch shows GPUs and torch is built with CUDA. V(required) fails where torch shows none.
      - Nothing is launched on a GPU with less than 2 GiB of free memory, since a server may run there. That is in RV(not_verified).
    type: str
    choices: [auto, required, none]
    default: auto
  memory_limit:
    description:
      - The memory that the environment gate may take on the host, such as V(32G). V(0) is no limit.
      - What counts is what its processes hold together, without mapped files. It is looked at once a second.
    type: str
    default: 32G
  environment:
    description:
      - Variables of the service that the environment gate needs too.
      - Variables that say where caches lie point to a private folder instead, which is removed afterwards.
    type: dict
    default: {}
  timeout:
    description: Seconds that the environment gate may take, all its steps together.
    type: int
    default: 300
  unit:
    description:
      - The systemd unit of the server.
      - Required for O(gate=server).
    type: str
  url:
    description:
      - The address of the server as this host reaches it.
      - Required for O(gate=server).
    type: str
  python:
    description:
      - The release's own interpreter, such as C(DEST/bin/python). It sends the requests, with the release's requests
        package.
      - Required for O(gate=server).
    type: path
  fresh:
    description:
      - Whether the unit was just started, so that any restart by systemd since then is a failure.
      - Otherwise earlier restarts do not count. A restart while the gate runs always fails it.
    type: bool
    default: false
  ready_timeout:
    description: Seconds until the server must be ready. Loading a large model takes 15 minutes from cold disks.
    type: int
    default: 1800
  api_key_file:
    description:
      - 'A file on the host with the server''s API key, either alone or as the line C(api-key: KEY) of a YAML file.'
      - The key is sent only once the listening process is known to be the unit's own, and never returned.
    type: path
  ca_file:
    description:
      - A file on the host with the certificates, in PEM form, that the server's certificate must go back to.
      - Not given, those that come with the release's requests package are used.
    type: path
  validate_certs:
    description: Whether the server's certificate must be valid. When it is not looked at, that is in RV(not_verified).
    type: bool
    default: true
  behind_proxy:
    description:
      - Whether O(url) leads to the server through a proxy, whose process listens there instead of the unit's.
      - Otherwise a process of this host that is not the unit's and answers at O(url) fails the gate, and gets no key.
    type: bool
    default: false
  prompts:
    description:
      - Prompts to generate from, each at least once, at temperature 0. The first one is sent twice.
      - When it gives another text the second time, that is a remark, since the prefix cache and dynamic batching may cause it. It is a
        failed check only when the server's C(/server_info) has C(enable_deterministic_inference=true).
    type: list
    elements: str
    default:
      - "The history of computing began long before the first electronic machines. In the beginning,"
      - "Here is a short list of things to check before a long journey by train:"
      - "def fibonacci(n):\n    "
      - "Water boils at a lower temperature on high mountains because"
  max_new_tokens:
    description: Tokens to generate for each prompt, at least 8 unless O(speculation=absent).
    type: int
    default: 64
  generations:
    description:
      - How many generations to ask for one after the other, going through O(prompts) again and again.
      - Three streamed ones follow, of which the time to the first token is taken.
    type: int
    default: 6
  concurrent:
    description: How many generations to ask for at the same time afterwards, judged as the others are. 0 leaves them out.
    type: int
    default: 8
  expected_texts:
    description: Further prompts whose text at temperature 0 is known.
    type: list
    elements: dict
    default: []
    suboptions:
      prompt:
        description: The prompt.
        type: str
        required: true
      matches:
        description: A regular expression that is searched for in the text.
        type: str
        required: true
  request_timeout:
    description: Seconds that one request may take.
    type: int
    default: 120
  gate_timeout:
    description: Seconds that all requests together may take, once the server is ready.
    type: int
    default: 900
  speculation:
    description:
      - V(required) means that every reply of 8 tokens or more has verify steps and accepted drafts.
      - V(absent) means that no reply has verify steps. V(any) leaves it open.
    type: str
    choices: [required, absent, any]
    default: required
  min_accept_length:
    description: The accept length that every judged reply must reach.
    type: float
  min_accept_rate:
    description: The share of proposed drafts, 0 to 1, that every judged reply must have accepted.
    type: float
  cuda_graphs:
    description:
      - V(required) means that C(/server_info) has graphs switched on and captured, and that the counters of C(/metrics) show that the decode
        passes of the gate's own generations ran in them. Without these counters (C(--enable-metrics)) the check fails.
      - V(absent) means that none were captured and used. V(any) leaves it open.
    type: str
    choices: [required, absent, any]
    default: any
  log_expect:
    description:
      - What must stand in the journal of this invocation of the unit, for what no endpoint shows.
      - The whole journal of the invocation is read, line by line.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: The name of the check. Not given, it is O(log_expect[].matches).
        type: str
      matches:
        description: A regular expression that is searched for in each line.
        type: str
        required: true
      absent:
        description: Whether no line may match instead.
        type: bool
        default: false
  baseline:
    description:
      - V(record) keeps the figures of a gate that passed in O(baseline_file), in place of earlier ones of the same configuration.
      - V(compare) holds the figures against them. Without recorded ones of the same configuration it fails.
      - Figures of one host are comparable when model, drafter, speculative settings, parallelism, GPUs, prompts, O(max_new_tokens) and
        O(concurrent) are the same.
      - A server that passed with O(speculation=absent) and V(record) is the plain decoding that RV(figures) gives the speed-up against.
    type: str
    choices: [none, record, compare]
    default: none
  baseline_file:
    description: A JSON file on the host, in a directory that exists. Required unless O(baseline=none).
    type: path
  baseline_tolerance:
    description: The share by which a figure may be worse than the recorded one.
    type: float
    default: 0.15
  model_path:
    description: The model that the server must serve.
    type: str
  expect:
    description:
      - Expectations on the server's C(/server_info), evaluated on the control node, where jmespath must be installed.
      - Each is a dictionary with C(query), a JMESPath expression, and one or more of C(equals), C(min), C(max) and
        C(matches), a regular expression that is searched for. C(name) names the check.
      - With O(gate=environment) they are only looked at for mistakes, so that these are found before anything live changes.
    type: list
    elements: dict
    default: []
attributes:
  check_mode:
    support: full
    description: The same gates run in check mode, since they only read. Only O(baseline_file) is not written.
  diff_mode:
    support: none
    description: Nothing changes, so there is nothing to show.
notes:
  - The environment gate of a staged release and the server gate need root on the host.
  - The server gate needs systemd on the host.
"""

EXAMPLES = r"""
- name: The staged release can serve with the flags of the service
  ddtree.fleet.sglang_smoke:
    gate: environment
    dest: /root/venv_sglang211
    release: /root/venv_sglang211.releases/3f2a9c1d
    version: 0.5.11
    symbols: [sgl_kernel.tree_speculative_sampling_target_only]
    probes:
      - imports: [sglang.srt.speculative.spec_info]
        expression: sglang.srt.speculative.spec_info.SpeculativeAlgorithm.from_string("DDTREE").is_ddtree()
        equals: true
      - call: sglang.srt.speculative.spec_info.SpeculativeAlgorithm.from_string
        args: [DDTREE]
        matches: DDTREE$
    kernels: required
    command_line:
      - --model-path=/root/models/Kimi-K2.6
      - --speculative-algorithm=DDTREE
      - --speculative-ddtree-budget=8

- name: The running server speculates
  ddtree.fleet.sglang_smoke:
    gate: server
    unit: sglang-ddtree.service
    url: http://127.0.0.1:30001
    python: /root/venv_sglang211/bin/python
    api_key_file: /etc/sglang/api-key
    min_accept_length: 2.5
    expect:
      - query: speculative_algorithm
        equals: DDTREE
      - query: tp_size
        equals: 8
    cuda_graphs: required
    log_expect:
      - name: the drafter's cache is compact
        matches: compact_cache=True
      - matches: falling back to
        absent: true
    baseline: compare
    baseline_file: /var/lib/ddtree-fleet/baseline.json
"""

RETURN = r"""
gate:
  description: Which gate ran.
  returned: always
  type: str
  sample: server
checks:
  description: One entry a check. C(expected) and C(found) are short texts, and C(hint) says what to do.
  returned: when the gate could run
  type: list
  elements: dict
  sample:
    - {"name": "accepted drafts", "passed": true, "expected": "above 0 in every reply", "found": "162 of 189"}
verdict:
  description: V(passed) when every check passed, else V(failed).
  returned: when the gate could run
  type: str
  sample: passed
figures:
  description:
    - What was measured. C(seconds) and C(memory_mib) come from the environment gate.
    - From the server gate come C(ready_seconds), C(requests) with C(sent) and C(errors), C(accept_length), C(accept_rate),
      C(tokens_per_second) and C(time_to_first_token_seconds) (medians of requests alone), C(tokens_per_second_concurrent) (all together),
      C(cuda_graph_passes) by mode, C(generations) one by one, C(baseline) (the recorded figures, when and of which version), C(speedup)
      over recorded plain decoding, and C(verdict_time) in seconds since 1970.
    - C(speedup) is only there when the server speculates and a O(baseline_file) is used. It is null where no plain decoding was recorded.
  returned: when the gate could run
  type: dict
  sample: {"accept_length": 7.3, "accept_rate": 0.9, "ready_seconds": 18.2, "tokens_per_second": 310.5, "speedup": 2.15}
not_verified:
  description: What the gate did not look at, or could not.
  returned: when the gate could run
  type: list
  elements: str
  sample: ["CUDA graphs: cuda_graphs is any; 0 decode passes in graphs, 21 without"]
remarks:
  description:
    - Warnings of the interpreter and other things worth reading that do not fail a gate, such as a prompt that gave two texts.
  returned: when the gate could run
  type: list
  elements: str
  sample: ["sglang asks for torch==2.11.0, 2.13.0 is installed"]
journal:
  description: The last lines of the unit's invocation, without secrets.
  returned: when the unit went down or was never ready
  type: list
  elements: str
  sample: ["RuntimeError: CUDA out of memory"]
server:
  description: The fields of C(/server_info) that say what is served, without secrets.
  returned: when O(gate=server) and the server answered
  type: dict
  sample: {"version": "0.5.11", "speculative_algorithm": "DDTREE"}
environment:
  description: Versions, also of torch and its CUDA, the numbers of requirements and GPUs, and the server's settings that differ from the defaults.
  returned: when O(gate=environment) and the probe reached its end
  type: dict
  sample: {"version": "0.5.11", "python": "3.12.3", "server_arguments": {"speculative_algorithm": "DDTREE"}}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.smoke import run_module


def main() -> None:
    probe = {
        "expression": {"type": "str"},
        "call": {"type": "str"},
        "args": {"type": "list", "elements": "raw"},
        "kwargs": {"type": "dict"},
        "imports": {"type": "list", "elements": "str", "default": []},
        "equals": {"type": "raw"},
        "matches": {"type": "str"},
    }
    expected_text = {"prompt": {"type": "str", "required": True}, "matches": {"type": "str", "required": True}}
    log_expectation = {
        "name": {"type": "str"},
        "matches": {"type": "str", "required": True},
        "absent": {"type": "bool", "default": False},
    }
    run_module(
        AnsibleModule(
            argument_spec={
                "gate": {"type": "str", "choices": ["environment", "server"], "required": True},
                "dest": {"type": "path"},
                "release": {"type": "path"},
                "distribution": {"type": "str", "default": "sglang"},
                "version": {"type": "str"},
                "requirements": {"type": "bool", "default": True},
                "requirements_ignore": {"type": "list", "elements": "str", "default": []},
                "imports": {
                    "type": "list",
                    "elements": "str",
                    "default": [
                        "sglang.srt.server_args",
                        "sglang.srt.entrypoints.http_server",
                        "sglang.srt.managers.scheduler",
                        "sglang.srt.speculative.dflash_worker",
                    ],
                },
                "symbols": {"type": "list", "elements": "str", "default": []},
                "probes": {
                    "type": "list",
                    "elements": "dict",
                    "default": [],
                    "options": probe,
                    "mutually_exclusive": [("expression", "call")],
                    "required_one_of": [("expression", "call")],
                    "required_by": {"args": "call", "kwargs": "call"},
                },
                "command_line": {"type": "list", "elements": "str", "default": []},
                "kernels": {"type": "str", "choices": ["auto", "required", "none"], "default": "auto"},
                "memory_limit": {"type": "str", "default": "32G"},
                "environment": {"type": "dict", "default": {}},
                "timeout": {"type": "int", "default": 300},
                "unit": {"type": "str"},
                "url": {"type": "str"},
                "python": {"type": "path"},
                "fresh": {"type": "bool", "default": False},
                "ready_timeout": {"type": "int", "default": 1800},
                "api_key_file": {"type": "path"},
                "ca_file": {"type": "path"},
                "validate_certs": {"type": "bool", "default": True},
                "behind_proxy": {"type": "bool", "default": False},
                "prompts": {
                    "type": "list",
                    "elements": "str",
                    "default": [
                        "The history of computing began long before the first electronic machines. In the beginning,",
                        "Here is a short list of things to check before a long journey by train:",
                        "def fibonacci(n):\n    ",
                        "Water boils at a lower temperature on high mountains because",
                    ],
                },
                "max_new_tokens": {"type": "int", "default": 64, "no_log": False},
                "generations": {"type": "int", "default": 6},
                "concurrent": {"type": "int", "default": 8},
                "expected_texts": {"type": "list", "elements": "dict", "default": [], "options": expected_text},
                "request_timeout": {"type": "int", "default": 120},
                "gate_timeout": {"type": "int", "default": 900},
                "speculation": {"type": "str", "choices": ["required", "absent", "any"], "default": "required"},
                "min_accept_length": {"type": "float"},
                "min_accept_rate": {"type": "float"},
                "cuda_graphs": {"type": "str", "choices": ["required", "absent", "any"], "default": "any"},
                "log_expect": {"type": "list", "elements": "dict", "default": [], "options": log_expectation},
                "baseline": {"type": "str", "choices": ["none", "record", "compare"], "default": "none"},
                "baseline_file": {"type": "path"},
                "baseline_tolerance": {"type": "float", "default": 0.15},
                "model_path": {"type": "str"},
                "expect": {"type": "list", "elements": "dict", "default": []},
            },
            required_if=[("gate", "environment", ["dest"]), ("gate", "server", ["unit", "url", "python"])],
            supports_check_mode=True,
        )
    )


if __name__ == "__main__":
    main()
