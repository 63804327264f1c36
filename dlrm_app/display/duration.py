"""A time span as people read it."""


def format_duration(seconds: float) -> str:
    """``4.2 s``, ``42 s``, ``3 min 20 s``, ``5 h 07 min``, ``2 d 03 h``: two units at most."""
    whole = round(seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"
