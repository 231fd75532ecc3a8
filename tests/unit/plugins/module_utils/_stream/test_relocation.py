# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Union

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import Installed
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.inventory import take_inventories
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.record import RecordBaseline
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import environment, interpreter
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.relocation import (
    Move,
    Relocated,
    moved_links,
    relocate,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import Entry, TreeError, scan
from ansible_collections.ddtree.fleet.tests.unit.environments import (
    SHORT,
    add_editable,
    build,
    files_naming,
    install,
    output,
    recorded,
    wheel,
)

Text = Union[str, bytes]
MOVE = Move(b"/root/venv", b"/srv/other")


# Paths as they mostly are, with what a shell must see quoted, and longer than a kernel takes in a first line.
PLACES = ["plain", "it's here", "/".join(["twenty-five-characters---"] * 5)]


@pytest.fixture(name="built", scope="session")
def built_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with launchers that pip wrote, and an editable package, in each of the places."""
    top = tmp_path_factory.mktemp("built")
    data = {"hello-1.0.data/scripts/hello-data": "#!python\nimport sys\nprint(sys.prefix)\n"}
    hello = wheel(top, "hello", data)
    for place in PLACES:
        build(top / place)
        install(top / place, hello)
        add_editable(top / place)
    return top


def move(old: Path, new: Path) -> Relocated:
    """Do what a stream does: copy the tree from where it was built, relocate it in staging, and link it at dest."""
    staging = Path(f"{new}.releases/tree")
    described = environment.describe(os.fsencode(old), {})
    shutil.copytree(old, staging, symlinks=True)
    done = relocate(
        os.fsencode(staging), scan(os.fsencode(staging)), interpreter.moves_for(described, os.fsencode(new), None)
    )
    new.symlink_to(staging)
    return done


def write(root: Path, path: Text, content: Text, mode: int = 0o644) -> Path:
    full = Path(os.fsdecode(os.path.join(os.fsencode(root), os.fsencode(path))))
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_bytes(os.fsencode(content))
    full.chmod(mode)
    return full


def rewritten(root: Path, *moves: Move) -> Relocated:
    return relocate(os.fsencode(root), scan(os.fsencode(root)), moves or [MOVE])


@pytest.mark.parametrize("options", [[], ["--copies"]], ids=["links", "copies"])
def test_a_moved_environment_runs_when_the_old_one_is_gone(tmp_path: Path, options: list[str]) -> None:
    old, new = tmp_path / "old venv", tmp_path / "new" / "venv"
    site = build(old, *options)
    (site / "hello.py").write_text("")
    write(
        old,
        "bin/hello",
        f"#!/bin/sh\n'''exec' '{old}/bin/python' \"$0\" \"$@\"\n' '''\nimport hello, sys\nprint(sys.prefix)",
        0o755,
    )
    add_editable(old)
    move(old, new)
    shutil.rmtree(old)
    assert output(new / "bin" / "hello") == [str(new)]
    assert output(new / "bin" / "python", "-c", "import tool; print(tool.__file__)") == [f"{new}/src/tool/__init__.py"]
    assert output("bash", "-c", f"source '{new}/bin/activate'; echo $VIRTUAL_ENV; hello") == [str(new)] * 2
    assert files_naming(new.resolve(), str(old)) == []


@pytest.mark.parametrize("place", PLACES, ids=["plain", "quoted", "long"])
@pytest.mark.parametrize("first", PLACES, ids=["from-plain", "from-quoted", "from-long"])
def test_launchers_and_records_are_as_pip_writes_them_there(
    tmp_path: Path, built: Path, first: str, place: str
) -> None:
    old, new = built / first, tmp_path / place
    done = move(old, new)
    site = f"{new}/lib/{SHORT}/site-packages"
    assert output(new / "bin" / "hello") == [str(new), f"{site}/hello.py"]
    assert output(new / "bin" / "hello-data") == [str(new)]
    assert output(new / "bin" / "python", "-c", "import tool; print(tool.__file__)") == [f"{new}/src/tool/__init__.py"]
    assert files_naming(new.resolve(), str(old)) == []
    launcher, from_pip = (root.joinpath("bin", "hello").read_text() for root in (new, built / place))
    assert launcher.startswith("#!/bin/sh\n'''exec' ") == ((first, place) != ("plain", "plain"))
    if first == place:
        assert launcher == from_pip.replace(str(built), str(tmp_path))
    installed = Installed(str(new), site)
    record = RecordBaseline(installed, Baseline("record", ["hello"])).reference(installed.find("hello"), ["1.0"])
    (inventory,) = take_inventories(installed, [record], [None])
    assert (inventory.modified, inventory.missing) == ([], [])
    assert {"../../../bin/hello", "../../../bin/hello-data", "hello.py"} <= set(inventory.equal)
    assert {b"pyvenv.cfg", b"bin/activate", b"bin/hello"} < set(done.rewritten)
    for path, sha256 in done.rewritten.items():
        assert hashlib.sha256((new / os.fsdecode(path)).read_bytes()).hexdigest() == sha256


def test_relocating_twice_changes_nothing_more(tmp_path: Path, built: Path) -> None:
    new = tmp_path / "new"
    assert move(built / "plain", new).rewritten
    again = rewritten(new.resolve(), Move(os.fsencode(built / "plain"), os.fsencode(new)))
    assert again == Relocated()


# What venv, uv and virtualenv write for /root/venv and "/root/my venv", and what must become of it at "/srv/it's new".
ACTIVATION = [
    ("activate", "/root/venv", 'VIRTUAL_ENV="/root/venv"', 'VIRTUAL_ENV="/srv/it\'s new"'),
    ("activate", "/root/venv", "VIRTUAL_ENV=/root/venv\n", "VIRTUAL_ENV='/srv/it'\"'\"'s new'\n"),
    ("activate", "/root/venv", "VIRTUAL_ENV='/root/venv'", "VIRTUAL_ENV='/srv/it'\"'\"'s new'"),
    ("activate", "/root/venv", "x=$(cygpath /root/venv)", "x=$(cygpath '/srv/it'\"'\"'s new')"),
    ("activate", "/root/venv", "if [ ! -d /root/venv ] &&", "if [ ! -d '/srv/it'\"'\"'s new' ] &&"),
    ("activate", "/root/my venv", "VIRTUAL_ENV='/root/my venv'", "VIRTUAL_ENV='/srv/it'\"'\"'s new'"),
    ("activate", "/root/it's", "VIRTUAL_ENV='/root/it'\"'\"'s'", "VIRTUAL_ENV='/srv/it'\"'\"'s new'"),
    ("activate", "/root/it", "VIRTUAL_ENV='/root/it'\"'\"'s'", None),
    ("activate", "/root/my", "VIRTUAL_ENV='/root/my venv'", None),
    ("activate", "/root/venv", "VIRTUAL_ENV_PROMPT='(venv) '", None),
    ("activate.csh", "/root/venv", 'setenv VIRTUAL_ENV "/root/venv"', 'setenv VIRTUAL_ENV "/srv/it\'s new"'),
    (
        "activate.csh",
        "/root/venv",
        "source '/root/venv'\"/\"'bin'\"/deactivate.csh\"",
        "source '/srv/it'\"'\"'s new'\"/\"'bin'\"/deactivate.csh\"",
    ),
    ("activate.fish", "/root/it's", "set -gx VIRTUAL_ENV '/root/it\\'s'", "set -gx VIRTUAL_ENV '/srv/it'\"'\"'s new'"),
    ("activate.fish", "/root/venv", 'set -gx VIRTUAL_ENV "/root/venv"', 'set -gx VIRTUAL_ENV "/srv/it\'s new"'),
    ("activate.nu", "/root/venv", "let virtual_env = r#'/root/venv'#", "let virtual_env = r#'/srv/it's new'#"),
    ("activate.bat", "/root/venv", '("/root/venv") do @set', '("/srv/it\'s new") do @set'),
    ("activate.xsh", "/root/venv", "self._fs_path('/root/venv', True)", "self._fs_path('/srv/it\\'s new', True)"),
    ("activate_this.py", "/root/venv", "base = '/root/venv'", "base = '/srv/it\\'s new'"),
]


@pytest.mark.parametrize(("name", "old", "text", "expected"), ACTIVATION)
def test_activation_scripts_name_the_new_place_in_their_own_quoting(
    tmp_path: Path, name: str, old: str, text: str, expected: str | None
) -> None:
    script = write(tmp_path, f"bin/{name}", text)
    rewritten(tmp_path, Move(old.encode(), b"/srv/it's new"))
    assert script.read_text() == (expected or text)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("lib/a.pth", "/root/venv/src\n/root/venv2/src\n", "/srv/other/src\n/root/venv2/src\n"),
        ("lib/a.pth", "/root/venv/src\r\n", "/srv/other/src\r\n"),
        ("lib/a.pth", "import site; site.addsitedir('/root/venv/x')", "import site; site.addsitedir('/srv/other/x')"),
        ("lib/a.pth", "/root/venv/../venv/src", "/srv/other/src"),
        ("lib/a.pth", "/root/venv/../src", "/root/src"),
        ("lib/a.pth", "/mnt/root/venv/src", None),
        ("lib/a.egg-link", "/root/venv/src/a\n.", "/srv/other/src/a\n."),
        ("pyvenv.cfg", "home = /root/venv/base/bin\n", "home = /srv/other/base/bin\n"),
        ("pyvenv.cfg", "executable=/root/venv/bin/python\n", "executable=/srv/other/bin/python\n"),
        ("pyvenv.cfg", "command = /usr/bin/python3 -m venv /root/venv\n", "command = /usr/bin/python3 -m venv /srv/other\n"),
        ("pyvenv.cfg", "home = /root/venv-old/bin\nprompt = /root/venv\n", None),
        ("lib/__editable___a_finder.py", "M = {'a': '/root/venv/src', 'b': \"/root/venv2/b\"}", "M = {'a': '/srv/other/src', 'b': \"/root/venv2/b\"}"),
        ("lib/_editable_impl_a.py", "F.map_module('a', '/root/venv/a.py')", "F.map_module('a', '/srv/other/a.py')"),
        ("lib/a.dist-info/direct_url.json", '{"url": "file:///root/venv/src"}', '{"url": "file:///srv/other/src"}'),
        ("lib/a.dist-info/direct_url.json", '{"url": "https://host/root/venv/a"}', None),
        ("lib/a.dist-info/direct_url.json", '{"url": "file:///root/venv%20x"}', None),
    ],
)  # fmt: skip
def test_files_that_lead_somewhere_lead_to_the_new_place(
    tmp_path: Path, path: str, text: str, expected: str | None
) -> None:
    file = write(tmp_path, path, text)
    done = rewritten(tmp_path)
    assert file.read_bytes().decode() == (expected or text)
    assert list(done.rewritten) == ([] if expected is None else [path.encode()])


def test_urls_are_written_as_urls(tmp_path: Path) -> None:
    file = write(tmp_path, "lib/a.dist-info/direct_url.json", '{"url": "file:///root/my%20venv/src"}')
    rewritten(tmp_path, Move(b"/root/my venv", "/srv/über".encode()))
    assert file.read_text() == '{"url": "file:///srv/%C3%BCber/src"}'


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (b"#!/root/venv/bin/python -E\npass\n", b"#!/srv/other/bin/python -E\npass\n"),
        (b"#! /root/venv/bin/python\npass\n", b"#! /srv/other/bin/python\npass\n"),
        (b"#!/root/venv/bin/python\r\npass\r\n", b"#!/srv/other/bin/python\r\npass\r\n"),
        (b"#!/usr/bin/env -S /root/venv/bin/python -u\n", b"#!/usr/bin/env -S /srv/other/bin/python -u\n"),
        (b"#!/root/venv/bin/python\nPK\3\4\0\xff/root/venv/x", b"#!/srv/other/bin/python\nPK\3\4\0\xff/root/venv/x"),
        (b"#!/root/venv2/bin/python\n", None),
        (b"#!/bin/sh\nexec /usr/bin/true\n", None),
        (b"#!\0\1/root/venv/bin/python\n\0", None),
        (b"#!/root/venv/bin/python", None),
        (b"\x7fELF\0#!/root/venv/bin/python\n", None),
    ],
)
def test_only_first_lines_of_launchers_are_rewritten(tmp_path: Path, script: bytes, expected: bytes | None) -> None:
    file = write(tmp_path, "libexec/tool", script, 0o755)
    rewritten(tmp_path)
    assert file.read_bytes() == (expected or script)


@pytest.mark.parametrize(("length", "kept"), [(126, True), (127, False)])
def test_a_first_line_is_no_longer_than_every_kernel_reads(tmp_path: Path, length: int, kept: bool) -> None:
    file = write(tmp_path, "bin/tool", "#!/root/venv/bin/python\npass\n", 0o755)
    new = b"/srv/" + b"x" * (length - len("#!/srv//bin/python"))
    rewritten(tmp_path, Move(b"/root/venv", new))
    assert file.read_bytes().startswith(b"#!%s/bin/python\n" % new if kept else b"#!/bin/sh\n")


def test_a_large_archive_with_a_launcher_line_runs_at_the_new_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    build(old)
    with open(old / "bin" / "app", "wb") as file:
        file.write(b"#!%s/bin/python\n" % os.fsencode(old))
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("__main__.py", "import sys; print(sys.prefix)")
            archive.writestr("data", os.urandom(3 << 20))
    (old / "bin" / "app").chmod(0o755)
    move(old, new)
    assert output(new / "bin" / "app") == [str(new)]


@pytest.mark.parametrize("line", [b"#!/root/venv/bin/node\n", b"#!/usr/bin/env -S /root/venv/bin/python -u\n"])
@pytest.mark.parametrize("new", [b"/srv/my place", b"/srv/" + b"long" * 40])
def test_a_launcher_that_cannot_be_made_to_work_is_refused(tmp_path: Path, line: bytes, new: bytes) -> None:
    write(tmp_path, "bin/tool", line, 0o755)
    with pytest.raises(TreeError, match="bin/tool .*set a shorter dest without blanks"):
        rewritten(tmp_path, Move(b"/root/venv", new))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("bin/tool", "#!/bin/sh\n'''exec' /root/my venv/bin/python \"$0\" \"$@\"\n' '''\n"),
        ("lib/a.pth", "import sys; sys.path[:0] = ['/root/my venv']" + " " * (1 << 20)),
        ("pyvenv.cfg", "extra = python at /root/my venv\n"),
    ],
)
def test_what_the_environment_starts_with_is_never_left_at_the_old_place(
    tmp_path: Path, path: str, content: str
) -> None:
    write(tmp_path, path, content, 0o755)
    with pytest.raises(TreeError, match=f"{path} still leads to the old place .*/root/my venv.*rebuild it at dest"):
        rewritten(tmp_path, Move(b"/root/my venv", b"/srv/other"))


def link(path: bytes, target: bytes) -> Entry:
    return Entry(path, "l", 0, 0, target, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("target", "new"),
    [
        (b"/root/venv/lib", b"/srv/other/lib"),
        (b"/root/venv", b"/srv/other"),
        (b"/root/venv/x/../lib", b"/srv/other/lib"),
        (b"/opt/../root/venv/lib", b"/srv/other/lib"),
        (b"/root/venv/../shared", b"/root/shared"),
        (b"/root/venv2/lib", None),
        (b"../venv/lib", None),
        (b"/opt/python/bin/python3", b"/srv/python/bin/python3"),
        (b"/opt/python-3/bin/python3", None),
    ],
)
def test_absolute_links_lead_to_the_new_place(target: bytes, new: bytes | None) -> None:
    moves = [MOVE, Move(b"/opt/python", b"/srv/python")]
    assert moved_links([link(b"a", target)], moves) == ({b"a": new} if new else {})


def test_links_are_replaced_with_their_time(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/root/venv/base/python")
    os.utime(tmp_path / "bin" / "python", ns=(5, 7), follow_symlinks=False)
    done = rewritten(tmp_path)
    assert done.links == {b"bin/python": b"/srv/other/base/python"}
    assert os.readlink(tmp_path / "bin" / "python") == "/srv/other/base/python"
    assert os.lstat(tmp_path / "bin" / "python").st_mtime_ns == 7


def test_a_file_shared_with_another_release_stays_as_it_is_there(tmp_path: Path) -> None:
    text = "#!/root/venv/bin/python\n"
    other = write(tmp_path, "other/tool", text, 0o755)
    os.utime(other, ns=(5, 7))
    (tmp_path / "new" / "bin").mkdir(parents=True)
    tool = tmp_path / "new" / "bin" / "tool"
    os.link(other, tool)
    rewritten(tmp_path / "new")
    assert other.read_text() == text
    assert tool.read_text() == "#!/srv/other/bin/python\n"
    assert (tool.stat().st_mode & 0o777, tool.stat().st_mtime_ns) == (0o755, 7)
    assert os.listdir(tool.parent) == ["tool"]


def test_names_need_not_be_text(tmp_path: Path) -> None:
    file = write(tmp_path, b"bin/\xff\n'x", "#!/root/venv\udcff/bin/python\n", 0o755)
    done = rewritten(tmp_path, Move(b"/root/venv\xff", b"/srv/other"), Move(b"/root/venv", b"/srv/wrong"))
    assert file.read_bytes() == b"#!/srv/other/bin/python\n"
    assert list(done.rewritten) == [b"bin/\xff\n'x"]


def test_of_nested_places_the_inner_one_counts(tmp_path: Path) -> None:
    write(tmp_path, "pyvenv.cfg", "home = /root/venv/python/bin\nexecutable = /root/venv/bin/python\n")
    write(tmp_path, "bin/activate", "a='/root/venv/python/bin'\nb='/root/venv/bin'\n")
    write(tmp_path, "lib/a.pth", "import sys; sys.path += ['/root/venv/python/x', '/root/venv/y']\n")
    rewritten(tmp_path, MOVE, Move(b"/root/venv/python", b"/opt/python"))
    assert (tmp_path / "pyvenv.cfg").read_text() == "home = /opt/python/bin\nexecutable = /srv/other/bin/python\n"
    assert (tmp_path / "bin" / "activate").read_text() == "a='/opt/python/bin'\nb='/srv/other/bin'\n"
    assert (tmp_path / "lib" / "a.pth").read_text() == "import sys; sys.path += ['/opt/python/x', '/srv/other/y']\n"


def test_other_texts_are_listed_and_left_alone(tmp_path: Path) -> None:
    for number in range(25):
        write(tmp_path, f"lib/{number:02}.py", "# built in /root/venv/x")
    write(tmp_path, "lib/_sysconfigdata.py", "FLAGS = '-L/root/venv/lib'")
    write(tmp_path, "bin/setup", "#!/bin/sh\nexport HOME=/root/venv\n", 0o755)
    write(tmp_path, "lib/x.so", b"\x7fELF\0/root/venv/lib\0", 0o755)
    write(tmp_path, "lib/other.py", "# built in /root/venv2 and /mnt/root/venv")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    done = rewritten(tmp_path)
    assert done.leftovers == ["bin/setup"] + [f"lib/{number:02}.py" for number in range(19)]
    assert done.leftover_count == 27
    assert (done.rewritten, {path: path.read_bytes() for path in tmp_path.rglob("*.*")}) == ({}, before)


def test_a_record_keeps_what_it_did_not_know(tmp_path: Path) -> None:
    site, old, new = "lib/python3/site-packages", b"#!/root/venv/bin/python\n", b"#!/srv/other/bin/python\n"
    for name in ("bin/known", "bin/changed", "bin/strong", "bin/with,comma", "bin/bare"):
        write(tmp_path, name, old, 0o755)
    lines = [
        "../../../bin/known,sha256={known},{size}",
        f"../../../bin/changed,sha256={recorded(b'other')},24",
        "../../../bin/strong,sha512={strong},{size}",
        '"../../../bin/with,comma",sha256={known},{size}',
        "../../../bin/bare,,",
        "a/__init__.py,sha256=abc,3",
        "a-1.dist-info/RECORD,,",
    ]
    text = "\r\n".join(lines)
    record = write(
        tmp_path,
        f"{site}/a-1.dist-info/RECORD",
        text.format(known=recorded(old), strong=recorded(old, "sha512"), size=len(old)),
    )
    done = rewritten(tmp_path)
    expected = text.format(known=recorded(new), strong=recorded(new, "sha512"), size=len(new))
    assert record.read_bytes().decode() == expected
    assert done.rewritten[f"{site}/a-1.dist-info/RECORD".encode()] == hashlib.sha256(expected.encode()).hexdigest()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"/srv/venv", b"/srv/venv/x", "/srv/venv/x lies inside /srv/venv"),
        (b"/srv/venv", b"/srv/a\nb", "without control characters"),
        (b"/srv/venv", b"/srv/\xff", "in UTF-8"),
        (b"/", b"/srv/x", "/ is no plain absolute path"),
        (b"venv", b"/srv/x", "venv is no plain absolute path"),
        (b"/srv/venv", b"/srv/../x", "/srv/../x is no plain absolute path"),
    ],
)
def test_places_that_no_script_can_name_are_refused(tmp_path: Path, old: bytes, new: bytes, problem: str) -> None:
    write(tmp_path, "bin/tool", b"#!" + old + b"/bin/python\n", 0o755)
    with pytest.raises(TreeError, match=problem):
        rewritten(tmp_path, Move(old, new))
    assert (tmp_path / "bin" / "tool").read_bytes() == b"#!" + old + b"/bin/python\n"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    tool = write(tmp_path, "bin/tool", "#!/root/venv/bin/python\n", 0o755)
    entries = scan(os.fsencode(tmp_path))
    tool.unlink()
    with pytest.raises(TreeError, match=f"{tool}: No such file or directory; it could not be relocated"):
        relocate(os.fsencode(tmp_path), entries, [MOVE])


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """Under a file size limit of the process, as on a full disk, writing fails half-way."""
    tool = write(tmp_path, "bin/tool", "#!/root/venv/bin/python\n" + "#" * 10000, 0o755)
    program = (
        "import resource, signal, sys; sys.path[:0] = sys.argv[2:]\n"
        "from ansible_collections.ddtree.fleet.plugins.module_utils._stream.relocation import Move, relocate\n"
        "from ansible_collections.ddtree.fleet.plugins.module_utils._tree import scan\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "root = sys.argv[1].encode()\n"
        "relocate(root, scan(root), [Move(b'/root/venv', b'/srv/other')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, tmp_path, *sys.path], capture_output=True, text=True, check=False
    )
    assert f"TreeError: {tool}: File too large; it could not be relocated" in done.stderr
    assert tool.read_text().startswith("#!/root/venv/bin/python\n")
    assert os.listdir(tool.parent) == ["tool"]
