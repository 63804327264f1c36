"""Prints a made-up click log of a web shop as CSV, for docs/tutorial.md.

    python docs/examples/shop_clicks.py > clicks.csv

Whether a row is clicked depends on the user's and the item's hidden taste, the price, and whether the user looked at
the item before, so there is something to learn. The same rows every time.
"""

import csv
import math
import random
import sys

ROWS, USERS, ITEMS = 60_000, 1_500, 600
CATEGORIES = ["books", "garden", "kitchen", "music", "sports", "toys"]


def main() -> None:
    chance = random.Random(0)
    user_taste = [[chance.gauss(0, 1) for _ in CATEGORIES] for _ in range(USERS)]
    item_appeal = [chance.gauss(0, 1) for _ in range(ITEMS)]
    last_items: list[list[int]] = [[] for _ in range(USERS)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["clicked", "hour", "price", "session", "user", "item", "category", "last_items"])
    for session in range(ROWS):
        user = int(USERS * chance.random() ** 2)  # a few users and items make up most rows
        item = int(ITEMS * chance.random() ** 2)
        category = item % len(CATEGORIES)
        hour, price = chance.randrange(24), round(math.exp(chance.gauss(3, 1)), 2)
        logit = -1.5 + user_taste[user][category] + item_appeal[item] - 0.3 * (math.log(price) - 3)
        logit += 1.5 * (item in last_items[user])
        clicked = chance.random() < 1 / (1 + math.exp(-logit))
        seen = "|".join(f"i{number}" for number in last_items[user])
        shown_price = "" if chance.random() < 0.02 else price  # some prices are missing
        writer.writerow(
            [int(clicked), hour, shown_price, session, f"u{user}", f"i{item}", CATEGORIES[category], seen]
        )
        last_items[user] = [item, *last_items[user]][:5]


if __name__ == "__main__":
    main()
