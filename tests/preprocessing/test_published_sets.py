"""Descriptions of published sets (docs/examples) read rows of the form that the published files have."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.preprocessing.running import run, table_of

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NUMBERS, IDS = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
AVAZU = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
AVAZU += "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
TAOBAO = (
    "clk,btag_his,cate_his,brand_his,userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
)
TAOBAO += "shopping_level,occupation,new_user_class_level,adgroup_id,cate_id,campaign_id,customer,brand,price,pid,btag"
KUAIRAND = "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
KUAIRAND += "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab"
SETS = {
    "criteo_x4": (
        ",".join(["Label", *NUMBERS, *IDS]),
        "{label},1,-1,,5,1382,4,15,2,181,1,2,,2,68fd1e64,80e26c9b,fb936136,7b4723c4,25c83c98,7e0ccccf,de7995b8,1f89b562,"
        "a73ee510,a8cd5504,b2cb9c98,37c9c164,2824a5f6,1adce6ef,8ba8b39a,891b62e7,e5ba7672,f54016b9,21ddcdc9,b1252a9d,"
        "07b5194c,,3a171ecb,c5c50484,e8b83407,9727dd16",
    ),
    "criteo_x1": (
        ",".join(["label", *NUMBERS, *IDS]),
        "{label}," + ",".join(["0.05"] * 13) + "," + ",".join(f"{n}" for n in range(7, 33)),
    ),
    "avazu_x4": (
        AVAZU,
        "1000009418151094273,{label},14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,a99f214a,"
        "ddd2926e,44956a24,1,2,15706,320,50,1722,0,35,-1,79",
    ),
    "taobaoad_x1": (
        TAOBAO,
        "{label},1^1^4,6421^4282,91286^352,581738,49,6,2,6,1,3,0,4,23236,4281,3379,190,22,170.0,430548_1007,1",
    ),
    "movielenslatest_x1": ("label,user_id,item_id,tag_id", "{label},6534,65012,20015"),
    "kuairand_1k": (
        KUAIRAND,
        "0,3784,20220408,1500,1649401938410,{label},0,0,0,0,0,{label},0,{number},0,0,0,0,1",
    ),
}


@pytest.mark.parametrize("name", SETS)
def test_a_published_row_is_read(tmp_path: Path, name: str) -> None:
    header, row = SETS[name]
    rows = [row.format(label=number % 2, number=1000 + number) for number in range(40)]
    (tmp_path / "train.csv").write_text("\n".join([header, *rows]) + "\n")
    words = [f"dataset={EXAMPLES}/{name}.yaml", f"input.train={tmp_path}/train.csv", "encoding=hash"]
    manifest = run(tmp_path / "out", *words, "encoding.num_embeddings=50", "rejects.max_fraction=0")
    table = table_of(manifest)
    assert manifest.splits["train"].rows == 40
    assert table[manifest.label].to_pylist() == [number % 2 for number in range(40)]
    assert len(manifest.sparse) + len(manifest.dense) >= 3


def test_every_description_has_a_row() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(SETS)


def test_the_hour_of_avazu_is_read(tmp_path: Path) -> None:
    """14102100 is midnight of 21 October 2014, a Tuesday."""
    header, row = SETS["avazu_x4"]
    (tmp_path / "train.csv").write_text(
        "\n".join([header, *[row.format(label=n % 2) for n in range(9)]]) + "\n"
    )
    words = [f"dataset={EXAMPLES}/avazu_x4.yaml", f"input.train={tmp_path}/train.csv"]
    manifest = run(tmp_path / "out", *words, "encoding=vocab", "encoding.min_count=1")
    for name, value in (("hour_of_day", "0"), ("weekday", "1")):
        vocabulary = pq.read_table(manifest.folder / "vocab" / f"{name}.parquet")
        assert value in map(str, vocabulary.column("value").to_pylist())
