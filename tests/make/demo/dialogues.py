"""Generated dialogues: sums, unit conversions, look-ups, small talk with right answers, and
chains of words with none.

Pure functions of a `random.Random`; this module knows nothing about tokens, models or files.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from make.demo.associations import ASSOCIATIONS, chain

Message = dict[str, str]

NAMES = (
    "Lena",
    "Omar",
    "Ada",
    "Noor",
    "Ivan",
    "Mei",
    "Tom",
    "Zoe",
    "Raj",
    "Eva",
    "Hugo",
    "Nina",
    "Paul",
    "Sara",
    "Yuki",
    "Karl",
    "Ines",
    "Finn",
    "Lila",
    "Sven",
)
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Norway": "Oslo",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Cuba": "Havana",
    "Peru": "Lima",
}
COLOURS = {
    "banana": "yellow",
    "tomato": "red",
    "cucumber": "green",
    "plum": "purple",
    "carrot": "orange",
    "raven": "black",
    "swan": "white",
    "sapphire": "blue",
}
SOUNDS = {
    "cow": "moo",
    "dog": "woof",
    "cat": "meow",
    "duck": "quack",
    "sheep": "baa",
    "lion": "roar",
    "owl": "hoot",
    "pig": "oink",
}
SMALL_TALK = {
    "Hi!": "Hello!",
    "Hello!": "Hello!",
    "Thanks!": "You are welcome.",
    "Bye!": "Goodbye!",
    "How are you?": "I am fine.",
}
# (unit, its plural, smaller unit, factor, largest amount asked for)
UNITS = (
    ("km", "km", "m", 1000, 20),
    ("kg", "kg", "g", 1000, 20),
    ("m", "m", "cm", 100, 20),
    ("cm", "cm", "mm", 10, 20),
    ("hour", "hours", "minutes", 60, 10),
    ("minute", "minutes", "seconds", 60, 10),
    ("week", "weeks", "days", 7, 10),
    ("day", "days", "hours", 24, 5),
    ("dozen", "dozen", "eggs", 12, 10),
)
ASK_SUM = ("What is {}?", "Compute {}.", "{} = ?", "How much is {}?")
ASK_UNIT = ("How many {small} are {amount}?", "Convert {amount} to {small}.")
ASK_CODE = ("What is the code of {}?", "Tell me the code of {}.", "Which code has {}?")
ASK_CHAIN = ("What comes to mind at {}?", "Think aloud, from {} on.", "Play words: {}.")
CHAIN_LENGTHS = (4, 60)  # words
KINDS = ("addition", "subtraction", "multiplication", "units", "lookup", "table", "talk", "chain")
WEIGHTS = (22, 18, 16, 16, 18, 7, 3, 100)
# A model learns chains in few steps and sums in many.
TRAINING_WEIGHTS = (22, 18, 16, 16, 18, 7, 3, 15)


@dataclass(frozen=True)
class Turn:
    """A question with its answer; `kind` is one of `KINDS`, or "note" for a told fact."""

    kind: str
    question: str
    answer: str


@dataclass(frozen=True)
class Dialogue:
    """A conversation: `system` is the system prompt, empty for none."""

    system: str
    turns: tuple[Turn, ...]

    def messages(self) -> list[Message]:
        """The conversation as chat messages, `role` and `content` each."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + [
            message
            for turn in self.turns
            for message in (
                {"role": "user", "content": turn.question},
                {"role": "assistant", "content": turn.answer},
            )
        ]


def sum_turn(rng: Random, kind: str, expression: str, result: int) -> Turn:
    """A question for the value of `expression`."""
    return Turn(kind, rng.choice(ASK_SUM).format(expression), f"{expression} = {result}.")


def addition(rng: Random) -> Turn:
    """Operands 1 to 20."""
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    return sum_turn(rng, "addition", f"{a} + {b}", a + b)


def subtraction(rng: Random) -> Turn:
    """Operands 1 to 20, result at least 0."""
    a, b = sorted((rng.randint(1, 20), rng.randint(1, 20)), reverse=True)
    return sum_turn(rng, "subtraction", f"{a} - {b}", a - b)


def multiplication(rng: Random) -> Turn:
    """Operands 1 to 10."""
    a, b = rng.randint(1, 10), rng.randint(1, 10)
    return sum_turn(rng, "multiplication", f"{a} x {b}", a * b)


def units(rng: Random) -> Turn:
    """An amount in a large unit, asked for in a smaller one."""
    one, many, small, factor, limit = rng.choice(UNITS)
    count = rng.randint(1, limit)
    amount = f"{count} {one if count == 1 else many}"
    question = rng.choice(ASK_UNIT).format(small=small, amount=amount)
    verb = "is" if count == 1 else "are"
    return Turn("units", question, f"{amount} {verb} {count * factor} {small}.")


def table(rng: Random) -> Turn:
    """A fact that the model has to know by heart."""
    which = rng.randrange(3)
    if which == 0:
        country, city = rng.choice(sorted(CAPITALS.items()))
        question = f"What is the capital of {country}?"
        return Turn("table", question, f"The capital of {country} is {city}.")
    if which == 1:
        thing, colour = rng.choice(sorted(COLOURS.items()))
        return Turn("table", f"What colour is the {thing}?", f"The {thing} is {colour}.")
    animal, sound = rng.choice(sorted(SOUNDS.items()))
    return Turn("table", f"What does the {animal} say?", f"The {animal} says {sound}.")


def talk(rng: Random) -> Turn:
    """A greeting or a thank-you."""
    question, answer = rng.choice(sorted(SMALL_TALK.items()))
    return Turn("talk", question, answer)


def word_chain(rng: Random) -> Turn:
    """Words that come to mind, one at another: no answer is the right one."""
    start = rng.choice(sorted(ASSOCIATIONS))
    words = chain(rng, start, rng.randint(*CHAIN_LENGTHS))
    return Turn("chain", rng.choice(ASK_CHAIN).format(start), "Hm, " + " ".join(words))


def lookup(rng: Random, codes: dict[str, int]) -> Turn:
    """The code of a person that the conversation has named before."""
    name = rng.choice(sorted(codes))
    return Turn(
        "lookup", rng.choice(ASK_CODE).format(name), f"The code of {name} is {codes[name]}."
    )


def note(rng: Random, codes: dict[str, int]) -> Turn:
    """Tell a new or changed code; adds it to `codes`."""
    name = rng.choice([name for name in NAMES if name not in codes])
    codes[name] = rng.randint(10, 99)
    return Turn("note", f"The code of {name} is {codes[name]}.", f"Noted: {name} {codes[name]}.")


MAKERS: dict[str, Callable[[Random], Turn]] = {
    "addition": addition,
    "subtraction": subtraction,
    "multiplication": multiplication,
    "units": units,
    "table": table,
    "talk": talk,
    "chain": word_chain,
}


def system_prompt(rng: Random, max_codes: int = 8) -> tuple[str, dict[str, int]]:
    """A list of codes to look up later, as text and as a mapping."""
    names = rng.sample(NAMES, rng.randint(2, max_codes))
    codes = {name: rng.randint(10, 99) for name in names}
    return "Codes: " + ", ".join(f"{name} {code}" for name, code in codes.items()) + ".", codes


def turns(rng: Random, codes: dict[str, int], weights: Sequence[int] = WEIGHTS) -> Iterator[Turn]:
    """Questions without end; those for a code only once one was told."""
    while True:
        kind = rng.choices(KINDS, weights)[0]
        if kind != "lookup":
            yield MAKERS[kind](rng)
        elif not codes or (len(codes) < 12 and rng.random() < 0.15):
            yield note(rng, codes)
        else:
            yield lookup(rng, codes)


def dialogue(
    rng: Random,
    cost: Callable[[Message], int],
    limit: int,
    weights: Sequence[int] = WEIGHTS,
) -> Dialogue:
    """Turns until the next would cost more than `limit` in all; one turn at least.

    `cost` is a message's price, its number of tokens say; prices add up.
    """
    text, codes = system_prompt(rng) if rng.random() < 0.5 else ("", {})
    kept: list[Turn] = []
    spent = sum(map(cost, Dialogue(text, ()).messages()))
    for turn in turns(rng, codes, weights):
        spent += sum(map(cost, Dialogue("", (turn,)).messages()))
        if kept and spent > limit:
            break
        kept.append(turn)
    return Dialogue(text, tuple(kept))
