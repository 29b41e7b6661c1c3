"""Fetching a file: the right one, or none."""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from transformers_hw.lab.bars import bar
from transformers_hw.lab.files import whole_file


class DownloadError(RuntimeError):
    """A file could not be fetched, or what came was not that file."""


def download(url: str, path: Path, *, sha256: str, timeout: float = 30.0) -> None:
    """Fetch a file, unless it is there already.

    What comes is compared with the checksum before it gets its name, so that there
    is never half a file or a wrong one under it.

    Args:
        url: Where it is.
        path: Where to put it.
        sha256: The checksum of the right file, in hexadecimal digits.
        timeout: How many seconds the server may keep silent.

    Raises:
        DownloadError: If there is no connection, or it breaks; if the server has no
            such file, or sends another one.
    """
    if path.is_file():
        if _sha256(path) == sha256:
            return
        path.unlink()
    request = urllib.request.Request(url, headers={"User-Agent": "transformers_hw"})
    try:
        with (
            whole_file(path) as temporary,
            urllib.request.urlopen(request, timeout=timeout) as response,
        ):
            expected = response.length
            shown = {"desc": path.name, "unit": "B", "unit_scale": True}
            with temporary.open("wb") as file, bar(total=expected, **shown) as received:
                while piece := response.read(1 << 16):
                    file.write(piece)
                    received.update(len(piece))
            _check(temporary, expected, response.headers.get_content_type(), sha256)
    except DownloadError as error:
        raise DownloadError(f"{url}: {error} {_by_hand(path)}") from None
    except urllib.error.HTTPError as error:
        error.close()
        raise DownloadError(
            f"{url}: the server answered {error.code} {error.reason}. {_by_hand(path)}"
        ) from error
    # A timeout is an OSError, and so is a refused or broken connection.
    except (http.client.HTTPException, urllib.error.URLError, OSError) as error:
        raise DownloadError(
            f"{url}: the connection failed ({error}). {_by_hand(path)}"
        ) from error


def _check(path: Path, expected: int | None, kind: str, sha256: str) -> None:
    size = path.stat().st_size
    if expected is not None and size < expected:
        raise DownloadError(f"the connection broke after {size} of {expected} bytes.")
    found = _sha256(path)
    if found != sha256:
        page = " It looks like a web page." if kind == "text/html" else ""
        raise DownloadError(
            f"what came is another file: its SHA-256 should be {sha256}, "
            f"and is {found}.{page}"
        )


def _by_hand(path: Path) -> str:
    return f"Try again, or fetch it by other means and put it at {path}."


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
