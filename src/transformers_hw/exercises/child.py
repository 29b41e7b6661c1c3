"""The process that a submission runs in; see `isolation`.

It reads a request from standard input, limits itself, runs the file, and writes one
line of JSON. It never imports the package: the solutions must stay out of reach.

Python's audit hooks tell of what a file reaches for, and say it in words. Compiled code
passes them unseen: limits of the process and `confinement` bind it, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

# Events of Python's audit hooks that reach beyond the process.
REACHING_OUT = (
    "_winapi.Create", "ctypes.", "os.chflags", "os.chmod", "os.chown", "os.exec",
    "os.fork", "os.kill", "os.link", "os.mkdir", "os.posix_spawn", "os.remove",
    "os.rename", "os.rmdir", "os.setxattr", "os.spawn", "os.startfile", "os.symlink",
    "os.system", "os.truncate", "os.utime", "pty.", "resource.", "shutil.", "signal.",
    "socket.", "sqlite3.", "subprocess.", "tempfile.", "webbrowser.",
)  # fmt: skip
# Modules that do so without one, so that their import counts.
UNHEARD = ("_posixshmem", "_posixsubprocess", "readline")
# Functions that do, too. Each gets an event of its own name.
UNANNOUNCED = (
    "os.mkfifo", "os.mknod", "posix.mkfifo", "posix.mknod", "subprocess._fork_exec",
    "torch.distributed.TCPStore", "torch.from_file", "torch.save",
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    # Whatever the file prints goes nowhere; the reply has a channel of its own.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    with open(request["file"], encoding="utf-8", errors="replace") as file:
        source = file.read()
    hidden = os.path.realpath(request["hidden"])
    # Before the limits: importing takes time, opens libraries and looks for them with
    # the help of other programs.
    kinds, confinement = _load(hidden, "kinds"), _load(hidden, "confinement")
    _import_libraries(source)
    _limit(request["seconds"], request["megabytes"])
    # Before the hooks, which forbid what it does.
    refusal = confinement.confine(os.path.dirname(hidden))
    forbidden: list[str] = []
    _forbid(forbidden, hidden)
    nothing: dict[str, Any] = {"outcomes": [], "answer": None, "error": None}
    try:
        if refusal is not None:
            raise OSError(f"it was not run, as the kernel cannot confine it: {refusal}")
        reply = nothing | _answer(kinds, source, request)
        json.dumps(reply)
    except BaseException as error:
        # SystemExit and KeyboardInterrupt are answers, too.
        reply = nothing | {"error": _said(error)}
    reply["forbidden"] = forbidden[0] if forbidden else None
    channel.write("\n" + json.dumps(reply) + "\n")
    channel.flush()
    # At once: no exit handler of the file runs.
    os._exit(0)


def _load(folder: str, name: str) -> Any:
    path = os.path.join(folder, f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _import_libraries(source: str) -> None:
    import einops  # noqa: F401

    if "torch" in source:
        import torch

        torch.set_num_threads(1)


def _limit(seconds: float, megabytes: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows, where the clock alone limits
        return

    def lower(what: int, soft: int, hard: int) -> None:
        _, most = resource.getrlimit(what)
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        # Some systems know a limit and do not let it be set.
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (soft, hard))

    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime + seconds) + 1
    lower(resource.RLIMIT_CPU, cpu, cpu + 1)
    lower(resource.RLIMIT_AS, megabytes << 20, megabytes << 20)
    lower(resource.RLIMIT_CORE, 0, 0)
    # Files get no bytes, whoever writes them. The reply goes through a pipe.
    lower(resource.RLIMIT_FSIZE, 0, 0)
    # No new processes, nor threads on Linux; root is not bound by it.
    lower(resource.RLIMIT_NPROC, 0, 0)
    signal.setitimer(signal.ITIMER_REAL, seconds)  # ends those that only wait


def _forbid(found: list[str], hidden: str) -> None:
    # Loaded now, so that libraries can import it; what it builds on is imported by
    # those alone who mean to go around it.
    import subprocess  # noqa: F401

    for name in UNHEARD:
        sys.modules.pop(name, None)
    for name in UNANNOUNCED:
        module, _, function = name.rpartition(".")
        if hasattr(sys.modules.get(module), function):
            setattr(sys.modules[module], function, _announcing(name))

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        deed = None
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & WRITING:
                deed = f"writes to {path!r}"
            elif not isinstance(path, int):
                deed = _reading(path, hidden)
        elif event == "import" and str(arguments[0]).startswith("transformers_hw"):
            deed = "imports the book's own code"
        elif event == "import" and str(arguments[0]).rpartition(".")[2] in UNHEARD:
            deed = f"imports {arguments[0]}"
        elif event.startswith(REACHING_OUT) or event in UNANNOUNCED:
            deed = f"calls {event}"
        if deed is not None:
            found.append(deed)
            raise PermissionError(f"a submission may not do this: it {deed}.")

    sys.addaudithook(watch)


def _announcing(name: str) -> Callable[..., None]:
    return lambda *_, **__: sys.audit(name)


def _reading(path: Any, hidden: str) -> str | None:
    # Text, bytes or a Path, with links followed; some systems ignore case.
    real = os.path.realpath(os.fsdecode(path))
    if real.casefold().startswith(hidden.casefold()):
        return "reads the exercises' solutions"
    # Paths relative to an open folder are announced without it.
    return f"opens the folder {real!r}" if os.path.isdir(real) else None


def _answer(kinds: Any, source: str, request: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "submission"}
    exec(compile(source, os.path.basename(request["file"]), "exec"), names)
    name = request["name"]
    if name not in names:
        return {"error": f"The file defines no {name!r}."}
    if names[name] is ...:
        return {"error": "There is no answer yet. Write it in place of the three dots."}
    if request["arguments"] is None:
        return {"answer": kinds.encode(kinds.plain(names[name]))}
    cases = [tuple(case) for case in kinds.decode(request["cases"])]
    outcomes = kinds.run(names[name], cases, request["arguments"], names.get("array"))
    return {"outcomes": [kinds.encode(vars(outcome)) for outcome in outcomes]}


def _said(error: BaseException) -> str:
    text = f"The file stopped with {type(error).__name__}"
    with suppress(Exception):  # what the file raises may refuse to be printed
        text += f": {error}"
    if isinstance(error, PermissionError) and error.errno:
        text += ". An answer can read the files of libraries, and write none."
    return text[:2000]


if __name__ == "__main__":
    main()
