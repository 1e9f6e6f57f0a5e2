"""A checksum at the end of an exported file, so that a flipped bit in a weight is detected when it is loaded.

ONNX files are protocol buffers, to which fields can be appended: the seal is one more entry of the model's metadata,
`shoal_sha256`, and other programs read the file as before. It detects damage, not tampering.
"""

import hashlib

_KEY = b"shoal_sha256"
_DIGITS = 64
_BEFORE = bytes((0x72, len(_KEY) + _DIGITS + 4, 0x0A, len(_KEY))) + _KEY + bytes((0x12, _DIGITS))
"""Field 14, metadata_props, with a key and a value of these lengths."""


def sealed(model: bytes) -> bytes:
    """The file with its checksum appended."""
    return model + _BEFORE + _digest(model)


def intact(content: bytes) -> bool:
    """Whether a file matches its seal; a file without a seal is accepted."""
    place = len(content) - len(_BEFORE) - _DIGITS
    if content[place:-_DIGITS] != _BEFORE:
        return _KEY not in content  # something was appended to it
    return content[-_DIGITS:] == _digest(content[:place])


def _digest(model: bytes) -> bytes:
    return hashlib.sha256(model).hexdigest().encode()
