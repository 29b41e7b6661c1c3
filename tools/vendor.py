"""Fetch the pinned fonts, KaTeX and axe into the tree: `python tools/vendor.py`.

The site asks no other host for anything, so what a page needs is committed. Each
npm tarball must match the integrity written here, and what is kept is recorded in
`tools/vendored.sha256`, which `sha256sum --check` and the tests read. Needs npm.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tools/vendored.sha256"
#: Published with the site, and used only while building or testing it.
SHOWN, HIDDEN = "docs/assets/vendor", "tools/vendor"

# The older formats serve no browser made since 2016, and would be dead links here.
OLD_FONT_FORMATS = re.compile(r',url\([^)]*\.(?:woff|ttf)\) format\("[a-z]+"\)')


@dataclass(frozen=True)
class Package:
    """One npm package: its pin, and where each wanted file goes."""

    name: str
    version: str
    integrity: str
    wanted: dict[str, str]


def font(name: str, version: str, integrity: str, styles: str) -> Package:
    """Give the latin and greek cuts of one variable font."""
    return Package(
        f"@fontsource-variable/{name}",
        version,
        integrity,
        {
            rf"files/{name}-(latin|greek)-wght-({styles})\.woff2": f"{SHOWN}/{name}",
            "LICENSE": f"{SHOWN}/{name}",
        },
    )


PACKAGES = [
    Package(
        "katex",
        "0.19.1",
        "sha512-jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgR"
        "hKvr5614uRrEfA==",
        {
            r"dist/katex\.min\.css": f"{SHOWN}/katex",
            r"dist/fonts/.*\.woff2": f"{SHOWN}/katex/fonts",
            r"dist/katex\.min\.js": f"{HIDDEN}/katex",
            "LICENSE": f"{SHOWN}/katex",
        },
    ),
    font(
        "source-serif-4",
        "5.3.1",
        "sha512-4Rtay22SC4lMvw11r/+9kxANB6P3M0X8s1NudBC2v0J1KU2y3DcMoNcT3lBoZ/CqLirzf+St"
        "lO6UlJilyrvaUg==",
        "normal|italic",
    ),
    font(
        "inter",
        "5.3.0",
        "sha512-OupL48va4JNofb97w6NYeF9S7W/kHNKM0Er8Dem5nqi4jeOLrVJDoE8tZEpnMJmtkvNbB1EI"
        "PPwHcdkF6b1oUA==",
        "normal",
    ),
    font(
        "jetbrains-mono",
        "5.3.0",
        "sha512-F32xpS2NsGYoQi2ADSkKTgpJj7ozajsGgDJ8woTnqjmIB+dxDIqImjl4pXZVEExu8UFZ2ndh"
        "mX18EBS/hdz3Lw==",
        "normal|italic",
    ),
    Package(
        "axe-core",
        "4.14.0",
        "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0d"
        "wNDz2GOm3zzpcQ==",
        {
            r"axe\.min\.js": f"{HIDDEN}/axe-core",
            r"LICENSE(-3RD-PARTY\.txt)?": f"{HIDDEN}/axe-core",
        },
    ),
]


def fetch(package: Package, scratch: Path) -> Path:
    """Download a package's tarball and check it against its pin."""
    pin = f"{package.name}@{package.version}"
    command = ["npm", "pack", pin, "--silent", "--pack-destination", str(scratch)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    archive = scratch / done.stdout.split()[-1]
    digest = hashlib.sha512(archive.read_bytes()).digest()
    found = "sha512-" + base64.b64encode(digest).decode()
    if found != package.integrity:
        raise SystemExit(f"{pin}: wanted {package.integrity}, npm gave {found}")
    return archive


def unpack(package: Package, archive: Path) -> dict[str, bytes]:
    """Pick the wanted files out of a tarball, by their place in the tree."""
    kept: dict[str, bytes] = {}
    missing = set(package.wanted)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            inside = member.name.removeprefix("package/")
            for pattern, target in package.wanted.items():
                content = tar.extractfile(member)
                if content is None or not re.fullmatch(pattern, inside):
                    continue
                data = content.read()
                if inside.endswith(".css"):
                    data = OLD_FONT_FORMATS.sub("", data.decode()).encode()
                kept[f"{target}/{Path(inside).name}"] = data
                missing.discard(pattern)
    if missing:
        raise SystemExit(f"{package.name}@{package.version}: no file {sorted(missing)}")
    return kept


def main() -> None:
    """Fetch everything, then replace the vendored files and their record."""
    files: dict[str, bytes] = {}
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as scratch:
            files |= unpack(package, fetch(package, Path(scratch)))
    for folder in (SHOWN, HIDDEN):
        for old in (ROOT / folder).rglob("*"):
            if old.is_file():
                old.unlink()
    lines = []
    for place, data in sorted(files.items()):
        (ROOT / place).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / place).write_bytes(data)
        lines.append(f"{hashlib.sha256(data).hexdigest()}  {place}\n")
    RECORD.write_text("".join(lines), "utf-8")
    print(f"{len(files)} files, recorded in {RECORD.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
