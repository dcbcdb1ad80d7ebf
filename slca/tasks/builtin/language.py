"""Words and numbers."""

from slca.tasks.entry import Entry, Link

DOMAINS = {
    "language": (
        Entry(
            "translate",
            "Translate a word",
            {"word": "word", "to": "language"},
            {"result": "word"},
            ("translate {word} to {to}", "how do you say {word} in {to}?", "what is the {to} word for {word}"),
            ("put {word} into {to}",),
            "In {to} it is {result}.",
            ("to", "translate the word {word}", "put {word} into another language"),
        ),
        Entry(
            "define_word",
            "Definition of a word",
            {"word": "word"},
            {"page": "int 1..2000"},
            ("define {word}", "what does {word} mean?", "meaning of {word}"),
            ("explain the word {word}",),
            "The word {word} is on page {page}.",
            ("word", "define a word for me", "explain a word"),
        ),
        Entry(
            "convert_unit",
            "Convert between units",
            {"value": "int 1..999", "source": "km|miles|meters|feet", "target": "km|miles|meters|feet"},
            {"result": "num 0.1..9999"},
            ("convert {value} {source} to {target}", "{value} {source} in {target}?", "how many {target} is {value} {source}"),
            ("express {value} {source} in {target}",),
            "{value} {source} is {result} {target}.",
            ("target", "convert {value} {source}", "express {value} {source} in another unit"),
        ),
        Entry(
            "pick_number",
            "Random number in a range",
            {"low": "int 1..99", "high": "int 100..9999"},
            {"number": "int 1..9999"},
            ("pick a number from {low} to {high}", "random number between {low} and {high}", "roll from {low} up to {high}"),
            ("choose any number, {low} at least and {high} at most",),
            "I picked the number {number}.",
            ("high", "pick a random number above {low}", "choose any number, {low} at least"),
        ),
        Entry(
            "find_rhyme",
            "Word that rhymes",
            {"word": "word"},
            {"rhyme": "word"},
            ("what rhymes with {word}?", "find a rhyme for {word}", "rhyme on {word} please"),
            ("which word sounds like {word}?",),
            "The word {rhyme} rhymes with {word}.",
            ("word", "find a rhyme", "which word sounds alike?"),
            held_out=True,
        ),
        Entry(
            "find_opposite",
            "Word with the opposite meaning",
            {"word": "word", "style": "plain|poetic"},
            {"opposite": "word"},
            (
                "what is the {style} opposite of {word}?",
                "find a {style} opposite for {word}",
                "{style} opposite of {word} please",
            ),
            ("turn {word} around, {style} style",),
            "The opposite of {word} is {opposite}.",
            ("word", "find a {style} opposite", "turn a word around, {style} style"),
            held_out=True,
        ),
    ),
}

LINKS: tuple[Link, ...] = ()
