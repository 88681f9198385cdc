from .artifacts import (
    MANIFEST,
    Artifact,
    create_artifact,
    find_artifact,
    is_remote,
    is_unchanged,
    mark_failed,
    remove_artifact,
    verify,
)
from .files import link_or_copy, report_write_errors, write_atomic
from .hashing import content_name, digest, file_digest, fingerprint, known_digest, package_files
from .home import environment, writable_home
from .imports import GRAMMARS, block_import
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
    "block_import",
    "clear_leftovers",
    "content_name",
    "core_quota",
    "create_artifact",
    "digest",
    "display_path",
    "environment",
    "file_digest",
    "find_artifact",
    "fingerprint",
    "free_memory",
    "from_root",
    "has_room",
    "is_remote",
    "is_unchanged",
    "known_digest",
    "link_or_copy",
    "locked",
    "mark_failed",
    "outputs",
    "package_files",
    "physical_cores",
    "remove_artifact",
    "report_write_errors",
    "require_open_files",
    "require_unlocked",
    "temporary_folder",
    "usable_cores",
    "usable_memory",
    "verify",
    "writable_home",
    "write_atomic",
]
