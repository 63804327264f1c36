"""trainer.compile: what is chosen, what is kept by a run that goes on, and what is refused."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlrm_app.errors import ConfigError
from dlrm_app.training.compile_choice import with_compile
from tests.plain_training import compose_train

DCN = ["model=dcn", "trainer.precision=bf16"]


def choose(*settings: str, before: bool | None = None, device: str = "cpu") -> bool:
    runtime: Any = SimpleNamespace(device=torch.device(device), is_first=True)
    run = None if before is None else compose_train(f"trainer.compile={str(before).lower()}")
    chosen: bool = with_compile(compose_train(*settings), run, runtime).trainer.compile
    return chosen


@pytest.mark.parametrize(
    ("settings", "device", "chosen", "why"),
    [
        (DCN, "cpu", True, "the sums of DCNv2's cross layers in bf16"),
        (["model=dcn"], "cpu", False, "dcn in fp32 is as fast without"),
        (["model=dlrm", "trainer.precision=bf16"], "cpu", False, "dlrm in bf16 is as fast without"),
        (DCN, "cuda", False, "has not been measured on GPUs"),
    ],
)
def test_auto_goes_by_what_was_measured(
    settings: list[str], device: str, chosen: bool, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert choose(*settings, "trainer.compile=auto", device=device) is chosen
    assert f"trainer.compile=auto: {str(chosen).lower()}, " in caplog.text
    assert why in caplog.text


@pytest.mark.parametrize("kept", [True, False])
def test_auto_keeps_what_the_run_had(kept: bool) -> None:
    assert choose("trainer.compile=auto", before=kept) is kept
    assert choose(*DCN, "trainer.compile=auto", before=kept) is kept


@pytest.mark.parametrize("asked", [True, False])
def test_what_is_asked_for_is_taken(asked: bool) -> None:
    assert choose(*DCN, f"trainer.compile={str(asked).lower()}", before=not asked) is asked


@pytest.mark.parametrize("value", ["yes_please", "null", "3"])
def test_another_word_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.compile must be one of false, true, auto, got"):
        compose_train(f"trainer.compile={value}")
