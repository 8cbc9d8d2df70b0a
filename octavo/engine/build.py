"""Makes an engine of a config: resolve, load, size the pool, wire the parts."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from octavo.checkpoint.config import ModelConfig, load_config
from octavo.checkpoint.fingerprint import model_fingerprint
from octavo.checkpoint.resolve import resolve_model
from octavo.engine.adapters import Adapters
from octavo.engine.block_pool import BlockPool
from octavo.engine.config import EngineConfig
from octavo.engine.cores import Cores
from octavo.engine.cuda_graphs import CudaRecorder, GraphedModel
from octavo.engine.decode_rows import DecodeRows
from octavo.engine.draft_planner import DraftPlanner
from octavo.engine.engine import Engine
from octavo.engine.errors import NoGpu
from octavo.engine.host_blocks import HostBlocks
from octavo.engine.kv_cache import FP8, KVCache, KVLayout, torch_dtype
from octavo.engine.limits import Limits
from octavo.engine.model_runner import Model, ModelRunner
from octavo.engine.models import DecoderModel, load_model
from octavo.engine.preemption_cost import PreemptionCost
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.row_cost import row_cost
from octavo.engine.scheduler import Scheduler
from octavo.engine.shared_prefixes import policy_for
from octavo.engine.sizing import (
    default_cpu_bytes,
    free_gpu_bytes,
    num_blocks_within,
    num_swap_blocks,
)
from octavo.engine.step_budget import GPU_TOKENS, default_step_tokens
from octavo.engine.swap_space import SwapSpace
from octavo.kernels.select import Kernels, check_kv_dtype, for_device

RECORD_AHEAD_S = 20.0

logger = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig, kernels: Kernels | None = None, cores: Cores | None = None
) -> Engine:
    """Load the model and give it a pool.

    Args:
        kernels: by default the device's own; the reference ones make a slow yardstick.
        cores: who runs on which; by default one thread, anywhere.

    Raises:
        ModelNotFound, UnsupportedModel, CheckpointError: from octavo/checkpoint.
        NotEnoughMemory: no room for KV.
    """
    path = resolve_model(config.model)
    model_config = load_config(path)
    device = choose_device(config.device)
    if config.max_num_batched_tokens is None:
        tokens = default_step_tokens(model_config, device)
        config = replace(config, max_num_batched_tokens=tokens)
    dtype = choose_dtype(config.dtype, model_config, device)
    layout = build_layout(config, dtype, model_config, path)
    decoder = load_decoder(config, path, torch_dtype(dtype), layout, kernels)
    adapters = load_adapters(config, decoder, layout, torch_dtype(dtype))
    kv_cache = KVCache(layout, choose_num_blocks(config, layout, decoder, device), device)
    scheduler = build_scheduler(config, kv_cache, model_config, device)
    quantized = f" with {config.quantization} weights" if config.quantization else ""
    where = f"{config.model} on {device} in {dtype}{quantized}"
    pool = f"{kv_cache.num_blocks} blocks of {config.block_size} tokens"
    logger.info("%s: %s, context %d", where, pool, scheduler.limits.max_model_len)
    model: Model = decoder
    if device.type == "cuda" and config.cuda_graphs:
        vocab_size = model_config.vocab_size
        model = record_graphs(decoder, kv_cache, scheduler, vocab_size, torch_dtype(dtype))
    elif device.type == "cpu" and kernels is None:
        model = record_steps(decoder, kv_cache, scheduler)
    if cores is not None and not _is_shared(layout, device):
        cores.work_alone()
    heads_per_row = model_config.num_heads // model_config.num_kv_heads
    policy = policy_for(device, torch_dtype(dtype), heads_per_row)
    limits = scheduler.limits
    max_blocks = -(-limits.max_model_len // limits.block_size)
    rows = DecodeRows(limits.max_decode_rows, max_blocks, limits.block_size)
    runner = ModelRunner(model, kv_cache.kv, policy, rows, cores)
    return Engine(scheduler, runner, kv_cache, model_config, cores, adapters=adapters)


def load_decoder(
    config: EngineConfig,
    path: Path,
    dtype: torch.dtype,
    layout: KVLayout,
    kernels: Kernels | None,
) -> DecoderModel:
    """The model in dtype on its device; None takes, and compiles, the device's own kernels."""
    device = choose_device(config.device)
    if kernels is None:
        check_kv_dtype(device, layout.torch_dtype)
    decoder = load_model(
        path,
        dtype=dtype,
        device=device,
        kernels=kernels or for_device(device),
        quantization=config.quantization,
        kv_dtype=layout.torch_dtype,
    )
    if kernels is None and device.type == "cpu":
        from octavo.kernels.cpu.ops import warm_up

        warm_up(dtype)  # the first request must not wait for a compiler
    return decoder


def build_layout(
    config: EngineConfig, dtype: str, model_config: ModelConfig, path: Path
) -> KVLayout:
    """What a block holds; dtype is that of the weights."""
    return KVLayout(
        dtype=FP8 if config.kv_dtype == "fp8" else dtype,
        num_layers=model_config.num_layers,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        block_size=config.block_size,
        model_fingerprint=model_fingerprint(path),
        quantization=config.quantization or "",
    )


def load_adapters(
    config: EngineConfig, decoder: DecoderModel, layout: KVLayout, dtype: torch.dtype
) -> Adapters:
    """The adapters that are there from the start, in what reads others later."""
    has_fp8_cache = layout.torch_dtype == torch.float8_e4m3fn
    adapters = Adapters(
        decoder.adapter_loader(dtype, config.max_lora_rank, has_fp8_cache=has_fp8_cache).read,
        config.max_loras,
    )
    for name, path in config.lora.items():
        adapter = adapters.load(name, Path(path))
        logger.info("adapter %s of rank %d from %s", name, adapter.rank, path)
    return adapters


def record_graphs(
    model: Model, kv_cache: KVCache, scheduler: Scheduler, vocab_size: int, dtype: torch.dtype
) -> GraphedModel:
    """The model with its decode steps recorded, the usual ones already."""
    graphed = GraphedModel(
        model,
        kv_cache.kv,
        CudaRecorder(kv_cache.kv.device),
        max_num_seqs=scheduler.limits.max_decode_rows,
        max_model_len=scheduler.limits.max_model_len,
        vocab_size=vocab_size,
        dtype=dtype,
    )
    num_graphs = graphed.record_ahead(RECORD_AHEAD_S)
    logger.info("%d CUDA graphs recorded ahead", num_graphs)
    return graphed


def record_steps(decoder: DecoderModel, kv_cache: KVCache, scheduler: Scheduler) -> Model:
    """The model with its decode steps recorded as they come up."""
    from octavo.engine.models.recorded_step import RecordedModel

    return RecordedModel(
        decoder,
        kv_cache.kv,
        max_num_seqs=scheduler.limits.max_decode_rows,
        max_model_len=scheduler.limits.max_model_len,
    )


def build_scheduler(
    config: EngineConfig, kv_cache: KVCache, model_config: ModelConfig, device: torch.device
) -> Scheduler:
    """A scheduler over an empty pool; the context is clamped to what the pool holds."""
    num_blocks = kv_cache.num_blocks
    pool = BlockPool(num_blocks)
    max_positions = model_config.max_position_embeddings
    limits = Limits(
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or GPU_TOKENS,
        max_model_len=min(
            config.max_model_len or max_positions, max_positions, num_blocks * config.block_size
        ),
        num_draft_rows=config.max_draft_tokens,
    )
    drafts = None
    if config.max_draft_tokens > 0:
        cost = row_cost(model_config, device, kv_cache.layout)
        drafts = DraftPlanner(pool, limits, config.max_draft_tokens, cost)
    prefix_cache = PrefixCache(pool, config.block_size)
    fingerprint = kv_cache.layout.model_fingerprint
    swap = build_swap(config, kv_cache)
    return Scheduler(pool, prefix_cache, limits, fingerprint, swap=swap, drafts=drafts)


def build_swap(config: EngineConfig, kv_cache: KVCache) -> SwapSpace | None:
    """Host memory for preempted sequences, if the policy wants any and there is some."""
    if config.preemption == "recompute":
        return None
    num_blocks = num_swap_blocks(config.swap_space_bytes, kv_cache)
    if num_blocks == 0:
        return None
    cost = PreemptionCost(config.block_size) if config.preemption == "auto" else None
    return SwapSpace(HostBlocks(kv_cache, num_blocks), num_blocks, config.block_size, cost)


def _is_shared(layout: KVLayout, device: torch.device) -> bool:
    """Whether helper threads take part in the products, which are most of a forward pass."""
    if device.type != "cpu":
        return False
    from octavo.kernels.cpu.linear import is_shared

    return is_shared(layout.torch_dtype, layout.quantization or None)


def choose_device(name: str) -> torch.device:
    """Raise NoGpu if a GPU is asked for and there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        remedy = "install a torch that is built for GPUs"
        for name, version in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip)):
            if version:
                remedy = (
                    f"give this process one (docker: --gpus all) and a driver for {name} {version}"
                )
        raise NoGpu(
            f"device is cuda, and torch finds no GPU (it is torch {torch.__version__}): {remedy}, "
            "or take --device cpu"
        )
    return torch.device(name)


def choose_dtype(name: str, model_config: ModelConfig, device: torch.device) -> str:
    if name != "auto":
        return name
    if device.type == "cuda":
        is_supported = torch.cuda.is_bf16_supported()
    else:
        # x86 with avx512_bf16 or amx, Arm with bf16; without, torch emulates it slowly.
        capabilities = torch.cpu.get_capabilities()
        is_supported = any(capabilities.get(f) for f in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if is_supported else model_config.dtype


def choose_num_blocks(
    config: EngineConfig, layout: KVLayout, model: Model, device: torch.device
) -> int:
    if config.num_blocks is not None:
        return config.num_blocks
    if device.type == "cpu":
        num_bytes = config.kv_cache_bytes
        return num_blocks_within(default_cpu_bytes() if num_bytes is None else num_bytes, layout)
    num_bytes = free_gpu_bytes(
        model,
        layout,
        config.max_num_batched_tokens or GPU_TOKENS,
        config.max_num_seqs,
        config.gpu_memory_utilization,
    )
    return num_blocks_within(num_bytes, layout)
