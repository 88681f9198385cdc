"""The compose file, against the Compose specification's JSON schema (the copy that
check-jsonschema carries), and what it and the Dockerfile promise. `test_image` builds the images.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import yaml
from jsonschema.validators import validator_for

import helpers
from helpers.store.paths import ROOT
from helpers.triton.containers import HOST_OUTPUTS_VARIABLE
from helpers.triton.process import SETTINGS, SPIN

COMPOSE, DOCKERFILE = (
    (ROOT / "docker" / name).read_text() for name in ("compose.yaml", "Dockerfile")
)
SERVICES = yaml.safe_load(COMPOSE)["services"]
EXACT = re.compile(r"[a-z0-9./-]+:\d+\.\d+(\.\d+)?(-[a-z0-9]+)*")


def test_it_is_valid_by_the_specifications_schema_which_refuses_what_is_wrong():
    folder = Path(find_spec("check_jsonschema").origin).parent / "builtin_schemas/vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    assert schema["title"] == "Compose Specification"
    validator = validator_for(schema)(schema)
    wrong = COMPOSE.replace("network_mode: host", "network: host")

    assert [fault.message for fault in validator.iter_errors(yaml.safe_load(COMPOSE))] == []
    assert wrong != COMPOSE
    assert not validator.is_valid(yaml.safe_load(wrong))


def test_images_are_of_exact_releases():
    assert SERVICES["triton"]["image"] == "nvcr.io/nvidia/tritonserver:24.10-py3"
    assert SERVICES["lab"]["image"] == f"triton-notebooks-lab:{helpers.__version__}"
    bases = re.findall(r"^FROM (\S+:\S+)", DOCKERFILE, re.MULTILINE)
    assert [bool(EXACT.fullmatch(base)) for base in bases] == [True] * 2
    build = f"--target {SERVICES['lab']['build']['target']} --tag {SERVICES['lab']['image']} ."
    assert build in DOCKERFILE
    cpu = f"--target cpu --tag triton-notebooks:{helpers.__version__} ."
    assert cpu in DOCKERFILE
    lines = [
        re.findall(r"^docker build .*", (ROOT / name).read_text(), re.MULTILINE)
        for name in ("README.md", "docker/README.md")
    ]
    assert lines[0] == lines[1]
    assert cpu in lines[0][0]


def test_no_service_is_root_or_listens_to_others():
    for service in SERVICES.values():
        assert service["user"] == "${HOST_UID:-1000}:${HOST_GID:-1000}"
        assert not service.get("privileged")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert (SERVICES["lab"]["network_mode"], SERVICES["triton"]["ipc"]) == ("host", "host")
    words = DOCKERFILE.splitlines()
    assert [line for line in words if line.startswith("USER ")] == ["USER lab"] * 2
    assert words[-1] == 'CMD ["jupyter", "lab", "--ip=127.0.0.1", "--no-browser"]'


def test_a_gpu_is_reserved_only_where_it_is_asked_for():
    assert SERVICES["triton"]["profiles"] == ["gpu"]
    (device,) = SERVICES["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert not {"profiles", "deploy"} & {*SERVICES["lab"]}


def test_the_lab_knows_where_its_outputs_lie_on_the_host():
    given = SERVICES["lab"]["environment"][HOST_OUTPUTS_VARIABLE]
    mounts = {mount["target"]: mount["source"] for mount in SERVICES["lab"]["volumes"]}
    assert mounts["/lab/project/outputs"] == given
    assert "WORKDIR /lab/project" in DOCKERFILE
    (mount,) = [each for each in SERVICES["lab"]["volumes"] if "DATA" in each["source"]]
    assert mount["source"] == "${DATA:-${PWD}/data}"
    assert (mount["target"], mount["read_only"]) == ("/lab/project/data", True)
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docker/*.md")]
    assert any("mkdir -p outputs/served data " in path.read_text() for path in documents)


def test_the_lab_computes_with_the_settings_of_the_servers():
    usual = SETTINGS | {SPIN: "1000"}

    assert f"ENV {' '.join(f'{name}={value}' for name, value in usual.items())}\n" in DOCKERFILE


def test_the_image_is_built_from_named_files_only():
    ignored = re.findall(r"^[^#\n].*", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert ignored[0] == "*"
    copied = [line.split()[1:-1] for line in re.findall("^COPY .*", DOCKERFILE, re.MULTILINE)]
    named = {name for names in copied for name in names if not name.startswith(("--", "/"))}
    assert named == {line[1:] for line in ignored if line.startswith("!")}
    assert all(list(ROOT.glob(name)) for name in named)
