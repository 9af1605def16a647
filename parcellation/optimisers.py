"""Adam for dense parameters, and for rows of an embedding of which a step visits few.

Neither is a `torch.optim.Optimizer`: making the first of these imports the compiler, which costs a second and 70 MiB in
every process that trains, and compiles nothing here. The dense one calls PyTorch's own function.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.adam import adam


class Optimiser(ABC):
    """Parameters, a rate, and what is remembered of each parameter."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], rate: float):
        self.parameters, self.rate = list(parameters), rate
        self.state: list[dict[str, Tensor]] = [{} for _ in self.parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered, as `number of the parameter.name`."""
        return {f"{number}.{name}": value for number, state in enumerate(self.state) for name, value in state.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        self.state = [{} for _ in self.parameters]
        for key, value in tensors.items():
            number, name = key.split(".")
            device = self.parameters[int(number)].device
            self.state[int(number)][name] = value.to(device)

    @abstractmethod
    def step(self) -> None:
        """Move the parameters that have a gradient."""


class Adam(Optimiser):
    """Adam (Kingma and Ba 2015) of dense parameters, PyTorch's own in one fused call."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], rate: float, betas: tuple[float, float]):
        super().__init__(parameters, rate)
        self.betas = betas

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters that have a gradient."""
        moved = [(p, state) for p, state in zip(self.parameters, self.state, strict=True) if p.grad is not None]
        for parameter, state in moved:
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        if not moved:
            return
        names = ("exp_avg", "exp_avg_sq", "step")
        means, squares, steps = ([state[name] for _, state in moved] for name in names)
        parameters = [parameter for parameter, _ in moved]
        gradients = [parameter.grad for parameter in parameters]
        beta1, beta2 = self.betas
        options = dict(amsgrad=False, weight_decay=0.0, eps=1e-8, maximize=False, fused=True)
        adam(parameters, gradients, means, squares, [], steps, beta1=beta1, beta2=beta2, lr=self.rate, **options)


class RowAdam(Optimiser):
    r"""Every row counts its own visits, and has no momentum.

        v <- beta v + (1 - beta) g^2,    row <- row - rate g / (sqrt(v / (1 - beta^n)) + eps),    n visits of this row

    `torch.optim.SparseAdam` corrects the bias of its averages by the number of steps, as if a row had been visited in
    each of them, and carries on with momentum: gradients of ten visits ago, when everything else was another.

    rate: length of a first step, in the units of the rows; beta: what a squared gradient keeps of its weight from one
    visit to the next. Gradients must be sparse, of two-dimensional parameters.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], rate: float, beta: float = 0.9, eps: float = 1e-8):
        super().__init__(parameters, rate)
        self.beta, self.eps = beta, eps

    @torch.no_grad()
    def step(self) -> None:
        """Move the rows that have a gradient."""
        for rows, state in zip(self.parameters, self.state, strict=True):
            if rows.grad is not None:
                self._visit(rows, rows.grad.coalesce(), state)

    def _visit(self, rows: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> None:
        if not state:
            state["visits"], state["square"] = rows.new_zeros(len(rows), 1), torch.zeros_like(rows)
        index, g = gradient.indices()[0], gradient.values()
        visits = state["visits"][index] + 1
        square = self.beta * state["square"][index] + (1 - self.beta) * g.square()
        state["visits"][index], state["square"][index] = visits, square
        rows[index] -= self.rate * g / ((square / (1 - self.beta**visits)).sqrt() + self.eps)
