"""Sources of synthetic clicks that are quickly made."""

import pytest


@pytest.fixture
def quick_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """For laws that hold for any scale of the logits, which a small sample sets quickly."""
    monkeypatch.setattr("dlrm_app.tools.synthetic.signal.PILOT_ROWS", 1 << 12)
