"""Adam for rows of an embedding of which a step visits few, such as the free encodings of a large plate."""

import torch


class RowAdam(torch.optim.Optimizer):
    r"""Every row counts its own visits, and has no momentum.

        v <- beta v + (1 - beta) g^2,    row <- row - lr g / (sqrt(v / (1 - beta^n)) + eps),    n visits of this row

    `torch.optim.SparseAdam` corrects the bias of its averages by the number of steps, as if a row had been visited in
    each of them, and carries on with momentum: gradients of ten visits ago, when everything else was another.

    lr: length of a first step, in the units of the rows; beta: what a squared gradient keeps of its weight from one
    visit to the next. Gradients must be sparse, of two-dimensional parameters.
    """

    def __init__(self, params, lr: float, beta: float = 0.9, eps: float = 1e-8):
        super().__init__(params, dict(lr=lr, beta=beta, eps=eps))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Move the rows that have a gradient."""
        for group in self.param_groups:
            for rows in group["params"]:
                if rows.grad is not None:
                    self._visit(rows, rows.grad.coalesce(), group["lr"], group["beta"], group["eps"])

    def _visit(self, rows: torch.Tensor, gradient: torch.Tensor, lr: float, beta: float, eps: float) -> None:
        state = self.state[rows]
        if not state:
            state["visits"], state["square"] = rows.new_zeros(len(rows), 1), torch.zeros_like(rows)
        index, g = gradient.indices()[0], gradient.values()
        visits = state["visits"][index] + 1
        square = beta * state["square"][index] + (1 - beta) * g.square()
        state["visits"][index], state["square"][index] = visits, square
        rows[index] -= lr * g / ((square / (1 - beta**visits)).sqrt() + eps)
