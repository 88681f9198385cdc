from .anatomy import counted, layers, operators, show_calls, signature
from .artifacts import asked, build, convert, export, inputs, is_as_exported, require
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
    some,
)
from .ensemble import Component, framework_session, physical_cores, threads
from .work import GraphCost, exported_work

__all__ = [
    "Component",
    "GraphCost",
    "Prepared",
    "asked",
    "build",
    "checkpoint_place",
    "convert",
    "counted",
    "dataset_place",
    "export",
    "exported_work",
    "framework_session",
    "inputs",
    "is_as_exported",
    "layers",
    "open_dataset",
    "operators",
    "physical_cores",
    "prepare",
    "recipe_folder",
    "request",
    "requests",
    "require",
    "served_dtype",
    "show_calls",
    "signature",
    "some",
    "threads",
]
