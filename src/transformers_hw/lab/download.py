"""Downloading a file: the right one, or none."""

import hashlib
import http.client
import socket
from pathlib import Path

from torch.hub import download_url_to_file


class DownloadError(RuntimeError):
    """A file could not be downloaded, or its checksum is wrong."""


def download(url: str, path: Path, *, sha256: str, timeout: float = 30.0) -> None:
    """Download a file, unless it is there already.

    The checksum is verified before the file gets its name, so that there is never an
    incomplete or wrong file at `path`.

    Args:
        url: Address of the file.
        path: Where to put it.
        sha256: SHA-256 of the file, in hexadecimal digits.
        timeout: Seconds to wait for the server.

    Raises:
        DownloadError: The connection fails or breaks, the server has no such file, or
            it sends another one.
    """
    if path.is_file():
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(timeout)
    try:
        download_url_to_file(url, str(path), hash_prefix=sha256)
    # A wrong checksum is a RuntimeError; errors of HTTP and timeouts are OSErrors.
    except (RuntimeError, OSError, http.client.HTTPException) as error:
        raise DownloadError(
            f"{url} could not be downloaded: {error}. Try again, or download it by "
            f"other means to {path}."
        ) from error
    finally:
        socket.setdefaulttimeout(before)
