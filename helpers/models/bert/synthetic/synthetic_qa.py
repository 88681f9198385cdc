"""The text of the generated paragraphs: one person each, and facts that questions ask for."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator


def _listed(words: str) -> list[str]:
    return words.split()


SYLLABLES = _listed(
    "bal bren cal dor dun el fal gar hel ister jor kel lan lor mar mel mor nar nor or pel quin"
    " ran ros sar sel tal tam thor tor ul val ven vis wel wick wyn yar zan zel"
)
FIRST_NAMES = _listed(
    "Ada Alma Boris Clara Edwin Elsa Felix Flora Greta Hugo Ida Irma Jonas Karl Lena Leo Lydia"
    " Mina Nora Oscar Otto Petra Rita Robert Ruth Samuel Stella Victor Walter Wanda"
)
MONTHS = _listed(
    "January February March April May June July August September October November December"
)
FIELDS = _listed("Arts Botany Design Geology Law Medicine Mining Music Navigation Science")
JOBS = _listed(
    "baker banker botanist captain carpenter chemist gardener geologist judge lawyer mason"
    " painter physician pilot printer surgeon surveyor teacher weaver writer"
)
ADJECTIVES = _listed(
    "chief city coastal commercial court factory garden junior local marine medical naval private"
    " public royal rural senior state temple travelling"
)
THINGS = _listed(
    "bell boat bridge camera clock compass engine kite lamp loom map mill organ oven plough press"
    " pump telescope wheel whistle"
)
MATERIALS = _listed(
    "brass bronze copper folding glass golden hanging iron magnetic mechanical paper rotating"
    " silent silver steam steel tidal wooden"
)
NUMBERS = _listed("two three four five six seven eight nine ten twelve fifteen twenty thirty forty")
COUNTED = _listed("boats bridges cottages farms horses houses letters mills orchards patents ships")
FILLERS = (
    "Few people of that time ever saw the sea",
    "Life in the valley was hard and many families left",
    "Most of the old papers were lost in a fire",
    "Little is known about the other members of the family",
    "The river was too low during most of the summer",
    "Visitors were told that the hills were once covered with forest",
    "The newspapers printed a long notice about the flood",
    "A road to the coast was built only much later",
    "Some letters from these years are kept in the library",
    "The market was known for its cheese and little else",
    "Neither the weather nor the war made much of a change",
    "Nobody could say what had become of the others",
)

Rng = Generator

# Names that are tokens of the vocabulary: every second pair of syllables is a person's or a place's
PAIRS = [f"{a}{b}" for a in SYLLABLES for b in SYLLABLES if a != b]
SURNAMES, PLACES = PAIRS[::6], PAIRS[3::6]
UNKNOWN = 0.1  # share of the names that are none of these, and split into syllables


@dataclass(frozen=True)
class Kind:
    """One kind of fact: sentences that state it, questions that ask for it, and its answer."""

    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answer: Callable[[Rng], str]


@dataclass(frozen=True)
class Asked:
    """A question, its answer, the place of the answer in the paragraph, and the kind of fact."""

    question: str
    answer: str
    start: int
    kind: int  # place in KINDS


@dataclass(frozen=True)
class Paragraph:
    """A paragraph about one person, and what can be asked about it."""

    title: str
    context: str
    asked: tuple[Asked, ...]


def write_paragraph(rng: Rng, facts: int, fillers: int) -> Paragraph:
    """State `facts` facts of different kinds and `fillers` unrelated sentences, in any order."""
    surname = _name(rng, SURNAMES)
    name, pronoun = f"{_pick(rng, FIRST_NAMES)} {surname}", _pick(rng, ("he", "she"))
    counted = _pick(rng, COUNTED)
    kinds: list[Kind | None] = [KINDS[i] for i in rng.permutation(len(KINDS))[:facts]]
    sentences = [*kinds, *[None] * fillers]
    context = ""
    asked: list[Asked] = []
    for place in rng.permutation(len(sentences)):
        kind = sentences[place]
        if kind is None:
            context += f"{_pick(rng, FILLERS)}. "
            continue
        subject = name if not asked else _pick(rng, (name, surname, pronoun))
        statement, question = (
            _pick(rng, texts)
            .replace("{who}", who)
            .replace("{name}", surname)
            .replace("{counted}", counted)
            for texts, who in ((kind.statements, subject), (kind.questions, surname))
        )
        before, after = (statement[0].upper() + statement[1:]).split("{answer}")
        answer = kind.answer(rng)
        asked.append(Asked(question, answer, len(context) + len(before), KINDS.index(kind)))
        context += f"{before}{answer}{after}. "
    return Paragraph(name, context.rstrip(), tuple(asked))


def words() -> list[str]:
    """List, sorted and in lower case, every word that is not a name, and every syllable."""
    templates = [text for kind in KINDS for text in (*kind.statements, *kind.questions)]
    lists = (FIRST_NAMES, MONTHS, FIELDS, JOBS, ADJECTIVES, THINGS, MATERIALS, NUMBERS, COUNTED)
    names = _listed("he she new north south port lake university college school of")
    other = [word for each in lists for word in each]
    texts = [*templates, *FILLERS, *names, *SYLLABLES, *SURNAMES, *PLACES, *other]
    return sorted(set(re.findall("[a-z]+", " ".join(texts).lower())))


def _name(rng: Rng, known: list[str]) -> str:
    if rng.random() < UNKNOWN:
        return "".join(_pick(rng, SYLLABLES) for _ in range(3)).capitalize()
    return _pick(rng, known).capitalize()


def _place(rng: Rng) -> str:
    prefix = _pick(rng, ("", "", "", "New ", "North ", "South ", "Port ", "Lake "))
    return prefix + _name(rng, PLACES)


def _year(rng: Rng) -> str:
    return str(rng.integers(1700, 2000))


def _date(rng: Rng) -> str:
    day, month, year = rng.integers(1, 29), _pick(rng, MONTHS), _year(rng)
    return f"{day} {month} {year}"


def _school(rng: Rng) -> str:
    place, field = _name(rng, PLACES), _pick(rng, FIELDS)
    return _pick(rng, (f"{place} University", f"{place} College", f"{place} School of {field}"))


def _job(rng: Rng) -> str:
    return f"{_pick(rng, ADJECTIVES)} {_pick(rng, JOBS)}"


def _work(rng: Rng) -> str:
    return f"{_pick(rng, MATERIALS)} {_pick(rng, THINGS)}"


def _count(rng: Rng) -> str:
    return _pick(rng, (_pick(rng, NUMBERS), str(rng.integers(20, 100))))


def _pick(rng: Rng, values: tuple[str, ...] | list[str]) -> str:
    return values[int(rng.integers(len(values)))]


KINDS = (
    Kind(
        (
            "{who} was born in {answer}",
            "The birthplace of {name} was {answer}, a small town",
            "Born to a poor family in {answer}, {who} left home early",
        ),
        ("Where was {who} born?", "In which town was {who} born?"),
        _place,
    ),
    Kind(
        (
            "{who} died in {answer}",
            "On {answer}, after a short illness, {who} died",
            "The death of {name} was reported in {answer}",
        ),
        ("When did {who} die?", "On what date did {who} die?"),
        _date,
    ),
    Kind(
        (
            "{who} studied at {answer}",
            "As a student {who} spent four years at {answer}",
            "{who} was admitted to {answer} with the help of an uncle",
        ),
        ("Where did {who} study?", "Which university did {who} attend?"),
        _school,
    ),
    Kind(
        (
            "{who} worked as a {answer}",
            "For most of those years {who} earned a living as a {answer}",
            "{who} found a post as a {answer} and kept it",
        ),
        ("What was the profession of {who}?", "What did {who} work as?"),
        _job,
    ),
    Kind(
        (
            "{who} invented the {answer}",
            "The invention of the {answer} made {name} famous",
            "{who} is remembered today for the {answer}, which still works",
        ),
        ("What did {who} invent?", "Which invention made {who} famous?"),
        _work,
    ),
    Kind(
        (
            "{who} owned {answer} {counted}",
            "At one time {who} had {answer} {counted} to look after",
            "{who} left {answer} {counted} behind",
        ),
        ("How many {counted} did {who} have?", "How many {counted} belonged to {who}?"),
        _count,
    ),
)
