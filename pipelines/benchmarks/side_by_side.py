"""Families of many small data sets of one size, trained side by side in the time that a few would take.

A step on a small data set costs what its hundreds of small operations cost to start. Here every operation is done for
all data sets at once (`torch.func.vmap`), on the product's own family, objective, rates and optimiser: each family ends
where `training.fit` on its data set alone would have led it, up to rounding and to the noise that it was given.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from parcellation.elbo import Estimator, training_loss
from parcellation.family import Family
from parcellation.plates import Batch, Observed, Template, seeded
from parcellation.training import BETA, Plan, Whole


class _Loss(nn.Module):
    """The training loss as a function of tensors."""

    def __init__(self, family: Family, estimator: Estimator):
        super().__init__()
        self.family, self.estimator = family, estimator

    def forward(self, x: Tensor, mask: Tensor, covariates: dict[str, Tensor], noise: dict[str, Tensor]) -> Tensor:
        batch = Batch.full(self.family.template.plates, Observed(x, mask, covariates))
        return self.estimator(self.family, batch, lambda name, shape: noise[name].reshape(shape)).tensor


def fit_all(
    families: Sequence[Family], sources: Sequence[Whole], plan: Plan, estimator: Estimator = training_loss
) -> None:
    """Optimise each family in place on all data of its own source; data sets, and families, have equal shapes.

    A data set's noise depends on the plan's seed, the step and its place. Raises ValueError for families with sparse
    rows, which have an optimiser of their own, or with encodings that are settled or in a bank: they are no parameters.
    """
    if any(family.fixed or family.bank or any(free.sparse for free in family.free.values()) for family in families):
        raise ValueError("side by side: expected families without sparse rows, settled encodings and banks")
    if any(site.joint for family in families for site in family.template.sites):
        raise ValueError("side by side: a smooth map's encodings hold constants that differ between data sets")
    losses = [_Loss(family, estimator) for family in families]
    parameters, _ = stack_module_state(losses)  # buffers are constants of flows, the same in all
    data = _stacked([source.full.seen for source in sources])
    template, seen = families[0].template, sources[0].full.seen
    optimiser = torch.optim.Adam(parameters.values(), lr=plan.learning_rate, betas=(0.9, BETA))

    def one(own: dict, observed: tuple, noise: dict) -> Tensor:
        return functional_call(losses[0], own, (*observed, noise))

    for step in range(plan.steps):
        optimiser.param_groups[0]["lr"] = plan.rate(step)
        optimiser.zero_grad(set_to_none=True)
        noise = _noise(template, seen, len(families), plan, step)
        vmap(one)(parameters, data, noise).sum().backward()
        optimiser.step()
    for place, loss in enumerate(losses):
        loss.load_state_dict({name: value[place].detach() for name, value in parameters.items()}, strict=False)


def _stacked(observed: Sequence[Observed]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    names = observed[0].covariates
    covariates = {name: torch.stack([one.covariates[name] for one in observed]) for name in names}
    return torch.stack([one.x for one in observed]), torch.stack([one.mask for one in observed]), covariates


def _noise(template: Template, seen: Observed, count: int, plan: Plan, step: int) -> dict[str, Tensor]:
    """Standard normal noise of every site for all data sets, each from a generator of its own."""
    result: dict[str, list[Tensor]] = {site.name: [] for site in template.sites}
    for place in range(count):
        generator = seeded(plan.seed, "noise", step, place)
        for site in template.sites:
            shape = template.shape(site, seen)
            result[site.name].append(torch.randn(shape, generator=generator, dtype=seen.x.dtype))
    return {name: torch.stack(parts) for name, parts in result.items()}
