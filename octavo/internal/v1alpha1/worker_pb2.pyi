import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from octavo.inference.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]

class Transport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSPORT_UNSPECIFIED: _ClassVar[Transport]
    TRANSPORT_BYTES: _ClassVar[Transport]
    TRANSPORT_SHARED_MEMORY: _ClassVar[Transport]
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole
TRANSPORT_UNSPECIFIED: Transport
TRANSPORT_BYTES: Transport
TRANSPORT_SHARED_MEMORY: Transport

class KvLayout(_message.Message):
    __slots__ = ("protocol_version", "model_fingerprint", "dtype", "num_layers", "num_kv_heads", "head_dim", "block_size", "key_algorithm", "quantization")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    KEY_ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    model_fingerprint: str
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    key_algorithm: str
    quantization: str
    def __init__(self, protocol_version: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., dtype: _Optional[str] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., block_size: _Optional[int] = ..., key_algorithm: _Optional[str] = ..., quantization: _Optional[str] = ...) -> None: ...

class WorkerRef(_message.Message):
    __slots__ = ("worker_id", "address", "epoch")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    epoch: int
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class RequestKey(_message.Message):
    __slots__ = ("request_id", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class AdapterRef(_message.Message):
    __slots__ = ("name", "fingerprint", "rank")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    name: str
    fingerprint: str
    rank: int
    def __init__(self, name: _Optional[str] = ..., fingerprint: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class SequenceSpec(_message.Message):
    __slots__ = ("key", "prompt_token_ids", "output_token_ids", "sampling", "group_key", "output", "adapter")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    GROUP_KEY_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    key: RequestKey
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _inference_pb2.SamplingParams
    group_key: bytes
    output: _inference_pb2.OutputOptions
    adapter: AdapterRef
    def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., output_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_inference_pb2.SamplingParams, _Mapping]] = ..., group_key: _Optional[bytes] = ..., output: _Optional[_Union[_inference_pb2.OutputOptions, _Mapping]] = ..., adapter: _Optional[_Union[AdapterRef, _Mapping]] = ...) -> None: ...

class KvHandle(_message.Message):
    __slots__ = ("prefill",)
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    prefill: WorkerRef
    def __init__(self, prefill: _Optional[_Union[WorkerRef, _Mapping]] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("sample", "first_index", "token_ids", "finish_reason", "logprobs", "cumulative_logprob", "score")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    sample: int
    first_index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: _inference_pb2.FinishReason
    logprobs: _inference_pb2.TokenLogprobs
    cumulative_logprob: float
    score: float
    def __init__(self, sample: _Optional[int] = ..., first_index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[_Union[_inference_pb2.FinishReason, str]] = ..., logprobs: _Optional[_Union[_inference_pb2.TokenLogprobs, _Mapping]] = ..., cumulative_logprob: _Optional[float] = ..., score: _Optional[float] = ...) -> None: ...

class BeamCandidates(_message.Message):
    __slots__ = ("token_ids", "scores")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("first_index", "logprobs")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    logprobs: _inference_pb2.TokenLogprobs
    def __init__(self, first_index: _Optional[int] = ..., logprobs: _Optional[_Union[_inference_pb2.TokenLogprobs, _Mapping]] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("sequence", "will_be_pulled")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WILL_BE_PULLED_FIELD_NUMBER: _ClassVar[int]
    sequence: SequenceSpec
    will_be_pulled: bool
    def __init__(self, sequence: _Optional[_Union[SequenceSpec, _Mapping]] = ..., will_be_pulled: _Optional[bool] = ...) -> None: ...

class PrefillResponse(_message.Message):
    __slots__ = ("started", "token", "completed", "prompt_logprobs")
    class Started(_message.Message):
        __slots__ = ("cached_prompt_tokens",)
        CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        cached_prompt_tokens: int
        def __init__(self, cached_prompt_tokens: _Optional[int] = ...) -> None: ...
    class Completed(_message.Message):
        __slots__ = ("queue", "prefill", "transferred_blocks")
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        PREFILL_FIELD_NUMBER: _ClassVar[int]
        TRANSFERRED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        queue: _duration_pb2.Duration
        prefill: _duration_pb2.Duration
        transferred_blocks: int
        def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., transferred_blocks: _Optional[int] = ...) -> None: ...
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: PrefillResponse.Started
    token: TokenDelta
    completed: PrefillResponse.Completed
    prompt_logprobs: PromptLogprobs
    def __init__(self, started: _Optional[_Union[PrefillResponse.Started, _Mapping]] = ..., token: _Optional[_Union[TokenDelta, _Mapping]] = ..., completed: _Optional[_Union[PrefillResponse.Completed, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("start", "stop")
    class Start(_message.Message):
        __slots__ = ("sequence", "kv")
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        KV_FIELD_NUMBER: _ClassVar[int]
        sequence: SequenceSpec
        kv: KvHandle
        def __init__(self, sequence: _Optional[_Union[SequenceSpec, _Mapping]] = ..., kv: _Optional[_Union[KvHandle, _Mapping]] = ...) -> None: ...
    class Stop(_message.Message):
        __slots__ = ("samples",)
        SAMPLES_FIELD_NUMBER: _ClassVar[int]
        samples: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, samples: _Optional[_Iterable[int]] = ...) -> None: ...
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: DecodeRequest.Start
    stop: DecodeRequest.Stop
    def __init__(self, start: _Optional[_Union[DecodeRequest.Start, _Mapping]] = ..., stop: _Optional[_Union[DecodeRequest.Stop, _Mapping]] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("started", "tokens", "completed", "prompt_logprobs")
    class Started(_message.Message):
        __slots__ = ("cached_prompt_tokens",)
        CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        cached_prompt_tokens: int
        def __init__(self, cached_prompt_tokens: _Optional[int] = ...) -> None: ...
    class Completed(_message.Message):
        __slots__ = ("queue", "prefill", "transfer", "transferred_blocks", "preemptions")
        QUEUE_FIELD_NUMBER: _ClassVar[int]
        PREFILL_FIELD_NUMBER: _ClassVar[int]
        TRANSFER_FIELD_NUMBER: _ClassVar[int]
        TRANSFERRED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
        queue: _duration_pb2.Duration
        prefill: _duration_pb2.Duration
        transfer: _duration_pb2.Duration
        transferred_blocks: int
        preemptions: int
        def __init__(self, queue: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., transfer: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., transferred_blocks: _Optional[int] = ..., preemptions: _Optional[int] = ...) -> None: ...
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    started: DecodeResponse.Started
    tokens: TokenDelta
    completed: DecodeResponse.Completed
    prompt_logprobs: PromptLogprobs
    def __init__(self, started: _Optional[_Union[DecodeResponse.Started, _Mapping]] = ..., tokens: _Optional[_Union[TokenDelta, _Mapping]] = ..., completed: _Optional[_Union[DecodeResponse.Completed, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class PrefillManyRequest(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("call", "request", "cancel", "timeout")
        CALL_FIELD_NUMBER: _ClassVar[int]
        REQUEST_FIELD_NUMBER: _ClassVar[int]
        CANCEL_FIELD_NUMBER: _ClassVar[int]
        TIMEOUT_FIELD_NUMBER: _ClassVar[int]
        call: int
        request: PrefillRequest
        cancel: CancelCall
        timeout: _duration_pb2.Duration
        def __init__(self, call: _Optional[int] = ..., request: _Optional[_Union[PrefillRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelCall, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[PrefillManyRequest.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[PrefillManyRequest.Item, _Mapping]]] = ...) -> None: ...

class PrefillManyResponse(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("call", "response", "end")
        CALL_FIELD_NUMBER: _ClassVar[int]
        RESPONSE_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        call: int
        response: PrefillResponse
        end: CallEnd
        def __init__(self, call: _Optional[int] = ..., response: _Optional[_Union[PrefillResponse, _Mapping]] = ..., end: _Optional[_Union[CallEnd, _Mapping]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[PrefillManyResponse.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[PrefillManyResponse.Item, _Mapping]]] = ...) -> None: ...

class DecodeManyRequest(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("call", "request", "cancel", "timeout")
        CALL_FIELD_NUMBER: _ClassVar[int]
        REQUEST_FIELD_NUMBER: _ClassVar[int]
        CANCEL_FIELD_NUMBER: _ClassVar[int]
        TIMEOUT_FIELD_NUMBER: _ClassVar[int]
        call: int
        request: DecodeRequest
        cancel: CancelCall
        timeout: _duration_pb2.Duration
        def __init__(self, call: _Optional[int] = ..., request: _Optional[_Union[DecodeRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelCall, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[DecodeManyRequest.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[DecodeManyRequest.Item, _Mapping]]] = ...) -> None: ...

class DecodeManyResponse(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("call", "response", "end")
        CALL_FIELD_NUMBER: _ClassVar[int]
        RESPONSE_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        call: int
        response: DecodeResponse
        end: CallEnd
        def __init__(self, call: _Optional[int] = ..., response: _Optional[_Union[DecodeResponse, _Mapping]] = ..., end: _Optional[_Union[CallEnd, _Mapping]] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[DecodeManyResponse.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[DecodeManyResponse.Item, _Mapping]]] = ...) -> None: ...

class CancelCall(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CallEnd(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: bytes
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[bytes] = ...) -> None: ...

class PullKvRequest(_message.Message):
    __slots__ = ("open", "ack")
    class Open(_message.Message):
        __slots__ = ("key", "epoch", "layout", "prompt_digest", "first_block", "transport")
        KEY_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        LAYOUT_FIELD_NUMBER: _ClassVar[int]
        PROMPT_DIGEST_FIELD_NUMBER: _ClassVar[int]
        FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
        TRANSPORT_FIELD_NUMBER: _ClassVar[int]
        key: RequestKey
        epoch: int
        layout: KvLayout
        prompt_digest: bytes
        first_block: int
        transport: Transport
        def __init__(self, key: _Optional[_Union[RequestKey, _Mapping]] = ..., epoch: _Optional[int] = ..., layout: _Optional[_Union[KvLayout, _Mapping]] = ..., prompt_digest: _Optional[bytes] = ..., first_block: _Optional[int] = ..., transport: _Optional[_Union[Transport, str]] = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("chunk",)
        CHUNK_FIELD_NUMBER: _ClassVar[int]
        chunk: int
        def __init__(self, chunk: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    open: PullKvRequest.Open
    ack: PullKvRequest.Ack
    def __init__(self, open: _Optional[_Union[PullKvRequest.Open, _Mapping]] = ..., ack: _Optional[_Union[PullKvRequest.Ack, _Mapping]] = ...) -> None: ...

class PullKvResponse(_message.Message):
    __slots__ = ("chunk", "completed")
    class Chunk(_message.Message):
        __slots__ = ("chunk", "first_block", "digests", "segment_offset", "payload")
        CHUNK_FIELD_NUMBER: _ClassVar[int]
        FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
        DIGESTS_FIELD_NUMBER: _ClassVar[int]
        SEGMENT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        PAYLOAD_FIELD_NUMBER: _ClassVar[int]
        chunk: int
        first_block: int
        digests: _containers.RepeatedScalarFieldContainer[int]
        segment_offset: int
        payload: bytes
        def __init__(self, chunk: _Optional[int] = ..., first_block: _Optional[int] = ..., digests: _Optional[_Iterable[int]] = ..., segment_offset: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...
    class Completed(_message.Message):
        __slots__ = ("tokens", "candidates")
        TOKENS_FIELD_NUMBER: _ClassVar[int]
        CANDIDATES_FIELD_NUMBER: _ClassVar[int]
        tokens: _containers.RepeatedCompositeFieldContainer[TokenDelta]
        candidates: BeamCandidates
        def __init__(self, tokens: _Optional[_Iterable[_Union[TokenDelta, _Mapping]]] = ..., candidates: _Optional[_Union[BeamCandidates, _Mapping]] = ...) -> None: ...
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    chunk: PullKvResponse.Chunk
    completed: PullKvResponse.Completed
    def __init__(self, chunk: _Optional[_Union[PullKvResponse.Chunk, _Mapping]] = ..., completed: _Optional[_Union[PullKvResponse.Completed, _Mapping]] = ...) -> None: ...

class GetWorkerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetWorkerResponse(_message.Message):
    __slots__ = ("worker", "role", "model", "layout", "max_context_tokens", "vocab_size", "eos_token_ids", "blocks", "counters", "shared_memory", "version", "local_prefill_max_tokens", "serves_decode_many", "serves_prefill_many")
    class Blocks(_message.Message):
        __slots__ = ("total", "free", "cached", "held")
        TOTAL_FIELD_NUMBER: _ClassVar[int]
        FREE_FIELD_NUMBER: _ClassVar[int]
        CACHED_FIELD_NUMBER: _ClassVar[int]
        HELD_FIELD_NUMBER: _ClassVar[int]
        total: int
        free: int
        cached: int
        held: int
        def __init__(self, total: _Optional[int] = ..., free: _Optional[int] = ..., cached: _Optional[int] = ..., held: _Optional[int] = ...) -> None: ...
    class Counters(_message.Message):
        __slots__ = ("requests", "prompt_tokens_computed", "prompt_tokens_cached", "tokens_generated", "blocks_cached", "blocks_transferred", "bytes_transferred", "preemptions", "steps", "key_collisions", "digest_mismatches", "live_slot_steps", "allocated_slot_steps", "preemptions_recompute", "preemptions_swap", "blocks_swapped_out", "blocks_swapped_in", "shared_block_steps", "draft_tokens_proposed", "draft_tokens_accepted", "computing_steps", "step_seconds")
        REQUESTS_FIELD_NUMBER: _ClassVar[int]
        PROMPT_TOKENS_COMPUTED_FIELD_NUMBER: _ClassVar[int]
        PROMPT_TOKENS_CACHED_FIELD_NUMBER: _ClassVar[int]
        TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
        BYTES_TRANSFERRED_FIELD_NUMBER: _ClassVar[int]
        PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
        STEPS_FIELD_NUMBER: _ClassVar[int]
        KEY_COLLISIONS_FIELD_NUMBER: _ClassVar[int]
        DIGEST_MISMATCHES_FIELD_NUMBER: _ClassVar[int]
        LIVE_SLOT_STEPS_FIELD_NUMBER: _ClassVar[int]
        ALLOCATED_SLOT_STEPS_FIELD_NUMBER: _ClassVar[int]
        PREEMPTIONS_RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
        PREEMPTIONS_SWAP_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_SWAPPED_OUT_FIELD_NUMBER: _ClassVar[int]
        BLOCKS_SWAPPED_IN_FIELD_NUMBER: _ClassVar[int]
        SHARED_BLOCK_STEPS_FIELD_NUMBER: _ClassVar[int]
        DRAFT_TOKENS_PROPOSED_FIELD_NUMBER: _ClassVar[int]
        DRAFT_TOKENS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
        COMPUTING_STEPS_FIELD_NUMBER: _ClassVar[int]
        STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
        requests: int
        prompt_tokens_computed: int
        prompt_tokens_cached: int
        tokens_generated: int
        blocks_cached: int
        blocks_transferred: int
        bytes_transferred: int
        preemptions: int
        steps: int
        key_collisions: int
        digest_mismatches: int
        live_slot_steps: int
        allocated_slot_steps: int
        preemptions_recompute: int
        preemptions_swap: int
        blocks_swapped_out: int
        blocks_swapped_in: int
        shared_block_steps: int
        draft_tokens_proposed: int
        draft_tokens_accepted: int
        computing_steps: int
        step_seconds: float
        def __init__(self, requests: _Optional[int] = ..., prompt_tokens_computed: _Optional[int] = ..., prompt_tokens_cached: _Optional[int] = ..., tokens_generated: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_transferred: _Optional[int] = ..., bytes_transferred: _Optional[int] = ..., preemptions: _Optional[int] = ..., steps: _Optional[int] = ..., key_collisions: _Optional[int] = ..., digest_mismatches: _Optional[int] = ..., live_slot_steps: _Optional[int] = ..., allocated_slot_steps: _Optional[int] = ..., preemptions_recompute: _Optional[int] = ..., preemptions_swap: _Optional[int] = ..., blocks_swapped_out: _Optional[int] = ..., blocks_swapped_in: _Optional[int] = ..., shared_block_steps: _Optional[int] = ..., draft_tokens_proposed: _Optional[int] = ..., draft_tokens_accepted: _Optional[int] = ..., computing_steps: _Optional[int] = ..., step_seconds: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PREFILL_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SERVES_DECODE_MANY_FIELD_NUMBER: _ClassVar[int]
    SERVES_PREFILL_MANY_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerRef
    role: WorkerRole
    model: str
    layout: KvLayout
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    blocks: GetWorkerResponse.Blocks
    counters: GetWorkerResponse.Counters
    shared_memory: SharedMemory
    version: str
    local_prefill_max_tokens: int
    serves_decode_many: bool
    serves_prefill_many: bool
    def __init__(self, worker: _Optional[_Union[WorkerRef, _Mapping]] = ..., role: _Optional[_Union[WorkerRole, str]] = ..., model: _Optional[str] = ..., layout: _Optional[_Union[KvLayout, _Mapping]] = ..., max_context_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Union[GetWorkerResponse.Blocks, _Mapping]] = ..., counters: _Optional[_Union[GetWorkerResponse.Counters, _Mapping]] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ..., version: _Optional[str] = ..., local_prefill_max_tokens: _Optional[int] = ..., serves_decode_many: _Optional[bool] = ..., serves_prefill_many: _Optional[bool] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("namespace_id", "name", "size_bytes")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    name: str
    size_bytes: int
    def __init__(self, namespace_id: _Optional[str] = ..., name: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("min_interval",)
    MIN_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    min_interval: _duration_pb2.Duration
    def __init__(self, min_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchLoadResponse(_message.Message):
    __slots__ = ("epoch", "sequence", "running_sequences", "waiting_sequences", "waiting_prefill_tokens", "blocks", "steps", "is_draining", "adapters")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WAITING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    running_sequences: int
    waiting_sequences: int
    waiting_prefill_tokens: int
    blocks: GetWorkerResponse.Blocks
    steps: int
    is_draining: bool
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterRef]
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., running_sequences: _Optional[int] = ..., waiting_sequences: _Optional[int] = ..., waiting_prefill_tokens: _Optional[int] = ..., blocks: _Optional[_Union[GetWorkerResponse.Blocks, _Mapping]] = ..., steps: _Optional[int] = ..., is_draining: _Optional[bool] = ..., adapters: _Optional[_Iterable[_Union[AdapterRef, _Mapping]]] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter", "is_new")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    adapter: AdapterRef
    is_new: bool
    def __init__(self, adapter: _Optional[_Union[AdapterRef, _Mapping]] = ..., is_new: _Optional[bool] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
