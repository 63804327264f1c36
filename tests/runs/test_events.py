"""Events as lines of metrics.jsonl."""

import pytest

from dlrm_app.records import from_json
from dlrm_app.runs.checkpoint.evaluation import Evaluation
from dlrm_app.runs.events import Event, RunResult, TrainEvent, event_from_json, event_to_json

EVENTS: list[Event] = [
    TrainEvent(0, 3, 0.5, 1000.0, {"dense": 0.1, "sparse": 0.2}),
    TrainEvent(0, 6, 0.5, 1000.0, {"dense": 0.1, "sparse": 0.2}, {"lookup": 1.5}),
    Evaluation("val", 0, 3, {"auc": 0.75, "logloss": 0.5}),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_line_gives_the_event_back(event: Event) -> None:
    assert event_from_json({**event_to_json(event), "time": 1.7e9}) == event


@pytest.mark.parametrize(
    "damage", [[], "", {}, {"evals": []}, {"evals": "val"}, {"evals": {"val": 3}}, {"evals": 0}]
)
def test_an_invalid_result_is_refused(damage: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        from_json(RunResult, damage)
