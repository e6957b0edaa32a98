"""The GPUs that torch sees: `python -m persia_cli.rehearsal.devices` writes it as one JSON object."""

import json

import torch

if __name__ == "__main__":
    gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    described = [{"name": gpu.name, "memory": gpu.total_memory} for gpu in gpus]
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": described}))
