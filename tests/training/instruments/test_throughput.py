"""Samples a second are those of the steps: time spent on evaluations and saves is left out."""

import time

import pytest

from dlrm_app.training.instruments.throughput import Throughput


def test_what_is_left_out_neither_slows_the_steps_down_nor_drops_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    throughput = Throughput(512)
    for _ in range(4):
        now[0] += 0.5
        throughput.add_step()
    now[0] += 30  # a save
    throughput.leave_out(30)
    now[0] += 0.5
    throughput.add_step()
    assert throughput.read() == (1024.0, 0.5)
