"""DLRM on Triton: a lookup and a dense graph, as all of this family."""

from helpers.models._criteo.ensemble import FOLDER, RUNTIME, dense, load, mapped, sparse, write

__all__ = ["FOLDER", "RUNTIME", "dense", "load", "mapped", "sparse", "write"]
