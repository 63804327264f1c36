"""A shop's raw log: its columns, and rows whose clicks depend on the user."""

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHOP = """
name: shop
delimiter: ","
quote: '"'
header: true
columns:
  - {name: clicked, role: label}
  - {name: hour, role: dense, kind: integer}
  - {name: price, role: dense, kind: float}
  - {name: session, role: ignore}
  - {name: user, role: sparse, kind: string}
  - {name: last_items, role: sparse, kind: string, separator: "|"}
  - {name: item, role: sparse, kind: string}
  - {name: shown_at, role: time, kind: iso}
derived:
  - {name: weekday, kind: weekday, of: shown_at}
  - {name: item_weekday, kind: cross, of: [item, weekday]}
  - {name: seen, kind: in_list, of: [item, last_items]}
"""
HEADER = ["clicked", "hour", "price", "session", "user", "last_items", "item", "shown_at"]
NUM_ROWS, NUM_TEST = 1200, 240
Row = list[Any]


def draw_rows() -> list[Row]:
    """Users that are liked to different degrees; values that are missing, rare, quoted, and lists that are empty."""
    chance, more = random.Random(0), random.Random(1)
    rows = []
    for session in range(NUM_ROWS):
        user = int(40 * chance.random() ** 2)
        items = [f"i{chance.randrange(30)}" for _ in range(chance.randrange(4))]
        hour = "" if chance.random() < 0.1 else chance.randrange(24)
        price = "" if chance.random() < 0.1 else round(100 * chance.random(), 2)
        name = "" if chance.random() < 0.05 else f"u, {user}" if user < 3 else f"u{user}"
        item = more.choice([*items, f"i{more.randrange(30)}", ""])
        day = f"2026-11-{more.randrange(1, 31):02d}" if more.random() < 0.9 else ""
        clicked = int(chance.random() < 0.1 + user / 50)
        rows.append([clicked, hour, price, session, name, "|".join(items), item, day])
    return rows


def write_csv(path: Path, rows: list[Row], header: list[str] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path


def body_of(rows: Sequence[object]) -> bytes:
    """The body of a request to dlrm-serve."""
    return json.dumps({"rows": rows}).encode()
