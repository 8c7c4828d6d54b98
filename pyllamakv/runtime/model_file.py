"""A model file, looked at before the library opens it: the mistakes that users make get plain words."""

from __future__ import annotations

import struct
from pathlib import Path

from ..errors import ModelLoadError

__all__ = ["check_model_file"]

# Magic numbers of files that people hand to a GGUF loader.
_OTHERS = {
    b"PK\x03\x04": "a ZIP archive (a PyTorch checkpoint?)",
    b"\x80\x02": "a Python pickle",
    b"GGLA": "a LoRA file of the old format",
    b"ggjt": "a GGML file of 2023, which today's llama.cpp does not read",
    b"tjgg": "a GGML file of 2023, which today's llama.cpp does not read",
    b"lmgg": "a GGML file of 2023, which today's llama.cpp does not read",
    b"<htm": "a web page (a download that went wrong?)",
    b"<!DO": "a web page (a download that went wrong?)",
    b"vers": "a Git LFS pointer: fetch the file itself",
}


def check_model_file(path: Path) -> None:
    """Raise ModelLoadError where ``path`` is no readable GGUF of a known version; the rest is the library's to say."""
    try:
        if path.is_dir():
            raise ModelLoadError(f"{path} is a folder; give the .gguf file in it")
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(24)
    except (OSError, ValueError) as err:
        if isinstance(err, ModelLoadError):
            raise
        reason = "does not exist" if isinstance(err, FileNotFoundError) else f"cannot be read: {err}"
        raise ModelLoadError(f"the model {path} {reason}") from err
    if head[:4] != b"GGUF":
        what = next((w for magic, w in _OTHERS.items() if head.startswith(magic)), f"begins with {head[:4]!r}")
        raise ModelLoadError(f"{path} is no GGUF file: it is {what}" if head else f"{path} is empty")
    if len(head) < 24:
        raise ModelLoadError(f"{path} ends after {size} bytes, inside of the GGUF header: the download is not complete")
    version, n_tensors, n_pairs = struct.unpack("<IQQ", head[4:])
    if version not in (2, 3):
        turned = struct.unpack(">I", head[4:8])[0]
        why = "it is of the other byte order" if turned in (2, 3) else "this library reads 2 and 3"
        raise ModelLoadError(f"{path} has GGUF version {version}; {why}")
    # A tensor takes at least 24 bytes of header, a key-value pair 13: more of them than fit means damage.
    if n_tensors * 24 + n_pairs * 13 > size:
        raise ModelLoadError(
            f"{path} says that it has {n_tensors} tensors and {n_pairs} metadata pairs, but it is {size} bytes long: "
            "the file is damaged"
        )
