"""Which GPU each worker of `octavo up` runs on, and how much of it.

Found without torch, which the parent process does not load.
"""

from pathlib import Path

GPU_SHARE = 0.9


def count_gpus(devices: Path = Path("/dev")) -> int:
    """NVIDIA devices of this machine."""
    return sum(path.name[len("nvidia") :].isdigit() for path in devices.glob("nvidia*"))


def gpu_environment(index: int, num_workers: int, num_gpus: int) -> dict[str, str]:
    """Workers take the GPUs in turn; those that meet on one divide its memory equally."""
    if num_gpus == 0:
        return {}
    gpu = index % num_gpus
    num_sharing = len(range(gpu, num_workers, num_gpus))
    return {
        "CUDA_VISIBLE_DEVICES": str(gpu),
        "OCTAVO_GPU_MEMORY_UTILIZATION": f"{GPU_SHARE / num_sharing:.3f}",
    }
