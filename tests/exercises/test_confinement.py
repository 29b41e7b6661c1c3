"""What an answer cannot do, even where Python's audit hooks hear nothing of it."""

import ctypes
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import transformers_hw.exercises as book
from transformers_hw.exercises import confinement, isolation
from transformers_hw.exercises.confinement import ALLOW, KILL, REFUSE, UNKNOWN
from transformers_hw.exercises.isolation import Limits, check_file

NAME = "attention/softmax"
RIGHT = """
import numpy as np
def softmax(scores, scale):
    powers = np.exp(scale * scores - np.max(scale * scores, -1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
SOLUTION = Path(book.__file__).parent / "attention/softmax.py"
# Elsewhere nothing but Python's own functions is watched, as SECURITY.md says.
ENFORCED = sys.platform == "linux" and platform.machine() in confinement.ARCHITECTURES
LANDLOCK = ENFORCED and ctypes.CDLL(None).syscall(444, None, 0, 1) > 0
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}

# Deeds of a process that is confined, and has no hooks. Each needs another call.
DEEDS = {
    "writes": "open(victim, 'w')",
    "appends": "open(victim, 'a')",
    "opens_for_both": "os.open(victim, os.O_RDWR)",
    "empties_on_reading": "os.open(victim, os.O_RDONLY | os.O_TRUNC)",
    "creates_on_reading": "os.open(new, os.O_RDONLY | os.O_CREAT)",
    "creates_without_a_name": "os.open(folder, os.O_TMPFILE | os.O_RDWR)",
    "opens_as_of_late": "call(437, -100, victim.encode(), bytes([1] + 23 * [0]), 24)",
    "queues": "call(425, 1, bytes(200))",
    "truncates": "os.truncate(victim, 0)",
    "makes_a_folder": "os.mkdir(new)",
    "removes": "os.remove(victim)",
    "renames": "os.rename(victim, new)",
    "links": "os.link(victim, new)",
    "links_softly": "os.symlink(victim, new)",
    "changes_the_mode": "os.chmod(victim, 0)",
    "changes_the_mode_of_what_is_open": "os.fchmod(opened, 0)",
    "changes_the_owner": "os.chown(victim, os.getuid(), os.getgid())",
    "changes_the_time": "os.utime(victim)",
    "sets_an_attribute": "os.setxattr(victim, 'user.owned', b'1')",
    "makes_it_immutable": "fcntl.ioctl(opened, 0x40086602, struct.pack('i', 16))",
    "makes_a_pipe": "os.mkfifo(new)",
    "makes_a_database": "sqlite3.connect(new).execute('create table t(x)')",
    "shares_memory": "_posixshmem.shm_open('/owned', os.O_CREAT | os.O_RDWR, 0o600)",
    "shares_old_memory": "call(shmget, 0, 4096, 0o1600)",
    "writes_a_history": "readline.write_history_file(victim)",
    "forks": "os.fork() or os._exit(0)",
    "executes": "os.execv('/bin/true', ['true'])",
    "starts": "subprocess.run(['/bin/true'])",
    "spawns": "os.posix_spawn('/bin/true', ['true'], {})",
    "has_a_shell_start": "1 / (os.system('true') == 0)",
    "connects": "socket.create_connection(('127.0.0.1', port))",
    "connects_locally": "socket.socket(socket.AF_UNIX)",
    "kills": "os.kill(other, 9)",
    "kills_a_thread": "call(tgkill, other, other, 9)",
    "sends_a_signal_by_a_file": "fcntl.fcntl(opened, fcntl.F_SETOWN, other)",
    "traces": "call(ptrace, 16, other, 0, 0)",
    "lifts_a_limit": "resource.setrlimit(resource.RLIMIT_CPU, (50, 50))",
}
READING = {
    "reads": "open(victim).read()",
    "reads_the_solution": "open(solution).read()",
    "reads_it_through_proc": "open('/proc/self/root' + solution).read()",
    "reads_it_as_a_history": "readline.read_history_file(solution)",
    "reads_the_environment": "open(f'/proc/{os.getppid()}/environ').read()",
    "reads_the_processes": "os.listdir('/proc')",
    "reads_the_folder": "os.listdir(folder)",
}
# What has to work nevertheless.
COMPUTING = {
    "imports": "__import__('wave')",
    "reads_a_library": "open(os.__file__).read()",
    "lists_a_library": "os.listdir(os.path.dirname(os.__file__))",
    "begins_a_thread": "threading.Thread(target=len, args=('',)).start()",
    "draws": "os.urandom(3)",
    "asks_for_a_limit": "resource.getrlimit(resource.RLIMIT_CPU)",
    "signals_itself": "signal.raise_signal(signal.SIGURG)",
    "opens_a_pipe": "os.pipe()",
}
CONFINED = """
import ctypes, importlib.util, json, os, sys
import _posixshmem, fcntl, readline, resource, signal, socket, sqlite3
import struct, subprocess, threading
spec = importlib.util.spec_from_file_location("confinement", {file!r})
confinement = importlib.util.module_from_spec(spec)
spec.loader.exec_module(confinement)
deeds, given = json.load(sys.stdin)
globals().update(given, opened=os.open(given["victim"], os.O_RDONLY))
shmget, tgkill, ptrace = {numbers}
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    words = [x if isinstance(x, bytes) else ctypes.c_long(x) for x in arguments]
    if libc.syscall(ctypes.c_long(number), *words) < 0:
        raise OSError(ctypes.get_errno(), "refused")

why = confinement.confine({package!r})
if why is not None:
    raise SystemExit(why)
done = []
for name, deed in deeds.items():
    try:
        exec(deed)
    except (OSError, ValueError, ZeroDivisionError, sqlite3.OperationalError):
        continue
    done.append(name)
print(json.dumps(done))
"""


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Lend a file that must be left as it is, in a folder that must get no other."""
    path = tmp_path / "victim"
    path.write_text("here it is")
    before = path.stat()
    yield path
    after = path.stat()
    assert path.read_text() == "here it is"
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)
    assert {x.name for x in tmp_path.iterdir()} <= {"victim", "answer.py"}


def answered(folder: Path, text: str, seconds: float = 10.0) -> str:
    """Check a file, and return what is said about it."""
    path = folder / "answer.py"
    path.write_text(text, "utf-8")
    return check_file(NAME, path, limits=Limits(seconds=seconds)).sentence


@pytest.mark.unhooked
def test_the_kernel_refuses_all_but_computing(victim: Path) -> None:
    if not ENFORCED:
        assert confinement.confine(str(SOLUTION.parents[2])) is None
        return
    numbers = {"x86_64": (29, 234, 101), "aarch64": (194, 131, 117)}
    script = CONFINED.format(
        file=confinement.__file__,
        package=str(SOLUTION.parents[2]),
        numbers=numbers[platform.machine()],
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(["sleep", "600"]) as other,
    ):
        given = {
            "victim": str(victim),
            "new": str(victim.with_name("new")),
            "folder": str(victim.parent),
            "solution": str(SOLUTION),
            "port": server.getsockname()[1],
            "other": other.pid,
        }
        ran = subprocess.run(
            [sys.executable, "-I", "-c", script],
            input=json.dumps([DEEDS | READING | COMPUTING, given]),
            capture_output=True,
            text=True,
        )
        spared = other.poll() is None
        other.kill()
    assert ran.returncode == 0, ran.stderr
    assert spared
    known = set(COMPUTING) | (set() if LANDLOCK else set(READING))
    assert set(json.loads(ran.stdout)) == known


def decide(machine: str, number: int, *arguments: int, architecture: int = 0) -> int:
    """Run the filter as the kernel does."""
    words = [number, architecture or confinement.ARCHITECTURES[machine], 0, 0]
    for argument in (*arguments, *[0] * 6)[:6]:
        words += [argument & 0xFFFFFFFF, argument >> 32]
    lines, word, at = confinement.program(machine, 42), 0, 0
    while True:
        code, then, otherwise, value = lines[at]
        at += 1
        if code == confinement.RETURN:
            return value
        if code == confinement.LOAD:
            word = words[value // 4]
            continue
        holds = {
            confinement.IF_EQUAL: word == value,
            confinement.IF_AT_LEAST: word >= value,
            confinement.IF_ANY_BIT: bool(word & value),
        }[code]
        at += then if holds else otherwise


def test_the_filter_decides_by_number_and_argument() -> None:
    numbers = {
        "x86_64": {"openat": 257, "clone": 56, "prlimit64": 302, "write": 1},
        "aarch64": {"openat": 56, "clone": 220, "prlimit64": 261, "write": 64},
    }
    for machine, of in numbers.items():
        assert decide(machine, of["write"], 1) == ALLOW
        assert decide(machine, of["openat"], 0, 0, os.O_RDONLY) == ALLOW
        assert decide(machine, of["openat"], 0, 0, 0o2000000) == ALLOW
        for flag in (0o1, 0o2, 0o100, 0o1000, 0o2000):
            assert decide(machine, of["openat"], 0, 0, flag | 0o2000000) == REFUSE
        assert decide(machine, of["clone"], 17) == REFUSE
        assert decide(machine, of["clone"], 0x3D0F00) == ALLOW
        assert decide(machine, of["prlimit64"], 0, 7, 0, 1) == ALLOW
        assert decide(machine, of["prlimit64"], 0, 7, 1 << 32) == REFUSE
        assert decide(machine, of["prlimit64"], 0, 7, 4096) == REFUSE
        for late in (424, 435, 437, 462, 0x40000000 | 2, 0xFFFFFFFF):
            assert decide(machine, late) == UNKNOWN
        assert decide(machine, 1, architecture=0x40000003) == KILL
    assert decide("x86_64", 2, 0, 0) == ALLOW
    assert decide("x86_64", 2, 0, 1) == REFUSE
    assert decide("x86_64", 234, 42, 43) == ALLOW
    assert decide("x86_64", 234, 43, 43) == REFUSE
    # The number of open on x86-64 is another call's on arm64.
    assert decide("aarch64", 2, 0, 1) == ALLOW


@pytest.mark.parametrize("machine", confinement.ARCHITECTURES)
def test_calls_have_the_numbers_of_the_kernel(machine: str) -> None:
    words = confinement.REFUSED.split()
    column = 1 + list(confinement.ARCHITECTURES).index(machine)
    mine = dict(zip(words[::3], words[column::3], strict=True))
    for number in mine.values():
        if number != "-":
            assert decide(machine, int(number)) == REFUSE
    if HEADERS[machine].is_file():
        text = HEADERS[machine].read_text("utf-8")
        theirs = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text))
        assert mine == {name: theirs.get(name, "-") for name in mine}
    else:  # a number that stands twice belongs to one call
        given = [number for number in mine.values() if number != "-"]
        assert len(given) == len(set(given))


def test_libraries_beside_the_package_may_be_read_and_the_package_may_not(
    tmp_path: Path,
) -> None:
    libraries = tmp_path / "lib/site-packages"
    for name in ("numpy/core", "transformers_hw/exercises", "transformers_hw_other"):
        (libraries / name).mkdir(parents=True)
    (libraries / "einops.py").touch()
    (libraries / "round").symlink_to(tmp_path)
    package = str(libraries / "transformers_hw")

    def rules(path: Path) -> dict[str, int]:
        found = confinement._readable(str(path), package)
        return {os.path.relpath(one, tmp_path): access for one, access in found}

    names, both = confinement.READ_FOLDER, 12
    assert rules(tmp_path / "lib") == {
        "lib": names,
        "lib/site-packages": names,
        "lib/site-packages/numpy": both,
        "lib/site-packages/transformers_hw_other": both,
        "lib/site-packages/einops.py": confinement.READ_FILE,
    }
    assert rules(libraries / "numpy") == {"lib/site-packages/numpy": both}
    assert rules(libraries / "transformers_hw/exercises") == {}


# Calls into compiled code, of which the hooks hear nothing.
UNHEARD = {
    "maps": "torch.UntypedStorage.from_file(victim, True, 8).fill_(65)",
    "saves": "torch.jit.trace(torch.nn.Identity(), torch.ones(1)).save(victim)",
    "writes": "torch._C.PyTorchFileWriter(victim)",
    "stores": "torch._C._distributed_c10d.FileStore(victim, 1).set('a', 'b')",
    "listens": "store('127.0.0.1', 0, 1, True, short)",
    "connects": "store('127.0.0.1', port, 2, False, short)",
    "starts": "sys.modules['_posixsubprocess'] = types.SimpleNamespace(fork_exec=next("
    "x for x in gc.get_objects() if getattr(x, '__name__', '') == 'fork_exec'))\n"
    "    util.spawnv_passfds(b'/bin/touch', ['touch', new], ())",
}


@pytest.mark.unhooked
@pytest.mark.parametrize("deed", UNHEARD.values(), ids=UNHEARD)
def test_compiled_code_is_no_way_out(deed: str, victim: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        new, port = str(victim.with_name("new")), server.getsockname()[1]
        text = f"""
import gc, multiprocessing.util as util, sys, types, warnings
from datetime import timedelta
import torch
victim, new, port, short = {str(victim)!r}, {new!r}, {port}, timedelta(seconds=2)
store = torch._C._distributed_c10d.TCPStore
try:
    {deed}
except (OSError, RuntimeError):
    raise SystemExit("refused") from None
raise SystemExit("done")
"""
        said = answered(victim.parent, text, 30.0)
        if ENFORCED:
            assert said == "The file stopped with SystemExit: refused"
            with pytest.raises(TimeoutError):
                server.accept()


@pytest.mark.unhooked
@pytest.mark.parametrize(
    "module", ["readline", "_posixshmem", "_posixsubprocess", "torch.readline"]
)
def test_modules_below_the_hooks_are_not_imported(module: str, tmp_path: Path) -> None:
    said = answered(
        tmp_path, f"try:\n    import {module}\nexcept Exception: pass\n{RIGHT}"
    )
    assert said == f"The file imports {module}, which is not allowed."


@pytest.mark.unhooked
def test_files_and_the_environment_stay_unread(
    victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "here")
    assert "here" not in answered(
        victim.parent, "import os\nraise SystemExit(dict(os.environ))"
    )
    for path in (str(victim), f"/proc/{os.getpid()}/environ"):
        said = answered(victim.parent, f"raise SystemExit(open({path!r}).read())")
        if LANDLOCK:
            assert "stopped with PermissionError: [Errno 13]" in said
            assert said.endswith("can read the files of libraries, and write none.")
    said = answered(
        victim.parent,
        f"import torch\nsize = {SOLUTION.stat().st_size}\n"
        f"raise SystemExit(bytes(torch.UntypedStorage.from_file({str(SOLUTION)!r}, "
        "False, size)))",
    )
    if LANDLOCK:
        assert "stopped with RuntimeError: unable to open file" in said


@pytest.mark.unhooked
def test_libraries_can_be_imported_late(tmp_path: Path) -> None:
    late = "import numpy.polynomial, wave, zoneinfo\n    powers ="
    text = RIGHT.replace("powers =", late, 1)
    assert "agrees on all" in answered(tmp_path, text)


@pytest.mark.unhooked
def test_a_file_that_cannot_be_confined_is_not_run(
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("exercises")
    for name in ("child.py", "kinds.py"):
        shutil.copy(isolation.CHILD.with_name(name), folder)
    (folder / "confinement.py").write_text("def confine(package): return 'no seccomp'")
    monkeypatch.setattr(isolation, "CHILD", folder / "child.py")
    said = answered(victim.parent, RIGHT)
    assert "was not run, as the kernel cannot confine it: no seccomp" in said


@pytest.mark.unhooked
def test_a_flood_of_results_is_cut(tmp_path: Path) -> None:
    flood = (
        "import os\ndata = b'x' * 2**20\nwhile True:\n    for fd in range(3, 9):\n"
        "        try: os.write(fd, data)\n        except OSError: pass"
    )
    (tmp_path / "answer.py").write_text(flood)
    # In a process of its own, since memory that was used once counts for good.
    script = f"""
import resource
from pathlib import Path
from transformers_hw.exercises.isolation import Limits, check_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
limits = Limits(seconds=5.0)
print(check_file({NAME!r}, Path({str(tmp_path / "answer.py")!r}), limits=limits))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    said, grown = ran.stdout.splitlines()
    assert said == "What it returned takes more than 16 MB."
    assert int(grown) < 100_000 * (1024 if sys.platform == "darwin" else 1)


@pytest.mark.unhooked
def test_a_file_that_closes_its_channel_and_waits_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "STARTING", 3)
    text = (
        "import os, signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "os.closerange(3, 20)\ntime.sleep(60)"
    )
    assert "did not end within 1 seconds" in answered(tmp_path, text, 1.0)
