"""Several processes that train one model together: each has its share of a step's members, all have all parameters.

A step's loss is a weighted sum over members, plus terms of the population. Process r has n_r of the step's n members,
and weights them as if they were the whole step; so the step's loss, and its gradient, are

    sum_r n_r / n loss_r

and the population's terms are counted once. Noise is drawn for the whole step and cut, so that the training is that of
one process with the same batches, up to the order of sums. What is done once, such as starting values, the first
process does for all. `torchrun` starts the processes; without it there is a team of one, which costs nothing.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor

from parcellation.approximation import Approximation
from parcellation.errors import UsageError
from parcellation.plates import Noise, Template

PATIENCE = timedelta(hours=12)  # that the others wait for the first; a process that dies is noticed at once


@dataclass(frozen=True)
class Team:
    """This process's number, how many there are, and where its tensors are."""

    rank: int = 0
    size: int = 1
    device: torch.device | None = None

    def check(self, family: Approximation, whole: bool) -> None:
        """Raises UsageError, in a team of several, for what is of the `whole` batch, not of its members alone."""
        if self.size == 1:
            return
        known = {*family.free, *getattr(family, "fixed", {})}
        encoded = [site.name for site in family.template.population_sites() if site.name not in known]
        if whole or encoded:
            what = "a bank, or many data sets" if whole else f"{', '.join(encoded)} encoded from a whole batch"
            raise UsageError(
                f"training in several processes: expected members that stand alone, got {what}; train in one process"
            )

    def share(self, members: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
        """This process's members of a step; raises UsageError where there is not one for each process."""
        if len(members) < self.size:
            raise UsageError(
                f"training.batch_subjects: expected {self.size} subjects a step or more, one for each process, "
                f"got a step of {len(members)}"
            )
        return members[self.rank :: self.size]

    def noise(self, noise: Noise, template: Template, count: int) -> Noise:
        """The noise of this process's share of `count` members."""
        if self.size == 1:
            return noise

        def cut(name: str, shape: tuple[int, ...]) -> Tensor:
            if template.unit_plate not in template.site(name).plates:
                return noise(name, shape)
            return noise(name, (count, *shape[1:]))[self.rank :: self.size]

        return cut

    def backward(self, loss: Tensor, parameters: Sequence[Tensor], share: float) -> float:
        """Gradients of the whole step into the parameters, and its loss; share: of its members, this process's."""
        if self.size == 1:
            loss.backward()
            return loss.item()
        loss = loss * share
        loss.backward()
        known = [parameter for parameter in parameters if parameter.grad is not None]
        dense = [parameter.grad for parameter in known if not parameter.grad.is_sparse]
        flat = torch.cat([*(gradient.flatten() for gradient in dense), loss.detach()[None]])
        dist.all_reduce(flat)
        *parts, total = flat.split([*(gradient.numel() for gradient in dense), 1])
        for gradient, part in zip(dense, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        for parameter in known:
            if parameter.grad.is_sparse:
                parameter.grad = self._joined(parameter.grad.coalesce())
        return total.item()

    def _joined(self, gradient: Tensor) -> Tensor:
        """The rows of all processes' sparse gradients: each has other members, hence other rows."""
        parts: list = [None] * self.size
        dist.all_gather_object(parts, (gradient.indices().cpu(), gradient.values().cpu()))
        index, values = zip(*parts, strict=True)
        joined = torch.cat(index, 1), torch.cat(values)
        return torch.sparse_coo_tensor(*joined, gradient.shape, device=gradient.device)

    def any(self, flag: bool) -> bool:
        """Whether any process says so: all get the same answer."""
        if self.size == 1:
            return flag
        answer = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(answer, dist.ReduceOp.MAX)
        return bool(answer.item())

    def first(self, make: Callable[[], Any]) -> Any:
        """What the first process makes, for all of them."""
        if self.size == 1:
            return make()
        made = [make() if self.rank == 0 else None]
        dist.broadcast_object_list(made, 0, device=self.device)
        return made[0]

    def follow(self, family: Approximation) -> None:
        """Give the family the first process's parameters and settled encodings."""
        if self.size == 1:
            return
        state, fixed = self.first(lambda: ({k: v.cpu() for k, v in family.state_dict().items()}, family.fixed))
        family.load_state_dict(state)
        family.fixed = {name: encoding.map(lambda part: part.to(self.device)) for name, encoding in fixed.items()}

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


ALONE = Team()


@contextlib.contextmanager
def team_of(device: torch.device) -> Iterator[Team]:
    """The team that `torchrun` started this process for, with a GPU for each where `device` is one; else one of one."""
    if not dist.is_torchelastic_launched():
        yield Team(device=device)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Team(dist.get_rank(), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()
