# Copyright (c) 2026, the ddtree.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for nvidia-smi on test hosts: answers queries from csv files in the form that the real program prints.

A process of a test host that wants to be seen on a GPU writes a file named by its id to HOLDERS, with the seconds that its
memory stays held after it has ended, counted from the first query that finds it gone.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

DATA = Path("/etc/nvidia-smi-standin")
HOLDERS = Path("/dev/shm/nvidia-smi-standin")
HELD_MEMORY = "1024 MiB"
QUERIES = {"--query-gpu": "query-gpu.csv", "--query-compute-apps": "compute-apps.csv"}
ALIASES = {
    "--query-gpu": {"gpu_name": "name", "gpu_uuid": "uuid"},
    "--query-compute-apps": {"name": "process_name", "used_memory": "used_gpu_memory"},
}


class Refusal(Exception):
    """What the real program prints when it refuses a command line, and its exit code; both recorded with driver 580."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


def table(name: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows of one recorded csv file."""
    with open(DATA / name, encoding="utf-8", newline="") as handle:
        rows = [[cell.strip() for cell in row] for row in csv.reader(handle) if row]
    return rows[0], rows[1:]


def holders() -> list[list[str]]:
    """Rows of the processes that hold GPU memory because they said so; the first GPU has them all."""
    header, gpus = table("query-gpu.csv")
    return [
        [path.name, process_name(path.name) or "[Not Found]", HELD_MEMORY, gpus[0][header.index("uuid")]]
        for path in (sorted(HOLDERS.iterdir()) if HOLDERS.is_dir() else [])
        if process_name(path.name) or held_beyond(path)
    ]


def process_name(pid: str) -> str:
    """Program of a living process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


def held_beyond(path: Path) -> bool:
    """Whether the memory of a process that has ended is still held."""
    seconds, *ended = path.read_text(encoding="ascii").split()
    if not ended:
        ended = [str(time.monotonic())]
        path.write_text(f"{seconds} {ended[0]}", encoding="ascii")
    return time.monotonic() - float(ended[0]) < float(seconds)


def without_unit(cell: str) -> str:
    """The number of a cell such as ``97887 MiB``."""
    return cell.removesuffix(" MiB")


def query(kind: str, fields: str, formats: list[str]) -> str:
    """Answer one query in csv."""
    if not set(formats) <= {"csv", "noheader", "nounits"}:
        raise Refusal("Format modifier is not recognized.")
    header, rows = table(QUERIES[kind])
    if kind == "--query-compute-apps":
        rows += holders()
    places = {title.split(" ")[0]: place for place, title in enumerate(header)}
    places.update({alias: places[title] for alias, title in ALIASES[kind].items()})
    wanted = [field.strip() for field in fields.split(",")]
    for field in wanted:
        if field not in places:
            raise Refusal(f'Field "{field}" is not a valid field to query.\n')
    bare = "nounits" in formats
    lines = [] if "noheader" in formats else [[header[places[field]] for field in wanted]]
    lines += [[without_unit(row[places[field]]) if bare else row[places[field]] for field in wanted] for row in rows]
    return "".join(", ".join(line) + "\n" for line in lines)


def listing() -> str:
    """Answer ``-L``."""
    header, rows = table("query-gpu.csv")
    index, name, uuid = (header.index(title) for title in ("index", "name", "uuid"))
    return "".join(f"GPU {row[index]}: {row[name]} (UUID: {row[uuid]})\n" for row in rows)


def answer(words: list[str]) -> str:
    """Answer one command line, options written ``--name=value`` or ``--name value``."""
    if words in (["-L"], ["--list-gpus"]):
        return listing()
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        if name not in (*QUERIES, "--format"):
            raise Refusal(f"ERROR: Option {name} is not recognized. Please run 'nvidia-smi -h'.\n", 255)
        options[name] = value if separator else (rest.pop(0) if rest else "")
    kinds = [kind for kind in QUERIES if kind in options]
    if len(kinds) > 1:
        raise Refusal("Only one --query-* switch can be used at a time.")
    if not kinds:
        raise Refusal("this stand-in answers -L, --query-gpu and --query-compute-apps only")
    return query(kinds[0], options[kinds[0]], options.get("--format", "csv").split(","))


def main() -> int:
    """Print the answer; like the real program, refusals go to standard output."""
    try:
        print(answer(sys.argv[1:]), end="")
    except Refusal as exc:
        print(exc)
        return exc.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
