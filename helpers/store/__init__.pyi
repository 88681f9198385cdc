from .artefacts import Artefact, find, is_unchanged, making, mark_red, verify
from .files import explained, link_or_copy, write_atomic
from .hashing import digest, file_digest, package_files
from .lock import LOCKED_VARIABLE, locked
from .paths import OUTPUTS_VARIABLE, ROOT, from_root, outputs, shown

__all__ = [
    "LOCKED_VARIABLE",
    "OUTPUTS_VARIABLE",
    "ROOT",
    "Artefact",
    "digest",
    "explained",
    "file_digest",
    "find",
    "from_root",
    "is_unchanged",
    "link_or_copy",
    "locked",
    "making",
    "mark_red",
    "outputs",
    "package_files",
    "shown",
    "verify",
    "write_atomic",
]
