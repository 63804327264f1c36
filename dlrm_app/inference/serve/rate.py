"""A limit on requests a second."""

import time


class RateLimit:
    """Lets ``per_second`` pass on average, and so many at once after a pause (a token bucket). None: no limit."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._left = max(1.0, per_second or 0.0)
        self._at = time.monotonic()

    def admits(self) -> bool:
        """Whether one more may pass now; if so it is counted."""
        if self._per_second is None:
            return True
        now = time.monotonic()
        self._left = min(max(1.0, self._per_second), self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
