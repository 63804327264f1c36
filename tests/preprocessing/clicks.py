"""Small Criteo-shaped texts with everything in them: missing values, repeats, malformed lines."""

import random

GOOD, BAD = "good", "bad"


def make_clicks(num_lines: int, seed: int = 0, bad_every: int = 0, labelled: bool = True) -> bytes:
    """Lines of a Criteo log; each ``bad_every``-th is malformed, in one way or another."""
    draw = random.Random(seed)
    lines = []
    for number in range(1, num_lines + 1):
        fields = [str(draw.randrange(2))] if labelled else []
        fields += [_missing(draw, str(int(draw.expovariate(0.02)) - 2)) for _ in range(13)]
        fields += [
            _missing(draw, f"{int(draw.paretovariate(0.6)) * (place + 7919) % (1 << 32):08x}")
            for place in range(26)
        ]
        if bad_every and number % bad_every == 0:
            _spoil(draw, fields)
        lines.append("\t".join(fields))
    return ("\n".join(lines) + "\n").encode()


def _missing(draw: random.Random, value: str) -> str:
    return "" if draw.random() < 0.15 else value


def _spoil(draw: random.Random, fields: list[str]) -> None:
    way = draw.randrange(4)
    if way == 0:
        fields.pop()
    elif way == 1:
        fields[-1] = "xyz"
    elif way == 2:
        fields[3] = "1.5"
    else:
        fields[:] = [""]
