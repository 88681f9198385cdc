from .artifacts import (
    MANIFEST,
    Artifact,
    discard,
    find_artifact,
    is_away,
    is_unchanged,
    making,
    mark_failed,
    verify,
)
from .files import explained, link_or_copy, write_atomic
from .hashing import content_name, digest, file_digest, fingerprint, known_digest, package_files
from .home import environment, writable_home
from .imports import GRAMMARS, without
from .limits import (
    core_quota,
    free_memory,
    physical_cores,
    require_open_files,
    usable_cores,
    usable_memory,
)
from .lock import (
    LOCKED_VARIABLE,
    clear_leftovers,
    has_room,
    locked,
    require_unlocked,
    temporary_folder,
)
from .paths import OUTPUTS_VARIABLE, ROOT, display_path, from_root, outputs

__all__ = [
    "GRAMMARS",
    "LOCKED_VARIABLE",
    "MANIFEST",
    "OUTPUTS_VARIABLE",
    "ROOT",
    "Artifact",
    "clear_leftovers",
    "content_name",
    "core_quota",
    "digest",
    "discard",
    "display_path",
    "environment",
    "explained",
    "file_digest",
    "find_artifact",
    "fingerprint",
    "free_memory",
    "from_root",
    "has_room",
    "is_away",
    "is_unchanged",
    "known_digest",
    "link_or_copy",
    "locked",
    "making",
    "mark_failed",
    "outputs",
    "package_files",
    "physical_cores",
    "require_open_files",
    "require_unlocked",
    "temporary_folder",
    "usable_cores",
    "usable_memory",
    "verify",
    "without",
    "writable_home",
    "write_atomic",
]
