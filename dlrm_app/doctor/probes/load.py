"""Imports the module named on the command line and says what it is: version, and for torch its devices."""

import importlib
import json
import sys
from typing import Any


def main() -> None:
    module = importlib.import_module(sys.argv[1])
    facts: dict[str, Any] = {"version": str(getattr(module, "__version__", "unknown"))}
    if sys.argv[1] == "torch":
        facts["cuda"] = module.version.cuda
        facts["threads"] = module.get_num_threads()
        facts["gpus"] = [describe_gpu(module, index) for index in range(module.cuda.device_count())]
    print(json.dumps(facts))


def describe_gpu(torch: Any, index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    return {"name": torch.cuda.get_device_name(index), "free": free, "total": total}


if __name__ == "__main__":
    main()
