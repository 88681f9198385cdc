"""Every field of a configuration that this package writes is explained to a reader."""

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from helpers.triton import backend_of, native
from helpers.triton.config_reference import UNKNOWN, configuration_table, describe_config, meaning

WRITTEN = sorted((Path(__file__).parent / "native").rglob("*.pbtxt"))


def parsed(text):
    return text_format.Parse(text, ModelConfig())


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_field_of_a_written_configuration_is_explained(path):
    message = parsed(path.read_text())

    lines = list(describe_config(message))

    assert UNKNOWN not in {why for *_, why in lines}
    told = {field.split()[0].partition("_")[0] for field, *_ in lines}
    set_fields = {field.name.partition("_")[0] for field, _ in message.ListFields()}
    optimization = "cuda" if message.optimization.cuda.graphs else "execution"
    said_otherwise = {"dynamic": "preferred", "optimization": optimization, "ensemble": "step"}
    assert {said_otherwise.get(name, name) for name in set_fields} <= told


def test_every_native_backend_is_explained():
    for backend in native.BACKENDS.values():
        assert meaning(backend.name, "backends") != UNKNOWN
        assert backend_of(ModelConfig(platform=backend.platform)) == backend.name
        assert UNKNOWN not in {meaning(name, "parameters") for name in backend.parameters}
    for _, accelerator in native.ACCELERATORS.values():
        assert meaning(accelerator, "accelerators") != UNKNOWN


def test_the_batcher_is_explained_where_there_is_none():
    lines = {field: rest for field, *rest in describe_config(parsed('name: "m"'))}

    why = "No dynamic batcher. Each request is executed alone."
    assert lines["dynamic_batching"] == ["none", why]
    assert lines["max_batch_size"][0] == "0"


def test_a_field_that_is_new_is_shown_and_not_hidden():
    message = parsed('name: "m" parameters { key: "new" value { string_value: "7" } }')

    assert ("parameters new", "7", UNKNOWN) in list(describe_config(message))


def test_the_file_itself_is_folded_below_and_escaped(tmp_path):
    path = tmp_path / "m" / "config.pbtxt"
    path.parent.mkdir()
    path.write_text('name: "<b>"')

    html = configuration_table(parsed(path.read_text()), path).html

    assert "<details><summary>m/config.pbtxt</summary><pre>name: &quot;&lt;b&gt;&quot;" in html
    assert "<b>" not in html
