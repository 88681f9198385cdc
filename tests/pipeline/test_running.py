"""What a run leaves of a stage that it does not execute."""

import pytest

from tests.conftest import Project

pytestmark = pytest.mark.slow

CONVERT = ("run", "params/dummy.yaml", "--experiment", "onnx-fp32", "--stage", "convert")


def test_a_stage_that_is_blocked_says_so_on_its_page_and_holds_again_afterwards(
    project: Project,
) -> None:
    folder = project.target / "dummy/onnx-fp32"
    export, page = folder / "export.json", folder / "convert.html"
    content, before = export.read_text(), project.result("onnx-fp32", "convert")
    assert '"state": "done"' in content
    export.write_text(content.replace('"state": "done"', '"state": "failed"'))

    answer = project.run(*CONVERT)
    blocked = project.result("onnx-fp32", "convert")

    assert answer.code == 1
    assert blocked.state == "blocked"
    assert blocked.rungs == before.rungs
    assert "blocked by export, which is failed" in page.read_text()

    export.write_text(content)
    answer = project.run(*CONVERT)

    assert (answer.code, answer.executed()) == (0, [])
    assert project.result("onnx-fp32", "convert") == before
    assert "blocked by export" not in page.read_text()
