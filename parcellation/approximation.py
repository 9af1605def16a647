"""What the objective, the bound and the training loop ask of an approximation of the posterior, and nothing else.

`Family` is one; each rival in `baselines` is another. They are compared on the same template and data, by the same
objective and the same loop, so that a difference between them is one of the method.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from parcellation.family import Draw
from parcellation.plates import Batch, Noise, Template, Values


@runtime_checkable
class Approximation(Protocol):
    """q(theta | x) of one template grounded at the cardinalities `cards`.

    free: for every site with parameters of its own ground variables, a module whose `rows` (an embedding) has one row
    a variable, and whose `sparse` says that a row moves only in the steps that visit it. settings: what it was made
    with, as JSON values, for a checkpoint to tell one training from another.
    """

    template: Template
    cards: Mapping[str, int]
    settings: Mapping[str, Any]
    free: Any

    def encodings(self, batch: Batch) -> Mapping[str, Any]:
        """What distinguishes the batch's ground variables, by site: the same for every draw."""

    def draw(
        self,
        batch: Batch,
        noise: Noise,
        encodings: Mapping[str, Any] | None = None,
        given: Values | None = None,
        path: bool = True,
        draws: tuple[int, ...] = (),
    ) -> Draw:
        """Values of every site and log densities, parents first; by the path gradient unless `path` is False."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Everything that is trained."""

    def state_dict(self) -> dict[str, Tensor]:
        """The state by name."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Any:
        """Put a state back."""
