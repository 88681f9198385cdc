"""One language: standard terms, short sentences, and documents whose links and commands work."""

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.main import get_command

from helpers.__main__ import app, main
from helpers.report.documents import anchor
from helpers.results import Row
from helpers.store.paths import OUTPUTS_VARIABLE, ROOT
from tests.report.test_glossary import FORMERLY, terms
from tests.test_conventions import committed

MOST_WORDS = 25  # of a sentence
LONG_SHARE = 0.05  # of the sentences of a text, that may have more; one may in any
NOTEBOOK_WORDS, README_WORDS, DOCUMENT_LINES = 300, 1200, 200

# Words that only this package used, where its glossary has a standard term. A pattern is matched
# without case, and a space in it also by a line break. Where a word has other senses, the pattern
# has enough of its neighbours to tell.
BANNED = {
    r"\bartefacts?\b": "artifact",
    r"\bladder\b": "parity checks",
    r"\brungs?\b": "parity check",
    r"\b(?:is|are|was|were|be|being|went|goes|a) (?:red|green)\b": "failed, passed",
    r"\bbounds? (?:of|for) (?:accuracy|the|its|their|outputs?|fp32|fp16|bf16|int8|latency)\b"
    r"|\b(?:within|keeps?|kept|h[oe]lds?|exceeds?|besides?) (?:its|their|the|these|those) bounds?\b"
    r"|\bthe bounds (?:are|follow|that)\b|\bwithin (?:wider )?bounds\b": "tolerance",
    r"\bagreement\b": "match rate",
    r"\bframework's\b|\bframework (?:outputs?|reference)\b": "the reference",
    r"(?:\b(?:a|the|of|to|than|over|and|is)|\bserved /) bare\b(?! (?:machine|metal|name|hands))"
    r"|\bbare (?:served|runtime|call|throughput|session|measurement|run)\b": "in-process",
    r"\b(?:floors? of serving|beyond its floor|(?:serving|noise|the|this|that) floor)\b": (
        "no-op model, run-to-run variation"
    ),
    r"\bpaces?\b": "machine speed",
    r"\bpatien(?:ce|t)\b": "retry budget",
    r"\bverdicts?\b": "measurement quality",
    r"\bwide (?:rows?|measurements?|points?|ones?)\b|\b(?:stable (?:and|or)|is|are) wide\b"
    r"|\*wide\*": "imprecise",
    r"\*disturbed\*|\b(?:as|is|are|\d) disturbed\b|\bdisturbed (?:row|point|measurement)": "noisy",
    r"[*`'\"](?:few requests|few pairs)[*`'\"]": "too few requests, too few pairs",
    r"\boverloaded\b": "saturated",
    r"\bhalf[- _]width\b|\bhalf of (?:its|the|a) (?:95% )?interval\b": "margin of error",
    r"\btold apart\b": "no clear winner",
    r"\bsamples (?:in|per|of) an execution\b|\bexecuted batch(?:es)?\b": "average batch size",
    r"\bat random times\b(?! \((?:Poisson|request-rate))": "request-rate mode (Poisson arrivals)",
    r"(?<!\ban\s)(?<!\ban\s\*)\bopen[- ]loops?\b": "request-rate mode",  # may be explained
    r"(?<!\ba\s)(?<!\ba\s\*)\bclosed[- ]loops?\b": "concurrency mode",
    r"\bmeters?\b": "load generator",
    r"\bshares? of (?:the|its|a|that|this) (?:limit|peak)\b|\b(?:compute|nearer) limit\b"
    r"|\bthe limit of the (?:machine|memory)\b": "roofline bound, share of roofline",
    r"\bmatrix products?\b|\bproducts? of matrices\b|(?:^|[.:] )products (?:are|take|in)\b"
    r"|\b(?:the|and) products\b": "matrix multiplications",
    r"\bprocessors?\b": "CPU",
    r"\bclients? (?:asks?|asked|who|whom)\b|\b(?:asks?|asked) (?:again|one request)\b"
    r"|\bwait(?:s|ed|ing)? for (?:its|their|an|the) answers?\b|\b(?:every|server's) answers?\b": (
        "request, response"
    ),
    r"\bunder way\b": "in flight, in progress",
    r"\bin turn\b": "interleaved",
    r"\bbeside\b": "compared with, next to",
    r"\bdense hal(?:f|ves)\b": "dense network",
    r"\bcontenders?\b|\bcontests?\b": "candidate, A/B comparison",
    r"(?<![\w./-])fleets?\b": "cluster",
    r"\bsubmitters?\b|\b(?:comes?|came|brings?|brought|made|stays?|sent) (?:\w+ )?home\b"
    r"|\bat home\b": "the submitting machine",
    r"\bfacts\b": "metadata",
    r"\bfigures?\b(?! out)": "chart, number",
    r"\bwords and background\b|\bthe words of\b": "glossary",
    r"\bmodels? of (?:your|one's|their) own\b": "your own model",
    r"\binferences/s\b": "samples/s",
    r"\b(?:the|each|every|no|of|a|which|ringed|measured|further|more|offline|online) points?"
    r" (?:is|are|was|of|at|has|have|that|it|within|with|to)\b|\bof \d+ points?\b"
    r"|\b(?:no|ringed|measured) points?\b": "measurement",
    r"(?<!there\s)\bis no (?!longer|more|less|faster|slower|clear|other)[a-z]+": "is not a",
    r"\b(?:rows?|labels?|arrays?|ms|values?|requests?|workers?|bytes|kB|scores?|lines?|times?|s)"
    r" an? (?:sample|request|host|point|second|client|line|step|month|class)\b"
    r"(?! (?:has|is|was|may|can|must|\w+s)\b)": "per",
    r"\d %": "95%",
    r"\+-(?=[\d{])|\+/-": "±",
}
PATTERNS = [
    (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE), term)
    for pattern, term in BANNED.items()
]

# What `triton-notebooks ...` and other commands of the documents are run by. A block of commands
# that no test runs has the comment `<!-- not run -->` before it, or `# not run` in it.
RUN_BY = {  # a file, and how the name of a test begins
    r"triton-notebooks run .*--scheduler|triton-notebooks (?:scheduler|worker)": (
        "tests/pipeline/cluster/test_cluster.py::test_three_machines_run_a_target_each"
    ),
    r"triton-notebooks run": "tests/pipeline/test_cli.py::test_run_with_nothing_after_it_runs",
    r"triton-notebooks new": "tests/pipeline/own/test_new.py::test_an_onnx_file_becomes_a_package",
    r"triton-notebooks serve": (
        "tests/pipeline/own/test_stages.py::test_a_model_of_each_kind_is_served"
    ),
    r"triton-notebooks tune": "tests/compare/test_tuned.py::test_tune_measures_on_real_servers",
    r"triton-notebooks diff": "tests/report/test_differences.py::test_junit_has_a_test_case",
    r"triton-notebooks crosscheck": "tests/measure/test_loadgen.py::test_both_meters_measure_one",
    r"triton-notebooks prepare": (
        "tests/pipeline/cluster/test_preparation.py::test_days_prepared_by_two_workers"
    ),
    r"triton-notebooks doctor": "tests/machine/test_doctor.py::test_without_a_file_it_looks_at",
    r"triton-notebooks clear": "tests/pipeline/test_clearing.py::test_only_what_nothing_refers_to",
    r"triton-notebooks publish": "tests/report/test_nvidia.py::test_publishing_without_a_run",
    r"papermill": "tests/pipeline/test_ways_in.py::test_papermill_with_a_parameter_file",
    r"dask worker": "tests/pipeline/cluster/test_cluster.py::test_a_plain_dask_worker_joins_by",
    r"redis-server": "tests/hps/test_databases.py::test_redis_keeps_rows",
    r"docker (?:build|run) .*triton-notebooks:": (
        "tests/test_image.py::test_the_batch_command_runs_as_any_user"
    ),
    r"jupyter lab": "tests/test_image.py::test_jupyterlab_answers_those_who_have_its_token",
    r"(?:python3? -m|uv) venv|\. \.venv|(?:uv )?pip install .*docker/(?:require|triton|torch)": (
        "tests/test_install_line.py::test_an_ordinary_machine_gets_the_cpu_build"
    ),
    r"python docker/old_runtimes.py|pytest .*-m (?:old|thorough)|pip install .*models\.lock": (
        ".ci/run::OLD_RUNTIMES"
    ),
    r"ruff|mypy|lint-imports|pytest": ".ci/run::pasted Test",
    r"python .ci/alternatives/compare.py": (
        "tests/test_alternatives.py::test_all_servers_answer_alike"
    ),
    r"python .ci/alternatives/with_model_analyzer.py": (
        "tests/test_model_analyzer.py::test_all_three_search"
    ),
    r"mkdir|export|cd|git clone": "",  # a shell's own
}

WHOLE_FENCE = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- *not run[^>]*-->\s*$")
INLINE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?: \"[^\"]*\")?\)")

FILES = sorted(path.relative_to(ROOT) for path in committed())
DOCUMENTS = [each for each in FILES if each.suffix == ".md"]
NOTEBOOKS = [each for each in FILES if each.suffix == ".ipynb" and each.parts[0] == "notebooks"]
PAGES = [each for each in FILES if each.name.endswith((".j2", ".js"))]
MODULES = [
    each
    for each in FILES
    if each.suffix == ".py" and each.parts[0] == "helpers" and each.stem != "old_names"
]


class Text(NamedTuple):
    """A text that a user reads, and the line at which it begins."""

    line: int
    words: str


def name_of(value):
    return str(value)


def blanked(found):
    """Leave the lines of what is removed."""
    return "\n" * found[0].count("\n")


def without_code(markdown):
    """Remove blocks of code and comments, and put a word for code in a line."""
    markdown = WHOLE_FENCE.sub(blanked, markdown)
    markdown = re.sub(r"<!--.*?-->", blanked, markdown, flags=re.DOTALL)
    return INLINE.sub(lambda found: "code" + blanked(found), markdown)


def prose(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".md":
        return FORMERLY.sub(blanked, text) if path.stem == "glossary" else text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


class Strings(ast.NodeVisitor):
    """Collects the strings of a module that say something: no docstrings and no patterns."""

    def __init__(self):
        self.found = []

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Call(self, node):
        if ast.unparse(node.func) not in ("re.compile", "re.search", "re.sub", "re.fullmatch"):
            self.generic_visit(node)

    def visit_JoinedStr(self, node):
        parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
        self.keep(node.lineno, "".join(map(str, parts)))
        for each in node.values:
            if isinstance(each, ast.FormattedValue):
                self.visit(each.value)

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            self.keep(node.lineno, node.value)

    def keep(self, line, words):
        if re.search(r"[A-Za-z,]{2,}[*]? [*]?[a-z]{2,}|[\d}] %|\+-", words):
            self.found.append(Text(line, words))


def page_text(path):
    """What a template says, and the names that it gives things for those who cannot see them."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix == ".js":
        text = re.sub(r"//.*", "", text)
        found = re.finditer(r"'[^'\n]*'|\"[^\"\n]*\"|`[^`]*`", text)
        return [Text(text.count("\n", 0, each.start()) + 1, each[0]) for each in found]
    for removed in (r"\{#.*?#\}", r"\{%.*?%\}", r"<style>.*?</style>", r"<script>.*?</script>"):
        text = re.sub(removed, blanked, text, flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", "{}", text, flags=re.DOTALL)
    text = re.sub(r"<code>.*?</code>", "code", text)
    named = re.compile(r"(?:aria-label|alt|placeholder|title)=\"([^\"]*)\"")
    names = [Text(text.count("\n", 0, each.start()) + 1, each[1]) for each in named.finditer(text)]
    return [Text(1, re.sub(r"<[^>]*>", blanked, text)), *names]


def texts(path):
    """What a file of the repository says to a user."""
    if path in MODULES:
        strings = Strings()
        strings.visit(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        return strings.found
    if path in PAGES:
        return page_text(path)
    return [Text(1, without_code(prose(path)))]


def banned(text):
    """Name each banned word of a text, its line and the term to use."""
    for pattern, term in PATTERNS:
        for found in pattern.finditer(text.words):
            line = text.line + text.words.count("\n", 0, found.start())
            near = " ".join(text.words[max(found.start() - 30, 0) : found.end() + 30].split())
            yield f"{line}: '{' '.join(found[0].split())}' -> {term}   ({near})"


@cache
def commands():
    """Every command of the command line, by what is typed: "params diff", and "" for all."""
    found = {"": get_command(app)}
    for name, command in found[""].commands.items():
        inner = getattr(command, "commands", {})
        found |= {name: command, **{f"{name} {each}": known for each, known in inner.items()}}
    return found


@pytest.mark.parametrize("paths", [DOCUMENTS, NOTEBOOKS, PAGES, MODULES])
def test_no_word_that_only_this_package_used_is_left(paths):
    said = [(path, text) for path in paths for text in texts(path)]
    found = [f"{path}:{each}" for path, text in said for each in banned(text)]

    assert not found, "\n".join(["", *found])


# words of the glossary's private column that are banned only in some senses, or in old results only
OTHER_SENSES = {"bounds", "point", "row", "store", "serving", "limit", "interval of 95%"}
OTHER_SENSES |= {"wide", "disturbed", "few requests", "few pairs", "bare"}


def test_the_words_that_the_glossary_replaced_are_banned():
    replaced = {word for term in terms() for word in term.formerly} - OTHER_SENSES

    assert [word for word in sorted(replaced) if not [*banned(Text(1, f"so {word}"))]] == []


ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|vs|etc|cf|Fig|No)\.", re.IGNORECASE)


def sentences(markdown):
    """Part prose into sentences: paragraphs, list items, headings and the cells of tables."""
    blocks = [""]
    for line in without_code(markdown).splitlines():
        text = line.strip()
        if text.startswith("|"):
            blocks += [*text.strip("|").split("|"), ""]
        elif not text or text.startswith(("#", ">")) or re.match(r"(?:[-*+]|\d+\.) ", text):
            blocks += [re.sub(r"^(?:[#>*+-]+|\d+\.) ", "", text)]
            blocks += [""] if text.startswith("#") else []
        else:
            blocks[-1] += f" {text}"
    for block in blocks:
        plain = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", block)
        plain = ABBREVIATIONS.sub("code", re.sub(r"<[^>]*>|\*\*?|\$[^$]+\$", " ", plain))
        yield from filter(str.strip, re.split(r"(?<=[.!?])[)\"”*_]*\s+", plain))


def too_long(markdown):
    """The sentences of more than `MOST_WORDS` words, and how many there are in all."""
    every = [*sentences(markdown)]
    counted = [(len(re.findall(r"\S*\w\S*", each)), each.strip()) for each in every]
    return [f"{count} words: {each}" for count, each in counted if count > MOST_WORDS], len(every)


def check_length(long, count):
    few = max(1, LONG_SHARE * count)
    assert len(long) <= few, "\n".join([f"{len(long)} of {count} sentences are long", *long])


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=name_of)
def test_sentences_are_short(path):
    check_length(*too_long(prose(path)))


@pytest.mark.parametrize("name", commands(), ids=lambda name: name or "triton-notebooks")
def test_the_help_has_no_such_word_and_short_sentences(name, capsys):
    assert main([*name.split(), "--help"]) == 0
    said = capsys.readouterr().out

    assert [*banned(Text(1, said))] == []
    said = re.sub(r"\n +(?=[a-z(\[])", " ", said)  # a line that goes on
    check_length(*too_long(re.sub(r"  +", "\n\n", said.replace("\n", "\n\n"))))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_sentences_of_a_page_are_short(path):
    for text in page_text(path):
        check_length(*too_long(re.sub(r"\n\s*\n", "\n\n", text.words)))


def test_a_sentence_is_counted_as_a_reader_does():
    text = (
        "# One two\n\nThree `four x` five. `Six` [seven\neight](there.md)!\n- nine\n\n| ten | 11 |"
    )

    assert [each.strip() for each in sentences(text)] == [
        *("One two", "Three code five.", "code seven eight!", "nine", "ten", "11")
    ]


def test_notebooks_and_the_readme_are_short():
    limits = dict.fromkeys(NOTEBOOKS, NOTEBOOK_WORDS) | {Path("README.md"): README_WORDS}
    words = {path: len(re.findall(r"\S*\w\S*", without_code(prose(path)))) for path in limits}

    assert {path: count for path, count in words.items() if count > limits[path]} == {}


FOLDERS = [each for each in DOCUMENTS if each.name == "README.md" and len(each.parts) > 1]


@pytest.mark.parametrize("path", FOLDERS, ids=name_of)
def test_the_document_of_a_folder_fits_and_lists_its_sections(path):
    text = prose(path)
    sections = re.findall(r"^## (.+)$", WHOLE_FENCE.sub(blanked, text), re.MULTILINE)

    assert text.count("\n") <= DOCUMENT_LINES
    assert [each for each in sections if f"](#{anchor(plain(each))})" not in text] == []


def plain(title):
    return re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title)


@cache
def anchors(path):
    """The anchors of a document's headings, as forges give them."""
    found = []
    text = WHOLE_FENCE.sub(blanked, path.read_text(encoding="utf-8"))
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        name = anchor(plain(title))
        again = found.count(name)
        found.append(f"{name}-{again}" if again else name)
    return {*found, *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_and_anchors_lead_somewhere(path):
    text, wrong = WHOLE_FENCE.sub(blanked, prose(path)), []
    for url in [*LINK.findall(text), *re.findall(r"(?:src|href)=\"([^\"]+)\"", text)]:
        if re.match(r"https?:|mailto:", url):
            continue
        name, _, fragment = url.partition("#")
        there = (ROOT / path.parent / name).resolve() if name else ROOT / path
        there = there / "README.md" if fragment and there.is_dir() else there
        if not there.exists() or (fragment and fragment not in anchors(there)):
            wrong.append(url)

    assert wrong == []


class Command(NamedTuple):
    """A command of a document, and whether the document says that no test runs it."""

    text: str
    is_run: bool


def blocks(path):
    text = prose(path)
    for found in WHOLE_FENCE.finditer(text):
        language, info, body = found[2], found[3], found[4].replace("\\\n", " ")
        if language not in ("bash", "sh", "console", "shell"):
            continue
        marked = "not-run" in info or NOT_RUN.search(text[: found.start()])
        is_run = not marked and "# not run" not in body
        lines = re.split(r"&&|\n", re.sub(r"(?:^|\s)#.*", "", body, flags=re.MULTILINE))
        for line in filter(None, map(str.strip, lines)):
            words = re.sub(r"^\$ |^(?:[A-Z_]+=\S* )+", "", line)
            yield Command(" ".join(words.split()), is_run)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_command_of_a_document_is_run_by_a_test_or_marked(path):
    texts = [each.text for each in blocks(path) if each.is_run]

    assert [text for text in texts if not any(re.match(known, text) for known in RUN_BY)] == []


def test_the_tests_that_run_commands_are_there():
    places = [each.partition("::") for each in {*filter(None, RUN_BY.values())}]

    assert [f"{f}::{n}" for f, _, n in places if n not in (ROOT / f).read_text("utf-8")] == []


def parsed(words):
    """Parse the arguments of a command by the command line itself; nothing runs."""
    command = commands()[""]
    while inner := getattr(command, "commands", {}):
        assert words, "which command?"
        assert words[0] in inner, words[0]
        command = inner[words.pop(0)]
    command.make_context("documented", words)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_documented_command_line_is_understood(path, monkeypatch):
    monkeypatch.setenv(OUTPUTS_VARIABLE, "outputs")  # which parsing sets
    for command in blocks(path):
        if command.text.startswith("triton-notebooks "):
            parsed(shlex.split(command.text)[1:])


def mentioned(path):
    """The commands that a document or notebook mentions in a line: the name, and what follows."""
    for _, code in INLINE.findall(WHOLE_FENCE.sub(blanked, prose(path))):
        for text in re.findall(r"(?:^|&& )triton-notebooks ([^&]*)", " ".join(code.split())):
            known = sorted(commands(), key=len, reverse=True)
            name = next(name for name in known if f"{text} ".startswith(f"{name} ") or not name)
            yield name, text.removeprefix(name)


@pytest.mark.parametrize("path", [*DOCUMENTS, *NOTEBOOKS], ids=name_of)
def test_every_command_and_option_that_prose_mentions_exists(path):
    wrong = []
    for name, rest in mentioned(path):
        known = {option for each in commands()[name].params for option in each.opts} | {"--help"}
        if not (name or re.match(r"(?:COMMAND|--help|$)", rest)):
            wrong.append(rest)
        wrong += [
            f"{name} {each}" for each in re.findall(r"--[a-z][a-z-]*", rest) if each not in known
        ]

    assert wrong == []


def test_every_column_is_defined_and_no_other():
    section = prose(Path("notebooks/README.md")).partition("\n## Columns\n")[2]
    section = section.partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| ", section, re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]

    assert sorted(names) == sorted(Row.model_fields)
