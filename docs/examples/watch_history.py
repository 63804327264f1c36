"""Writes a made-up log of video views as Parquet in Hive folders, for docs/tutorial-histories.md.

    python docs/examples/watch_history.py out/watch/log

Each row shows a video to a user, with the videos that the user has watched before, the newest at the end. A video is
clicked if it is like one of the last ones: people come back to a topic, they do not watch the mean of their topics. The
same rows every time.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DAYS, ROWS, USERS, VIDEOS, LAST = ["2026-11-20", "2026-11-21", "2026-11-22"], 20_000, 1_000, 200, 8


def main() -> None:
    chance = np.random.default_rng(0)
    topics = chance.normal(size=(VIDEOS, 3))
    topics /= np.linalg.norm(topics, axis=1, keepdims=True)
    history: list[list[int]] = [[] for _ in range(USERS)]
    for day in DAYS:
        columns: dict[str, list[object]] = {"clicked": [], "user": [], "video": [], "watched": [], "hour": []}
        for row in range(ROWS):
            user, video = int(chance.integers(USERS)), int(VIDEOS * chance.random() ** 1.5)
            before = history[user]
            nearest = max((float(topics[video] @ topics[each]) for each in before[-LAST:]), default=-1.0)
            clicked = chance.random() < 1 / (1 + np.exp(2.2 - 4.5 * np.exp(8 * (nearest - 1))))
            columns["clicked"].append(int(clicked))
            columns["user"].append(f"u{user}")
            columns["video"].append(f"v{video}")
            columns["watched"].append([f"v{each}" for each in before])
            columns["hour"].append(24 * row // ROWS)
            if clicked or chance.random() < 0.2:  # some are found elsewhere
                history[user] = [*before, video][-30:]
        folder = Path(sys.argv[1]) / f"dt={day}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), folder / "part-00000.parquet")


if __name__ == "__main__":
    main()
