"""Fetch the pinned fonts, KaTeX and axe into the tree: `python tools/vendor.py`.

The site asks no other host for anything, so what a page needs is committed. Each npm
tarball must match the integrity written here, and what is kept is recorded in
`tools/vendored.sha256`, which `sha256sum --check` and the tests read. Needs npm.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).with_name("vendored.sha256")
ASSETS = "docs/assets/vendor"
# The older formats serve no browser made since 2016, and would be dead links here.
OLD_FONT_FORMATS = re.compile(r',url\([^)]*\.(?:woff|ttf)\) format\("[a-z]+"\)')


def font(name: str, styles: str) -> dict[str, str]:
    """Want the Latin and Greek files of a variable font."""
    files = rf"files/{name}-(latin|greek)-wght-({styles})\.woff2"
    return {files: f"{ASSETS}/{name}", "LICENSE": f"{ASSETS}/{name}"}


#: For each pin, its integrity, and the folder of every wanted file.
PACKAGES = {
    "katex@0.19.1": (
        "jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr56"
        "14uRrEfA==",
        {
            r"dist/katex\.min\.css": f"{ASSETS}/katex",
            r"dist/fonts/.*\.woff2": f"{ASSETS}/katex/fonts",
            r"dist/katex\.min\.js": "bookbinding/src/bookbinding/vendor",
            "LICENSE": f"{ASSETS}/katex",
        },
    ),
    "@fontsource-variable/source-serif-4@5.3.1": (
        "4Rtay22SC4lMvw11r/+9kxANB6P3M0X8s1NudBC2v0J1KU2y3DcMoNcT3lBoZ/CqLirzf+StlO6UlJ"
        "ilyrvaUg==",
        font("source-serif-4", "normal|italic"),
    ),
    "@fontsource-variable/inter@5.3.0": (
        "OupL48va4JNofb97w6NYeF9S7W/kHNKM0Er8Dem5nqi4jeOLrVJDoE8tZEpnMJmtkvNbB1EIPPwHcd"
        "kF6b1oUA==",
        font("inter", "normal"),
    ),
    "@fontsource-variable/jetbrains-mono@5.3.0": (
        "F32xpS2NsGYoQi2ADSkKTgpJj7ozajsGgDJ8woTnqjmIB+dxDIqImjl4pXZVEExu8UFZ2ndhmX18EB"
        "S/hdz3Lw==",
        font("jetbrains-mono", "normal|italic"),
    ),
    "axe-core@4.14.0": (
        "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2G"
        "Om3zzpcQ==",
        {r"axe\.min\.js|LICENSE(-3RD-PARTY\.txt)?": "tools/vendor/axe-core"},
    ),
}


def fetch(pin: str, integrity: str, wanted: dict[str, str]) -> dict[str, bytes]:
    """Download a package, check it, and return the wanted files by their place."""
    kept: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as scratch:
        command = ["npm", "pack", pin, "--silent", "--pack-destination", scratch]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        archive = Path(scratch) / done.stdout.split()[-1]
        found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != integrity:
            raise SystemExit(f"{pin}: wanted sha512-{integrity}, npm gave {found}")
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                inside = member.name.removeprefix("package/")
                for pattern, folder in wanted.items():
                    content = tar.extractfile(member)
                    if content and re.fullmatch(pattern, inside):
                        data = content.read()
                        if inside.endswith(".css"):
                            data = OLD_FONT_FORMATS.sub("", data.decode()).encode()
                        kept[f"{folder}/{Path(inside).name}"] = data
    return kept


def main() -> None:
    """Fetch everything, then replace the vendored files and their record."""
    files: dict[str, bytes] = {}
    for pin, (integrity, wanted) in PACKAGES.items():
        files |= fetch(pin, integrity, wanted)
    for line in RECORD.read_text("utf-8").splitlines():
        (ROOT / line.split()[1]).unlink(missing_ok=True)
    lines: list[str] = []
    for place, data in sorted(files.items()):
        (ROOT / place).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / place).write_bytes(data)
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {place}\n")
    RECORD.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    main()
