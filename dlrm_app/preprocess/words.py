"""Numbers as people read them; dlrm_app.display.numbers has them."""

from dlrm_app.display.numbers import bytes_text, count, duration, percent, short

__all__ = ["bytes_text", "count", "duration", "percent", "short"]
