"""ADAVI (Rouillard and Wassermann 2022): a hierarchical set encoder and one flow a site, mean-field across sites.

    q(theta | x) = product over sites and ground variables of T(u; E_n(x)),   u ~ Normal(0, I)

Weights are shared by a site's ground variables, as in PAVI, but a step encodes the whole data set, and no variable
knows the value drawn for its parents. The flow is affine: mean and log sd are a network of the encoding.

Trained on one data set, or over many; whole, since what is encoded from a part is the part's population.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from zuko.nn import MLP

from parcellation.baselines.rival import Gaussian, Rival, by_element, event_size
from parcellation.baselines.set_encoder import SetEncoder
from parcellation.plates import Batch, Site, Template


class Adavi(Rival):
    """The encoder's weights and those of each site's flow; none that belongs to one ground variable.

    features: length of an observation, D.
    """

    def __init__(self, template: Template, cards: Mapping[str, int], features: int, hidden: int = 16):
        super().__init__(template, cards, {})
        self.encoder = SetEncoder(template, features)
        sizes = {site.name: (self.encoder.size(site), 2 * event_size(site)) for site in template.sites}
        # A linear path beside the hidden layer, because posterior means of Gaussian models are linear.
        self.linear = nn.ModuleDict({name: nn.Linear(*size) for name, size in sizes.items()})
        self.bend = nn.ModuleDict({n: MLP(*size, [hidden], activation=nn.SiLU) for n, size in sizes.items()})
        with torch.no_grad():
            for layer in (*self.linear.values(), *(bend[-1] for bend in self.bend.values())):
                layer.weight.mul_(0.01)
                layer.bias.zero_()

    def encodings(self, batch: Batch) -> dict[str, Tensor]:
        """Means and sd's, shape (2, *plates, *event)."""
        result = {}
        for name, encoding in self.encoder(batch).items():
            both = self.linear[name](encoding) + self.bend[name](encoding)
            mean, log_sd = by_element(self.template.site(name), both)
            result[name] = torch.stack([mean, log_sd.exp()])
        return result

    def conditional(self, site: Site, parameters: Tensor, mean: Tensor, sd: Tensor) -> Gaussian:
        """The same for all parents."""
        return Gaussian(*parameters, len(site.event))
