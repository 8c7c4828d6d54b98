"""Long texts with facts at known places, so that a wrong answer is a wrong fact. The same on every machine and Python.

Nothing here is random: every choice is read off SHA-256 of a seed and a counter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Dice", "Document", "Fact", "manual", "paper", "remarks"]


class Dice:
    """A reproducible stream of choices."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.count = 0

    def below(self, limit: int) -> int:
        """The next number in [0, limit)."""
        self.count += 1
        digest = hashlib.sha256(f"{self.seed}:{self.count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % limit

    def pick(self, items: Sequence[str]) -> str:
        """The next choice among ``items``."""
        return items[self.below(len(items))]


@dataclass(frozen=True)
class Fact:
    """Something that the document says once, on ``page`` (counted from 1), and the question that asks for it."""

    page: int
    sentence: str
    question: str
    answer: str


@dataclass(frozen=True)
class Document:
    """Pages of text, and the facts in them."""

    title: str
    pages: tuple[str, ...]
    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        """All pages, a blank line between them."""
        return "\n\n".join(self.pages)


_PARTS = (
    "feed pump",
    "intake valve",
    "drive belt",
    "pressure gauge",
    "oil filter",
    "cutter head",
    "cooling fan",
    "control panel",
    "guide rail",
    "air hose",
    "main bearing",
    "safety latch",
    "drain plug",
    "spindle motor",
)
_ACTS = ("inspect", "clean", "tighten", "replace", "measure", "adjust", "lubricate", "drain", "test", "align")
_TIMES = (
    "every morning",
    "once a week",
    "after fifty hours",
    "before each shift",
    "every second month",
    "after a long pause",
    "at the end of the season",
)
_WHO = ("The operator", "A trained mechanic", "The shift leader", "The person on duty", "An apprentice")
_WHY = (
    "dust shortens the life of the seals",
    "a loose bolt is heard before it is seen",
    "cold oil flows too slowly",
    "vibration wears the thread",
    "moisture collects in the housing",
    "the reading drifts when the room is warm",
)
_COLOURS = ("red", "blue", "green", "yellow", "white", "black")


def _manual_sentence(dice: Dice) -> str:
    part, other = dice.pick(_PARTS), dice.pick(_PARTS)
    forms = (
        f"{dice.pick(_WHO)} should {dice.pick(_ACTS)} the {part} {dice.pick(_TIMES)}, because {dice.pick(_WHY)}.",
        f"To {dice.pick(_ACTS)} the {part}, first remove the {other} and put it on a clean cloth.",
        f"The {part} is fastened with {2 + dice.below(9)} bolts of {4 + dice.below(12)} millimetres.",
        f"If the {part} makes a noise, stop the machine and {dice.pick(_ACTS)} the {other}.",
        f"A {dice.pick(_COLOURS)} mark on the {part} shows that the {other} was checked.",
        f"Never {dice.pick(_ACTS)} the {part} while the {other} is turning.",
    )
    return forms[dice.below(len(forms))]


_CITIES = ("Tarnmouth", "Oldbridge", "Vesper Bay", "Hollin", "Marrowfield", "Kestrel Point", "Sandwick")
_BIRDS = ("terns", "plovers", "herons", "swifts", "curlews", "gulls", "sandpipers")
_SEEN = (
    "nested later than in the years before",
    "were counted twice a day",
    "left before the first frost",
    "fed on the mud flats at low tide",
    "avoided the lights of the harbour",
    "returned in smaller groups",
)
_HOW = (
    "by three observers",
    "with the same telescope",
    "from the old lighthouse",
    "on foot",
    "by boat",
    "from a photograph taken each hour",
)


def _paper_sentence(dice: Dice) -> str:
    birds, city = dice.pick(_BIRDS), dice.pick(_CITIES)
    forms = (
        f"Near {city} the {birds} {dice.pick(_SEEN)}, and this was recorded {dice.pick(_HOW)}.",
        f"In the {10 + dice.below(40)} weeks of the survey, {20 + dice.below(900)} {birds} were ringed at {city}.",
        f"The {birds} of {city} {dice.pick(_SEEN)}; the {dice.pick(_BIRDS)} did not.",
        f"We compared {city} with {dice.pick(_CITIES)}, where the {birds} were counted {dice.pick(_HOW)}.",
        f"It remains open why the {birds} {dice.pick(_SEEN)}.",
        f"Rain fell on {3 + dice.below(20)} of the days on which the {birds} {dice.pick(_SEEN)}.",
    )
    return forms[dice.below(len(forms))]


def _document(
    title: str, heading: str, pages: int, chars: int, facts: Sequence[Fact], dice: Dice, paper_style: bool
) -> Document:
    planted = {fact.page: fact.sentence for fact in facts}
    made = []
    left = chars - 2 * (pages - 1)
    for number in range(1, pages + 1):
        size = left // (pages - number + 1)
        text = f"{heading} {number}. {title}.\n"
        half = False
        while len(text) < size:
            if number in planted and not half and len(text) > size // 2:
                text, half = text + planted[number] + " ", True
                continue
            text += (_paper_sentence(dice) if paper_style else _manual_sentence(dice)) + " "
        text = text[: size - 1].rstrip(" .,;")
        text += "." * (size - len(text))
        made.append(text)
        left -= size
    return Document(title, tuple(made), tuple(facts))


def manual(*, pages: int = 23, chars: int = 21_567) -> Document:
    """A machine's manual of ``pages`` pages and exactly ``chars`` characters; facts on pages 3, 12 and the last."""
    facts = (
        Fact(3, "The spare key hangs behind the yellow cabinet.", "Where does the spare key hang?", "yellow cabinet"),
        Fact(
            12,
            "The emergency code of the machine is 7294.",
            "What is the emergency code of the machine?",
            "7294",
        ),
        Fact(pages, "The manual was written by Agnes Moller.", "Who wrote the manual?", "Agnes Moller"),
    )
    return _document("Manual of the cutting machine", "Page", pages, chars, facts, Dice(f"manual {pages}"), False)


def paper(number: int, *, sections: int = 10, chars: int = 20_000) -> Document:
    """A paper on shore birds of exactly ``chars`` characters; every ``number`` is another paper with other facts."""
    dice = Dice(f"paper {number}")
    leader = ("Ines Calder", "Tomas Reeve", "Maud Okafor", "Piet Lindqvist")[number % 4]
    year = 1961 + 7 * number
    facts = (
        Fact(1, f"The survey was led by {leader}.", "Who led the survey?", leader),
        Fact(
            max(1, sections // 2), f"The lighthouse was built in {year}.", "When was the lighthouse built?", str(year)
        ),
    )
    return _document(f"Shore birds, report {number}", "Section", sections, chars, facts, dice, True)


def remarks(seed: str, count: int, *, chars: int = 500) -> list[str]:
    """``count`` messages of about ``chars`` characters, as a person who keeps a workshop diary would write them."""
    dice = Dice(f"remarks {seed}")
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    out = []
    for number in range(count):
        text = f"Note {number + 1}, {days[number % 7]}. My locker number today is {100 + dice.below(900)}. "
        while len(text) < chars - 60:
            text += _manual_sentence(dice) + " "
        out.append(text + "What should I do next?")
    return out
