from .artefacts import convert, export, inputs, require
from .cores import physical_cores, threads
from .datasets import (
    Prepared,
    checkpoint_file,
    dataset_folder,
    is_made,
    open_dataset,
    prepare,
    recipe_key,
    request,
    requests,
    served_dtype,
)
from .ensemble import Component
from .frameworks import framework_session

__all__ = [
    "Component",
    "Prepared",
    "checkpoint_file",
    "convert",
    "dataset_folder",
    "export",
    "framework_session",
    "inputs",
    "is_made",
    "open_dataset",
    "physical_cores",
    "prepare",
    "recipe_key",
    "request",
    "requests",
    "require",
    "served_dtype",
    "threads",
]
