from .artefacts import convert, export, inputs, require
from .datasets import (
    Prepared,
    checkpoint_place,
    dataset_place,
    open_dataset,
    prepare,
    recipe_folder,
    request,
    requests,
    served_dtype,
)
from .ensemble import Component, framework_session, physical_cores, threads
from .work import Work, exported_work

__all__ = [
    "Component",
    "Prepared",
    "Work",
    "checkpoint_place",
    "convert",
    "dataset_place",
    "export",
    "exported_work",
    "framework_session",
    "inputs",
    "open_dataset",
    "physical_cores",
    "prepare",
    "recipe_folder",
    "request",
    "requests",
    "require",
    "served_dtype",
    "threads",
]
