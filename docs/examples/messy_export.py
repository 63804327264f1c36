"""Prints a made-up export of a database as CSV, with all that such exports have, for docs/tutorial-own-data.md.

    python docs/examples/messy_export.py > impressions.csv

Columns that nobody asked for, NULL and empty fields, True and False, ids written as 1018.0 where one was missing, and
texts with line breaks in quotes. Whether a row is clicked depends on the user and the campaign. The same rows every time.
"""

import csv
import math
import random
import sys

ROWS, USERS, CAMPAIGNS = 40_000, 800, 300
HEADER = ["impression_id", "campaign", "user", "title", "position", "price", "device", "Clicked", "country"]


def main() -> None:
    chance = random.Random(1)
    likes = [chance.gauss(0, 1) for _ in range(USERS)]
    appeal = [chance.gauss(0, 1.2) for _ in range(CAMPAIGNS)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(HEADER)
    for number in range(ROWS):
        user, campaign = int(USERS * chance.random() ** 2), int(CAMPAIGNS * chance.random() ** 2)
        position, price = chance.randrange(1, 9), round(math.exp(chance.gauss(3, 1)), 2)
        logit = -1 + likes[user] + appeal[campaign] - 0.2 * position
        title = f"Offer {campaign}, only today" + "\nwhile stocks last" * (chance.random() < 0.03)
        writer.writerow(
            [
                number,
                "NULL" if chance.random() < 0.02 else f"{1000 + campaign}.0",
                f"u{user}",
                title,
                position,
                "NULL" if chance.random() < 0.1 else price,
                chance.choice(["phone", "desktop", "NULL"]),
                chance.random() < 1 / (1 + math.exp(-logit)),
                "",
            ]
        )


if __name__ == "__main__":
    main()
