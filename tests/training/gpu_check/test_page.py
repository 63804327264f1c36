"""What the page and the table to paste say of made-up findings."""

from dataclasses import replace

from dlrm_app.training.gpu_check.outcome import OUT_OF_TIME, Findings, Outcome, Speed, State
from dlrm_app.training.gpu_check.page import findings_markdown, findings_page

SOUND = Findings(
    device="cuda",
    ranks=8,
    seconds=300.0,
    versions="torch 2.13.0",
    machine=[("cuda:0", "ok", "NVIDIA H100")],
    outcomes=[Outcome("base, sgd, table_wise, fused", State.OK, 1.5, 1e-7), Outcome("late", State.NOT_RUN)],
    syncs=[("torchrec/dist_data.py:12", 2.0)],
    speeds=[Speed("fp32", 4_000_000, 4.0, 1.0)],
)
WRONG = replace(
    SOUND,
    outcomes=[
        *SOUND.outcomes,
        Outcome("prefetch, adam", State.DIFFERS, 2.0, 0.5),
        Outcome("semi_sync, lamb", State.FAILED, 2.0, remark="CUDA error: a | b <c>"),
    ],
)


def test_findings_are_sound_unless_something_that_ran_is_wrong() -> None:
    assert SOUND.is_sound
    assert not WRONG.is_sound
    assert not replace(SOUND, outcomes=[Outcome("late", State.NOT_RUN)]).is_sound
    assert replace(SOUND, outcomes=[]).is_sound
    assert not replace(SOUND, machine=[("nccl", "WRONG", "no")]).is_sound
    assert not replace(SOUND, syncs="it failed").is_sound
    assert not replace(SOUND, speeds=[Speed("bf16", fault="no memory")]).is_sound


def test_speed_and_waits_may_be_late_where_cases_were_run() -> None:
    late = replace(SOUND, syncs=OUT_OF_TIME, speeds=[Speed("bf16", fault=OUT_OF_TIME)])
    assert late.is_sound
    assert not replace(late, outcomes=[]).is_sound
    assert f"| bf16: {OUT_OF_TIME} |" in findings_markdown(late)
    assert f"were not counted: {OUT_OF_TIME}" in findings_page(late)


def test_the_table_to_paste_names_what_is_wrong_and_counts_the_rest() -> None:
    text = findings_markdown(WRONG)
    assert "4 cases: 1 ok, 1 DIFFERS, 1 FAILED, 1 not run" in text
    assert "| prefetch, adam | DIFFERS | 5.0e-01 | 2.0 |" in text
    assert "CUDA error: a / b <c> |" in text
    assert "base, sgd" not in text
    assert "- torchrec/dist_data.py:12: 2.00" in text
    assert "| fp32 | 4,000,000 | 4.00 | 1.00 | 25% |" in text


def test_the_page_shows_all_cases_and_escapes_what_libraries_say() -> None:
    html = findings_page(WRONG)
    for part in (
        "base, sgd, table_wise, fused",
        "a | b &lt;c&gt;",
        "NVIDIA H100",
        "torchrec/dist_data.py:12",
    ):
        assert part in html
    assert "No case differs or failed." in findings_page(SOUND)
    assert "The speed was not measured." in findings_page(replace(SOUND, speeds=[]))
    assert "The speed was not measured." in findings_markdown(replace(SOUND, speeds=[]))
    assert "there is none" in findings_page(replace(SOUND, syncs=None))
