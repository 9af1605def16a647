"""A training step that is recorded once and then played: a GPU does not wait for Python in between.

A step is more than a thousand operations of microseconds each, and on a GPU their launches take most of its time. A
CUDA graph launches all of them at once. It reads and writes fixed places in memory: every step's batch and noise are
copied to them, and gradients are found there. There is one recording for each size of a batch. Steps that cannot be
recorded run as they are, and the log says why.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parcellation.approximation import Approximation
from parcellation.elbo import Estimator
from parcellation.plates import Batch, Noise, Observed

log = logging.getLogger(__name__)

WARM_UPS = 3  # runs before a graph is captured, in which libraries choose their algorithms
Play = Callable[[], Tensor]
Record = Callable[[Play], Play]


def cuda_graph(function: Play) -> Play:
    """Capture a function in a CUDA graph; returns what plays it. Raises RuntimeError for what no graph can hold."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answer = function()

    def play() -> Tensor:
        graph.replay()
        return answer

    return play


def why_not_recorded(device: torch.device, processes: int, sparse: bool, plain: bool) -> str:
    """Why steps are better run as they are, or nothing where recording pays.

    processes: that train together; sparse: rows of subjects are parameters; plain: one data set, no bank of summaries.
    """
    if device.type != "cuda":
        return "only a GPU waits for Python"
    if processes > 1:
        return "several processes add up their gradients in between"
    if sparse:
        return "which rows have a gradient differs from step to step"
    return "" if plain else "every step has data of another shape or a bank of summaries"


class RecordedStep:
    """Loss and gradients of a step, played from a recording once a batch of its size has been before."""

    def __init__(
        self, family: Approximation, estimator: Estimator, parameters: Sequence[Tensor], record: Record = cuda_graph
    ):
        self.family, self.estimator, self.parameters, self.record = family, estimator, list(parameters), record
        self._orders: dict[tuple, list[tuple[str, tuple[int, ...]]]] = {}  # of noise, by the size of the batch
        self._recordings: dict[tuple, _Recording] = {}
        self._given_up = False

    def __call__(self, batch: Batch, noise: Noise) -> Tensor:
        """The loss; its gradients are then the parameters' own."""
        size = tuple(leaf.shape for leaf in _leaves(batch))
        if self._given_up or size not in self._orders:
            order = self._orders[size] = []
            return self.run(batch, lambda name, shape: (order.append((name, shape)), noise(name, shape))[1])
        drawn = {name: noise(name, shape) for name, shape in self._orders[size]}
        if size not in self._recordings:
            try:
                self._recordings[size] = _Recording(self, batch, drawn)
                log.info("steps with batches of %d are recorded, and played from now on", len(batch.seen.x))
            except RuntimeError as error:
                self._given_up = True
                log.warning("steps are not recorded (%s): they run as they are", str(error).split("\n")[0])
                return self.run(batch, lambda name, shape: drawn[name])
        return self._recordings[size].play(batch, drawn)

    def run(self, batch: Batch, noise: Noise) -> Tensor:
        """The loss and its gradients, one operation after the other."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.estimator(self.family, batch, noise).tensor
        loss.backward()
        return loss.detach()


class _Recording:
    """A recorded step: places for what it reads and for the gradients that it writes."""

    def __init__(self, step: RecordedStep, batch: Batch, drawn: Mapping[str, Tensor]):
        self.batch = _copied(batch)
        self.drawn = {name: value.clone() for name, value in drawn.items()}
        self.gradients = [torch.zeros_like(parameter) for parameter in step.parameters]
        self.parameters, self.moved = step.parameters, [True] * len(step.parameters)

        def function() -> Tensor:
            loss = step.run(_afresh(self.batch), lambda name, shape: self.drawn[name])
            found = [parameter.grad for parameter in self.parameters]
            self.moved = [gradient is not None for gradient in found]
            for place, gradient in zip(self.gradients, found, strict=True):
                if gradient is not None:
                    place.copy_(gradient)
            return loss

        self.recorded = step.record(function)

    def play(self, batch: Batch, drawn: Mapping[str, Tensor]) -> Tensor:
        for place, leaf in zip(_leaves(self.batch), _leaves(batch), strict=True):
            place.copy_(leaf)
        for name, value in drawn.items():
            self.drawn[name].copy_(value)
        loss = self.recorded()
        for parameter, gradient, moved in zip(self.parameters, self.gradients, self.moved, strict=True):
            parameter.grad = gradient if moved else None
        return loss


def _leaves(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, each once."""
    parts = [batch.seen] if batch.scored is batch.seen else [batch.seen, batch.scored]
    known = [] if batch.known is None else [batch.known]
    inner = [leaf for part in parts for leaf in (part.x, part.mask, *part.covariates.values())]
    return [*inner, *batch.index.values(), *known]


def _copied(batch: Batch) -> Batch:
    def observed(part: Observed) -> Observed:
        return Observed(part.x.clone(), part.mask.clone(), {name: v.clone() for name, v in part.covariates.items()})

    seen = observed(batch.seen)
    scored = seen if batch.scored is batch.seen else observed(batch.scored)
    index = {name: value.clone() for name, value in batch.index.items()}
    known = None if batch.known is None else batch.known.clone()
    return replace(batch, seen=seen, scored=scored, index=index, known=known)


def _afresh(batch: Batch) -> Batch:
    """The same places, without what was computed from what lay in them before."""
    seen = replace(batch.seen)
    return replace(batch, seen=seen, scored=seen if batch.scored is batch.seen else replace(batch.scored))
