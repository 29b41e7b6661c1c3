"""What the kernel lets a submission do: compute, and read libraries.

On Linux, `child` calls `confine` before the submission runs. Two locks close then that
nothing opens again, and that bind compiled code, too. Seccomp refuses system calls, by
their numbers and arguments. Landlock refuses to read files outside the listed folders.
Other systems have neither.

The manual pages are seccomp(2), bpf(2) and landlock(7).
"""

from __future__ import annotations

import errno
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterator

# AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64: with which numbers a call was made.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# From here on, calls have the same numbers on both. Among them are clone3, openat2,
# io_uring and pidfd; C libraries do without those that a kernel does not know, so it
# knows none of them. The x32 calls of x86-64 have numbers far above.
NEWEST = 424
# Calls that are refused: a name, the numbers on x86-64 and on arm64, - for none.
REFUSED = (
    # Starting programs, and reaching other processes or the limits of this one.
    """
    fork 57 -  vfork 58 -  execve 59 221  execveat 322 281  kill 62 129  tkill 200 130
    rt_sigqueueinfo 129 138  rt_tgsigqueueinfo 297 240  ptrace 101 117  kcmp 312 272
    setrlimit 160 164  process_vm_readv 310 270  process_vm_writev 311 271
    setpriority 141 140  ioprio_set 251 30  sched_setparam 142 118
    sched_setscheduler 144 119  sched_setattr 314 274  sched_setaffinity 203 122
    migrate_pages 256 238  move_pages 279 239
    """
    # Connections, and memory and messages that outlive the process.
    """
    socket 41 198  connect 42 203  accept 43 202  sendto 44 206  recvfrom 45 207
    sendmsg 46 211  recvmsg 47 212  bind 49 200  listen 50 201  socketpair 53 199
    accept4 288 242  recvmmsg 299 243  sendmmsg 307 269  shmget 29 194  shmat 30 196
    shmctl 31 195  semget 64 190  semop 65 193  semctl 66 191  semtimedop 220 192
    msgget 68 186  msgsnd 69 189  msgrcv 70 188  msgctl 71 187  mq_open 240 180
    mq_unlink 241 181
    """
    # Changing files. By ioctl, too: it sets attributes of files opened for reading.
    """
    creat 85 -  truncate 76 45  ftruncate 77 46  fallocate 285 47  rename 82 -
    renameat 264 38  renameat2 316 276  mkdir 83 -  mkdirat 258 34  rmdir 84 -
    link 86 -  linkat 265 37  unlink 87 -  unlinkat 263 35  symlink 88 -
    symlinkat 266 36  mknod 133 -  mknodat 259 33  chmod 90 -  fchmod 91 52
    fchmodat 268 53  chown 92 -  fchown 93 55  lchown 94 -  fchownat 260 54  utime 132 -
    utimes 235 -  futimesat 261 -  utimensat 280 88  setxattr 188 5  lsetxattr 189 6
    fsetxattr 190 7  removexattr 197 14  lremovexattr 198 15  fremovexattr 199 16
    ioctl 16 29  name_to_handle_at 303 264  open_by_handle_at 304 265
    """
    # The system itself, which is within reach of root.
    """
    mount 165 40  umount2 166 39  pivot_root 155 41  chroot 161 51  unshare 272 97
    setns 308 268  swapon 167 224  swapoff 168 225  reboot 169 142  sethostname 170 161
    setdomainname 171 162  vhangup 153 58  init_module 175 105  finit_module 313 273
    delete_module 176 106  kexec_load 246 104  kexec_file_load 320 294  acct 163 89
    quotactl 179 60  syslog 103 116  settimeofday 164 170  clock_settime 227 112
    adjtimex 159 171  clock_adjtime 305 266  iopl 172 -  ioperm 173 -  bpf 321 280
    perf_event_open 298 241  userfaultfd 323 282  add_key 248 217  request_key 249 218
    keyctl 250 219  fanotify_init 300 262  personality 135 92
    """
)
WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000  # O_WRONLY, RDWR, CREAT, TRUNC, APPEND
CLONE_THREAD = 0x10000
# Instructions of such a filter, and what it decides.
LOAD, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, UNKNOWN = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
# What libraries read, beside the folders of Python.
LIBRARIES = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache",
    "/dev/null", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo",
    "/sys/devices/system/cpu", "/sys/devices/system/node",
)  # fmt: skip
READ_FILE, READ_FOLDER, ANY_OF_13 = 1 << 2, 1 << 3, (1 << 13) - 1


def confine(package: str) -> str | None:
    """Confine this process, if it runs on Linux and one of the two architectures.

    Args:
        package: Folder of the package, whose files stay closed.

    Returns:
        Why the kernel did not do so; None if it did, or if it is another one.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES or sys.maxsize < 1 << 32:
        return None
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: int | bytes) -> int:
        words = [ctypes.c_ulong(x) if isinstance(x, int) else x for x in arguments]
        return libc.syscall(ctypes.c_long(number), *words)

    lines = b"".join(struct.pack("HBBI", *x) for x in program(machine, os.getpid()))
    held = ctypes.create_string_buffer(lines)
    counted = struct.pack("HP", len(lines) // 8, ctypes.addressof(held))
    # Both demand that there be no new privileges. Landlock binds this thread and those
    # that it begins; the filter, all at once.
    done = (
        libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
        and _close_files(call, package)
        and call(317 if machine == "x86_64" else 277, 1, 1, counted) == 0
    )
    return None if done else os.strerror(ctypes.get_errno())


def program(machine: str, process: int) -> list[tuple[int, int, int, int]]:
    """Return the filter of system calls.

    Args:
        machine: A key of `ARCHITECTURES`.
        process: Number of this process.

    Returns:
        Instructions: a code, how many lines to skip if it holds and if not, a number.
    """
    column = list(ARCHITECTURES).index(machine)
    lines = [
        (LOAD, 0, 0, 4),
        (IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
        (IF_AT_LEAST, 0, 1, NEWEST),
        (RETURN, 0, 0, UNKNOWN),
    ]
    for number in REFUSED.split()[1 + column :: 3]:
        if number != "-":
            lines += [(IF_EQUAL, 0, 1, int(number)), (RETURN, 0, 0, REFUSE)]
    # Some depend on an argument: files may be read, and threads begin. Each has two
    # halves; only of an address do both count.
    for numbers, halves, test, value, verdict in (
        ((2, None), [2], IF_ANY_BIT, WRITING, REFUSE),  # open
        ((257, 56), [4], IF_ANY_BIT, WRITING, REFUSE),  # openat
        ((56, 220), [0], IF_ANY_BIT, CLONE_THREAD, ALLOW),  # clone
        ((234, 131), [0], IF_EQUAL, process, ALLOW),  # tgkill
        ((302, 261), [4, 5], IF_ANY_BIT, 0xFFFFFFFF, REFUSE),  # prlimit64: new ones
        ((72, 25), [2], IF_ANY_BIT, 8, REFUSE),  # fcntl: F_SETOWN signals to others
    ):
        if (number := numbers[column]) is None:
            continue
        lines.append((IF_EQUAL, 0, 3 * len(halves) + 1, number))
        for half in halves:
            lines += [(LOAD, 0, 0, 16 + 4 * half), (test, 0, 1, value)]
            lines.append((RETURN, 0, 0, verdict))
        lines.append((RETURN, 0, 0, ALLOW if verdict == REFUSE else REFUSE))
    return [*lines, (RETURN, 0, 0, ALLOW)]


def _close_files(call: Callable[..., int], package: str) -> bool:
    # The calls of Landlock: create a set of rules, add one, restrict this process.
    rules = call(444, struct.pack("Q", ANY_OF_13), 8, 0)
    if rules < 0:
        return True  # an older kernel, or one that was started without it
    roots = [*sys.path, f"{sys.prefix}/lib", f"{sys.base_prefix}/lib", *LIBRARIES]
    roots += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for root in {os.path.realpath(x) for x in roots if x}:
        for path, access in _readable(root, package):
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue  # not every system has all of them
            call(445, rules, 1, struct.pack("=Qi", access, opened), 0)
            os.close(opened)
    return call(446, rules, 0) == 0


def _readable(path: str, package: str) -> Iterator[tuple[str, int]]:
    # A rule holds for all beneath. Of a folder with the package, only the names of its
    # files may be read; each of them that is not the package gets a rule of its own.
    if f"{path}/".startswith(f"{package}/"):
        return
    if not package.startswith(f"{path}/"):
        yield path, READ_FILE | READ_FOLDER * os.path.isdir(path)
        return
    yield path, READ_FOLDER
    for entry in os.scandir(path):
        if not entry.is_symlink():
            yield from _readable(entry.path, package)
