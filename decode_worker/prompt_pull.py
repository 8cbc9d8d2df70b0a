"""Fills a reservation from a prefill worker and lets the engine know.

reservation --PullKv--> blocks verified --end_pull, join--> the sequence decodes
     +----- anything else ----> end_pull once no copy runs any more
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from octavo.block_key import prompt_digest
from octavo.engine.loop import EngineLoop
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import DataLoss
from octavo.rpc.logprobs import logprobs_from_proto
from octavo.token_logprobs import TokenLogprobs
from octavo.transfer.copy_fence import CopyFence
from octavo.transfer.peers import Peers
from octavo.transfer.progress import UNFINISHED
from octavo.transfer.receiver import PullOrder, ReceivePath, open_pull


@dataclass(slots=True)
class PromptPuller:
    """What all pulls of a decode worker share."""

    loop: EngineLoop
    scheduler: Scheduler
    path: ReceivePath
    peers: Peers
    vocab_size: int
    max_request_s: float

    async def meet(self, ref: worker_pb2.WorkerRef) -> None:
        """Check, before anything is reserved, that blocks can come from there at all.

        Raises:
            NoWorker, Precondition, InvalidRequest: they cannot.
        """
        async with self.peers.use(ref):
            pass

    @contextmanager
    def pull(self, seq: Sequence, start: worker_pb2.DecodeRequest.Start) -> Iterator["PromptPull"]:
        """Goes around the sequence's lease: the engine may have reserved blocks before we know.

        On exit no new copy begins; the blocks are let go when the last one has ended.
        """
        fence = CopyFence(partial(self.loop.post, partial(self.scheduler.end_pull, seq.seq_id)))
        try:
            yield PromptPull(self, seq, start, fence)
        finally:
            fence.close()


@dataclass(slots=True)
class PromptPull:
    """The pull of one prompt."""

    puller: PromptPuller
    seq: Sequence
    start: worker_pb2.DecodeRequest.Start
    fence: CopyFence
    num_blocks: int = 0  # received and verified

    async def run(self, reserved: SequenceOutput) -> worker_pb2.TokenDelta:
        """Pull, then join unless the first token ends the sequence; returns that token.

        Raises:
            DataLoss, NoWorker, Precondition: the blocks cannot be used.
        """
        puller = self.puller
        async with (
            puller.peers.use(self.start.kv.prefill) as peer,
            open_pull(puller.path, peer, self._order(reserved), self.fence) as pull,
        ):
            token = await pull.receive()
            self.num_blocks = pull.num_blocks
            token_id = token.token_ids[0]
            if token_id >= puller.vocab_size:
                raise DataLoss(f"{peer.name} sampled token {token_id} of {puller.vocab_size}")
            self.fence.close()
            logprobs = _logprobs(token, peer.name)
            if token.finish_reason == UNFINISHED:
                join = partial(puller.scheduler.join, self.seq.seq_id, token_id, logprobs)
                puller.loop.post(join)
            return token

    def _order(self, reserved: SequenceOutput) -> PullOrder:
        block_size = self.puller.path.kv_cache.layout.block_size
        spec = self.start.sequence
        token_ids = [*spec.prompt_token_ids, *spec.output_token_ids]
        num_blocks = -(-len(token_ids) // block_size)
        return PullOrder(
            key=spec.key,
            prompt_digest=prompt_digest(spec.group_key, token_ids, spec.adapter.fingerprint),
            first_block=reserved.num_computed_tokens // block_size,
            block_ids=reserved.block_ids[:num_blocks],
            timeout_s=self.puller.max_request_s,
        )


def _logprobs(token: worker_pb2.TokenDelta, peer_name: str) -> TokenLogprobs | None:
    if not token.HasField("logprobs"):
        return None
    try:
        return logprobs_from_proto(token.logprobs)
    except ValueError as error:
        raise DataLoss(f"log-probabilities from {peer_name} cannot be used: {error}") from error
