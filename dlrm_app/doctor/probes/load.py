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
        facts["why_no_gpu"] = None if facts["gpus"] or not facts["cuda"] else why_no_gpu(module)
    print(json.dumps(facts))


def describe_gpu(torch: Any, index: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(index)
    capability = torch.cuda.get_device_capability(index)
    return {"name": torch.cuda.get_device_name(index), "free": free, "total": total, "capability": capability}


def why_no_gpu(torch: Any) -> str | None:
    """What torch says when it is made to use a GPU."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return None


if __name__ == "__main__":
    main()
