"""The compose file, against the Compose specification's JSON schema (the copy that
check-jsonschema carries), and what it and the Dockerfile promise. `test_image` builds the images.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from jsonschema.validators import validator_for

import helpers
from helpers.store.paths import ROOT
from helpers.triton.containers import HOST_OUTPUTS_VARIABLE
from helpers.triton.process import SETTINGS, SPIN

COMPOSE = ROOT / "docker/compose.yaml"
EXACT = re.compile(r"[a-z0-9./-]+:\d+\.\d+(\.\d+)?(-[a-z0-9]+)*")


@pytest.fixture
def services():
    return yaml.safe_load(COMPOSE.read_text())["services"]


@pytest.fixture(scope="module")
def faults():
    """What is wrong with a compose file, by the schema."""
    origin = Path(find_spec("check_jsonschema").origin)
    path = origin.parent / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(path.read_text())
    assert schema["title"] == "Compose Specification"
    validator = validator_for(schema)(schema)
    return lambda text: [fault.message for fault in validator.iter_errors(yaml.safe_load(text))]


def test_it_is_valid_by_the_specifications_schema_which_refuses_what_is_wrong(faults):
    assert faults(COMPOSE.read_text()) == []
    assert "network_mode: host" in COMPOSE.read_text()
    assert faults(COMPOSE.read_text().replace("network_mode: host", "network: host"))


def test_images_are_of_exact_releases(services):
    assert services["triton"]["image"] == "nvcr.io/nvidia/tritonserver:24.10-py3"
    assert services["lab"]["image"] == f"triton-notebooks-lab:{helpers.__version__}"
    bases = re.findall(r"^FROM (\S+:\S+)", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert len(bases) == 2
    assert all(EXACT.fullmatch(base) for base in bases)
    build = f"--target {services['lab']['build']['target']} --tag {services['lab']['image']} ."
    assert build in (ROOT / "docker/Dockerfile").read_text()
    cpu = f"--target cpu --tag triton-notebooks:{helpers.__version__} ."
    assert cpu in (ROOT / "docker/Dockerfile").read_text()
    lines = [
        re.findall(r"^docker build .*", (ROOT / name).read_text(), re.MULTILINE)
        for name in ("README.md", "docker/README.md")
    ]
    assert lines[0] == lines[1]
    assert cpu in lines[0][0]


def test_no_service_is_root_or_listens_to_others(services):
    for service in services.values():
        assert service["user"] == "${HOST_UID:-1000}:${HOST_GID:-1000}"
        assert not service.get("privileged")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert (services["lab"]["network_mode"], services["triton"]["ipc"]) == ("host", "host")
    words = (ROOT / "docker/Dockerfile").read_text().splitlines()
    assert [line for line in words if line.startswith("USER ")] == ["USER lab"] * 2
    assert words[-1] == 'CMD ["jupyter", "lab", "--ip=127.0.0.1", "--no-browser"]'


def test_a_gpu_is_reserved_only_where_it_is_asked_for(services):
    assert services["triton"]["profiles"] == ["gpu"]
    (device,) = services["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert "profiles" not in services["lab"]
    assert "deploy" not in services["lab"]


def test_the_lab_knows_where_its_outputs_lie_on_the_host(services):
    given = services["lab"]["environment"][HOST_OUTPUTS_VARIABLE]
    mounts = {mount["target"]: mount["source"] for mount in services["lab"]["volumes"]}
    assert mounts["/lab/project/outputs"] == given
    assert "WORKDIR /lab/project" in (ROOT / "docker/Dockerfile").read_text()
    (mount,) = [each for each in services["lab"]["volumes"] if "DATA" in each["source"]]
    assert mount["source"] == "${DATA:-${PWD}/data}"
    assert (mount["target"], mount["read_only"]) == ("/lab/project/data", True)
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docker/*.md")]
    assert any("mkdir -p outputs/served data " in path.read_text() for path in documents)


def test_the_lab_computes_with_the_settings_of_the_servers():
    text, usual = (ROOT / "docker/Dockerfile").read_text(), SETTINGS | {SPIN: "1000"}

    assert f"ENV {' '.join(f'{name}={value}' for name, value in usual.items())}\n" in text


def test_the_image_is_built_from_named_files_only():
    first, *rest = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert first == "*"
    allowed = {line[1:] for line in rest if line.startswith("!")}
    lines = (ROOT / "docker/Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    named = {name for names in copied for name in names if not name.startswith(("--", "/"))}
    assert named == allowed
    assert all(list(ROOT.glob(name)) for name in named)
