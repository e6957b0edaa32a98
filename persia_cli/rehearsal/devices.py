"""The GPUs that torch sees: `python -m persia_cli.rehearsal.devices` writes it as one JSON object."""

import json

import torch

if __name__ == "__main__":
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    found = [{"name": each.name, "memory": each.total_memory} for each in gpus]
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": found}))
