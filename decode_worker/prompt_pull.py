"""Fills a reservation from a prefill worker and lets the engine know.

reservation --PullKv--> blocks verified --end_pull, join--> the sequence decodes
     +----- anything else ----> end_pull once no copy runs any more
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from octavo.block_key import prompt_digest
from octavo.engine.beam_state import BeamCandidates
from octavo.engine.choice import ScoredToken, Token
from octavo.engine.loop import EngineLoop
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import Sequence, SequenceOutput
from octavo.internal.v1alpha1 import worker_pb2
from octavo.rpc.errors import DataLoss
from octavo.rpc.logprobs import logprobs_from_proto
from octavo.token_logprobs import TokenLogprobs
from octavo.transfer.copy_fence import CopyFence
from octavo.transfer.peers import Peers
from octavo.transfer.progress import are_finished
from octavo.transfer.receiver import PullOrder, ReceivePath, open_pull
from octavo.worker.beams import candidates_from_proto


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

    async def run(self, reserved: SequenceOutput) -> worker_pb2.PullKvResponse.Completed:
        """Pull, then join unless the first tokens end all samples; returns those tokens.

        Raises:
            DataLoss, NoWorker, Precondition: the blocks cannot be used.
        """
        puller = self.puller
        async with (
            puller.peers.use(self.start.kv.prefill) as peer,
            open_pull(puller.path, peer, self._order(reserved), self.fence) as pull,
        ):
            is_search = self.seq.beams is not None
            first = await pull.receive(0 if is_search else self.seq.sampling.num_samples)
            self.num_blocks = pull.num_blocks
            choices: list[Token | BeamCandidates] = [
                self._checked(token, peer.name) for token in first.tokens
            ]
            if is_search:
                choices = [self._checked_candidates(first.candidates, peer.name)]
            self.fence.close()
            if not are_finished(first):
                puller.loop.post(partial(puller.scheduler.join, self.seq.seq_id, *choices))
            return first

    def _checked(self, token: worker_pb2.TokenDelta, peer_name: str) -> Token:
        token_id = token.token_ids[0]
        self._check_vocabulary(token_id, peer_name)
        logprobs = _logprobs(token, peer_name)
        return token_id if logprobs is None else ScoredToken(token_id, logprobs)

    def _checked_candidates(
        self, message: worker_pb2.BeamCandidates, peer_name: str
    ) -> BeamCandidates:
        self._check_vocabulary(max(message.token_ids), peer_name)
        if len(message.token_ids) < self.seq.sampling.num_rows:
            raise DataLoss(f"{peer_name} sent {len(message.token_ids)} candidates of a beam search")
        return candidates_from_proto(message)

    def _check_vocabulary(self, token_id: int, peer_name: str) -> None:
        if token_id >= self.puller.vocab_size:
            raise DataLoss(f"{peer_name} sampled token {token_id} of {self.puller.vocab_size}")

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
