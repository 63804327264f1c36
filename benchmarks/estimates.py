"""Estimated steps beside measured ones on this machine, and beside published ones of GPUs; every ratio is printed.

    python benchmarks/estimates.py measured                  # calibrates, then trains four models, on 1, 2 and 4 ranks
    python benchmarks/estimates.py measured --ranks 2 --models multi-hot --parts
    python benchmarks/estimates.py data --folder FOLDER      # the rows of measured, kept for --folder FOLDER there
    python benchmarks/estimates.py published                 # computed alone

``measured``: dlrm-plan calibrate=true, dlrm-plan for each model with what it wrote, and dlrm-bench's whole step from
disk, of more row groups than the reader has lanes, so that it decodes beside the steps; means, for it reads in bursts.
On stderr how fast matrix products were both times, for a machine changes. ``published``: Merlin's synthetic models,
torchrec_dlrm and MLPerf's DLRM-DCNv2, with the vendors' figures of their GPUs, half of which is taken to be reached,
and batches in memory; published throughput over estimated.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from train_models import KAGGLE_ROWS

MODELS = {
    "small": ([10_000] * 26, 32, 1, ["model.bottom_mlp=[512,256,32]", "model.top_mlp=[512,256,1]"], 2048),
    "kaggle": (KAGGLE_ROWS, 16, 1, ["model.bottom_mlp=[512,256,64,16]", "model.top_mlp=[512,256,1]"], 2048),
    "wide": ([50_000] * 16, 64, 1, ["model.bottom_mlp=[512,256,64]", "model.top_mlp=[1024,512,256,1]"], 4096),
    "multi-hot": ([100_000] * 8, 32, 10, ["model.bottom_mlp=[256,32]", "model.top_mlp=[256,1]"], 4096),
}
"""Rows of the tables, their width, ids a row, MLPs, batch."""
NUM_DENSE, VALUES = 13, 80_000_000

MERLIN = {
    "tiny": {1: 24.4, 8: 5.5, 16: 4.9},
    "small": {1: 67.4, 8: 17.2, 16: 12.5, 32: 11.8},
    "medium": {8: 63.4, 16: 46.6, 32: 37.7, 128: 27.3},
    "large": {32: 67.6, 128: 37.9},
    "jumbo": {128: 124.3},
}
"""Milliseconds of a step of 65,536 by GPUs of a DGX A100 (NVIDIA Merlin distributed-embeddings' README)."""
CRITEO = [
    (f"torchrec_dlrm, 8×A100-40GB, batch {batch:,} a GPU", speed, ["topology=a100_40g_8", "tables=mlperf_dlrm_v1",
     "tables.embedding_dim=128", "model.bottom_mlp=[512,256,128]", "model.top_mlp=[1024,1024,512,256,1]",
     "optimizer=sgd", f"trainer.global_batch_size={8 * batch}"])
    for batch, speed in ((2048, 205e3), (16_384, 926e3), (131_072, 1.19e6))
]  # fmt: skip
H200 = ["topology.devices_per_node=8", "topology.memory_gib=141", "topology.memory_gbps=4800",
        "topology.fp32_tflops=67", "topology.bf16_tflops=989", "topology.intra_node_gbps=450"]  # fmt: skip
MLPERF = ["experiment=mlperf_dcnv2", "topology=a100_80g", "trainer.precision=bf16", *H200]
PUBLISHED = [
    *(
        (f"Merlin {model}, {gpus} A100-80GB", 65_536_000 / ms, [f"experiment=merlin_{model}", *gpu_keys])
        for model, by_gpus in MERLIN.items()
        for gpus, ms in by_gpus.items()
        for gpu_keys in [
            [
                "topology=a100_80g",
                f"topology.nodes={max(1, gpus // 8)}",
                f"topology.devices_per_node={min(8, gpus)}",
            ]
        ]
    ),
    *CRITEO,
    ("MLPerf DLRM-DCNv2, 8×H200 (v4.0)", 15.0e6, MLPERF),
]


def call(name: str, keys: list[str], ranks: int = 1, threads: int | None = None) -> str:
    """What ``dlrm-NAME keys`` prints; ends the program if it fails."""
    start = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    )
    more = [f"trainer.threads={threads}"] if threads else []
    command = [sys.executable, *start, "-m", f"dlrm_app.cli.{name}", *keys, *more]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def estimated_speed(printed: str) -> float:
    found = re.search(r"a whole step, estimated .*: ([\d,]+) samples/s", printed)
    if found is None:
        sys.exit(f"no estimate in:\n{printed[-1500:]}")
    return float(found[1].replace(",", ""))


def estimated_ms(printed: str) -> dict[str, float]:
    """Part → milliseconds, "all" too, of dlrm-plan's table."""
    _, found, table = printed.partition("a whole step, estimated")
    if not found:
        sys.exit(f"no estimate in:\n{printed[-1500:]}")
    rows = re.findall(r"^(\w[\w ]*?) {2,}([\d.,]+)(?:  |$)", table, flags=re.MULTILINE)
    return {part: float(ms.replace(",", "")) for part, ms in rows}


def make_data(names: list[str], folder: Path) -> None:
    """Tables and rows of each model, VALUES of them; kept where they are there already."""
    for name in names:
        rows, dim, ids, _, _ = MODELS[name]
        specs = [
            {"name": f"t_{i}", "rows": n, "dim": dim, "features": [f"f_{i}"], "pooling_factors": [ids]}
            for i, n in enumerate(rows)
        ]
        tables, dataset = folder / f"{name}.yaml", folder / f"{name}-dataset"
        tables.write_text(yaml.safe_dump({"specs": specs}))
        if not (dataset / "manifest.json").exists():
            num_rows = VALUES // (NUM_DENSE + ids * len(rows))
            keys = [f"tables={tables}", "format=dataset", f"num_dense={NUM_DENSE}"]
            call("generate", [*keys, f"rows={num_rows}", f"output={dataset}"])


def measured(ranks: int, names: list[str], parts: bool, data: Path, folder: Path) -> None:
    calibrated = ["calibrate=true", f"output={folder}", "tables=criteo_kaggle", "tables.embedding_dim=16"]
    call("plan", calibrated, ranks)
    for name in names:
        _, _, _, mlps, batch = MODELS[name]
        keys = [f"tables={data / name}.yaml", *mlps, f"trainer.global_batch_size={batch}"]
        keys.append(f"topology={folder / 'topology.yaml'}")  # of both: other bandwidths make another plan
        planned = estimated_ms(call("plan", [*keys, "smallest=false"]))
        rows = f"data.path={data / name}-dataset"
        call("bench", [*keys, rows, "measure=[step]", "steps=40", f"output={folder / name}"], ranks)
        bench = json.loads((folder / name / "bench.json").read_text())
        section = bench["sections"][0]
        taken = {line["name"]: line["mean"] for line in [*section["parts"], section["all"]]}
        cells = [f"{1000 * batch / each:,.0f}" for each in (planned["all"], taken["all"])]
        print(f"| {name} | {ranks} | {' | '.join(cells)} | {taken['all'] / planned['all']:.2f} |", flush=True)
        then = yaml.safe_load((folder / "topology.yaml").read_text())["fp32_tflops"]
        now = bench["machine"]["matrix products"]
        print(f"    products at {1000 * then:,.0f} GFLOP/s while calibrating, then {now}", file=sys.stderr)
        if parts:
            pairs = (f"{part} {planned.get(part, 0):.2f}/{ms:.2f}" for part, ms in taken.items())
            print(f"    ms, estimated/measured: {', '.join(pairs)}", flush=True)


IN_MEMORY = ["topology.loader_rows_per_second=1e15", "topology.loader_ids_per_second=1e15"]


def published() -> None:
    print("| | estimated, samples/s | published | published over estimated |\n|---|---:|---:|---:|")
    for name, speed, keys in PUBLISHED:
        planned = estimated_speed(call("plan", [*keys, *IN_MEMORY, "smallest=false"]))
        print(f"| {name} | {planned:,.0f} | {speed:,.0f} | {speed / planned:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("measured", "data", "published"))
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--models", default=",".join(MODELS), help="of measured")
    parser.add_argument("--parts", action="store_true", help="measured: also by part of the step")
    parser.add_argument("--folder", type=Path, help="keeps the rows for the next time")
    options = parser.parse_args()
    if options.what == "published":
        return published()
    names = options.models.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        data = options.folder or Path(temporary)
        data.mkdir(parents=True, exist_ok=True)
        make_data(names, data)
        if options.what == "data":
            return None
        print(
            "| model | ranks | estimated, samples/s | measured | estimated over measured |\n|---|---:|---:|---:|---:|"
        )
        for ranks in map(int, options.ranks.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                measured(ranks, names, options.parts, data, Path(folder))
    return None


if __name__ == "__main__":
    main()
