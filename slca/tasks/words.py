"""Words and scalar values that tasks speak about, in two disjoint halves: seen in training, and unseen.

A *kind* is a short text that says what a value is: a pool (`city`), a range (`int 1..12`, `num 0.5..9`), `date`,
`time`, an identifier (`id F` = F and four digits), or an enumeration (`red|blue`). `draw` samples it.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from random import Random

UNSEEN_SHARE = 5  # one value in five is never drawn for training

POOLS: dict[str, tuple[str, ...]] = {
    "person": tuple(
        "Ada Ben Cleo Dan Eva Finn Gus Hana Ivan Jane Kira Leo Mia Noor Omar Pia Quin Rosa Sam Tess Uma Vera Wade Xena Yuri Zoe "
        "Alma Boris Carla Dina Emil Flora Gina Hugo Iris Jonas Karin Lars Mona Nils Olga Paul Rita Sven Tara Ugo Vito Wanda Abel "
        "Bella Clara David Elsa Felix Greta Henry Ingrid Jacob Kate Linda Marco Nina Oscar Petra Ralph Sofia Tomas Ursula Victor "
        "Amir Bianca Cyril Daria Edgar Farah Gavin Helena Igor Julia Kenji Laila Martin Nadia Otto Priya Ruben Selma Theo Yara".split()
    ),
    "city": tuple(
        "Paris London Rome Berlin Madrid Vienna Oslo Dublin Athens Prague Lisbon Warsaw Helsinki Brussels Budapest Zurich Geneva "
        "Munich Milan Naples Turin Lyon Nice Porto Seville Krakow Bergen Malmo Ghent Basel Tokyo Kyoto Osaka Seoul Delhi Mumbai "
        "Cairo Lagos Nairobi Lima Quito Bogota Boston Chicago Denver Dallas Austin Seattle Miami Phoenix Toronto Montreal Ottawa "
        "Sydney Perth Hanoi Jakarta Manila Bangkok Riga Tallinn Vilnius Sofia Zagreb Split Graz Bern Bonn Cologne Hamburg Dresden "
        "Leipzig Valencia Bilbao Granada Palermo Verona Florence Marseille Toulouse Nantes Leeds Bristol Glasgow Cardiff Cork "
        "Aarhus Uppsala Tampere Antwerp Utrecht Rotterdam Havana Santiago Salta Accra Dakar Tunis Rabat Beirut Amman Doha".split()
    ),
    "errand": tuple(
        "milk bread rent taxes laundry yoga dentist dinner groceries homework invoice passport haircut lunch keys gym parcel "
        "breakfast insurance garden library bank budget report slides contract visa tickets birthday workshop training review "
        "interview painting vaccine flowers candles curtains shoes lamp mirror concert exam essay rehearsal picnic".split()
    ),
    "dish": tuple(
        "pizza ramen sushi tacos curry salad soup paella lasagna burger noodles risotto pancakes omelette gnocchi falafel hummus "
        "kebab dumplings pho ravioli stew chili goulash waffles quiche burrito moussaka tiramisu brownies".split()
    ),
    "product": tuple(
        "laptop phone camera kettle toaster blender jacket boots tent bicycle helmet backpack guitar drum printer monitor keyboard "
        "mouse tablet watch scarf gloves sofa chair desk pillow blanket drill hammer ladder vase clock radio speaker freezer".split()
    ),
    "word": tuple(
        "bridge river mountain window friend winter summer apple horse butter garden market music letter pencil bottle forest "
        "island castle dragon feather hunger justice kitchen lantern mirror needle orange pepper rabbit silver thunder valley "
        "whisper yellow zebra anchor basket copper desert engine finger ginger honey".split()
    ),
    "song": tuple(
        "Skylark Moonrise Firefly Daydream Horizon Echoes Wildfire Starlight Gravity Mirage Rainfall Sundown Velvet Avalanche "
        "Bluebird Cascade Driftwood Evergreen Fandango Goldmine Harvest Jubilee Lullaby Nightfall Overture Paradise".split()
    ),
    "topic": tuple(
        "history chess cooking science politics football tennis jazz poetry robots space gardening travel money health fashion "
        "films physics biology painting sailing surfing climbing knitting coffee wine dogs cats birds whales".split()
    ),
    "company": tuple("AAPL MSFT GOOG AMZN TSLA NVDA META ORCL INTC AMD SAP CSCO ADBE NFLX QCOM SONY".split()),
    "currency": tuple("USD EUR GBP JPY CHF SEK NOK DKK PLN INR CAD AUD CZK HUF".split()),
    "language": tuple(
        "French German Spanish Italian Dutch Polish Greek Czech Danish Finnish Turkish Swedish Hindi Arabic".split()
    ),
    "country": tuple(
        "France Spain Italy Norway Poland Greece Japan Kenya Peru Chile Canada India Egypt Cuba Ghana Malta".split()
    ),
    "street": tuple(
        "Oakley Maple Cedar Station Church Mill Harbor Garden Bridge Castle Forest Meadow Orchard Willow Chapel Quarry".split()
    ),
}
MADE_UP = frozenset({"person", "city", "song"})  # kinds that any new word can be
UNSPLIT = frozenset({"company", "currency", "language", "country"})  # closed lists: no value of them is ever new


_REAL = frozenset(word for words in POOLS.values() for word in words)
_ONSETS = tuple("b c d f g h j k l m n p r s t v w z br ch dr gl kr pl sh st th tr".split())
_CODAS = ("", "", "n", "r", "s", "l", "m", "t", "ck", "nd")


def made_up(rng: Random, unseen: bool = False) -> str:
    """A pronounceable capitalised word. Training and unseen words come from disjoint sets."""
    while True:
        syllables = [rng.choice(_ONSETS) + rng.choice("aeiouy") for _ in range(rng.choice((2, 2, 3)))]
        word = "".join(syllables) + rng.choice(_CODAS)
        if (zlib.crc32(word.encode()) % UNSEEN_SHARE == 0) == unseen and word.capitalize() not in _REAL:
            return word.capitalize()


@lru_cache(maxsize=64)
def pool(kind: str, unseen: bool = False) -> tuple[str, ...]:
    """The half of a pool: every fifth word is unseen."""
    words = POOLS[kind]
    if kind in UNSPLIT:
        return words
    return tuple(word for i, word in enumerate(words) if (i % UNSEEN_SHARE == UNSEEN_SHARE - 1) == unseen)


def draw(kind: str, rng: Random, unseen: bool = False, made_up_share: float = 0.0) -> str | int | float:
    """A value of this kind from the training half, or from the unseen half. Raises KeyError for an unknown kind.

    Integers of wide ranges, days and minutes are split too; enumerations and narrow ranges are shared by both halves.
    """
    if "|" in kind:
        return rng.choice(kind.split("|"))
    name, _, rest = kind.partition(" ")
    if name == "int":
        low, high = map(int, rest.split(".."))
        return _integer(low, high, rng, unseen)
    if name == "num":
        least, most = map(float, rest.split(".."))
        return _integer(int(least * 10), int(most * 10), rng, unseen) / 10
    if name == "id":
        return f"{rest}{_integer(1000, 9999, rng, unseen)}"
    if name == "date":
        return date(rng, unseen)
    if name == "time":
        return clock(rng, unseen)
    return word(name, rng, unseen, made_up_share)


def word(kind: str, rng: Random, unseen: bool = False, made_up_share: float = 0.0) -> str:
    """A word of a pool, or with this share (kinds of MADE_UP only) one that nobody has seen."""
    if kind in MADE_UP and rng.random() < made_up_share:
        return made_up(rng, unseen)
    return rng.choice(pool(kind, unseen))


def date(rng: Random, unseen: bool = False) -> str:
    """A day from 2027 to 2035, `2031-05-14`."""
    return f"20{rng.randint(27, 35)}-{rng.randint(1, 12):02d}-{rng.choice(_DAYS[unseen]):02d}"


def clock(rng: Random, unseen: bool = False) -> str:
    """A time of day, `07:30`."""
    return f"{rng.randint(0, 23):02d}:{rng.choice(_MINUTES[unseen]):02d}"


_DAYS = ([d for d in range(1, 29) if d % UNSEEN_SHARE], [d for d in range(1, 29) if d % UNSEEN_SHARE == 0])
_MINUTES = ((0, 15, 30, 45), (5, 20, 50))


def _integer(low: int, high: int, rng: Random, unseen: bool) -> int:
    while True:
        value = rng.randint(low, high)
        if high - low < 40 or (value % UNSEEN_SHARE == 2) == unseen:
            return value
