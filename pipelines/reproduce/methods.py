"""The methods that the experiments compare, by name: how each is made, and what it is trained on.

A method trains on one data set, from which a step takes a few groups or, where an encoding of a part would be the
part's population, all of them; or over many data sets drawn from the prior, one a step and whole, to be judged on data
sets it has not seen: "(sa)", sample-amortized.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from parcellation.approximation import Approximation
from parcellation.baselines.adavi import Adavi
from parcellation.baselines.cascading_flows import AmortizedCascadingFlows, CascadingFlows
from parcellation.baselines.per_variable import PerVariable
from parcellation.data_sets import PriorDataSets
from parcellation.family import Family
from parcellation.plates import Batch
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects

SAMPLES = 50
MOST_DRAWN = 200  # groups

Build = Callable[[GaussianRandomEffects, Mapping[str, int], int], Approximation]


@dataclass(frozen=True)
class Method:
    """build: from template, full cardinalities and encoding size.

    whole: a step takes all groups. many: of a new data set each. augmented: its bound is below its ELBO. rows: it has
    parameters of single groups, whose rate is a setting of its own. sizeless: it may be applied to more groups than it
    was trained on.
    """

    build: Build
    whole: bool = False
    many: bool = False
    augmented: bool = False
    rows: bool = False
    sizeless: bool = False


def _pavi(scheme: str) -> Build:
    return lambda template, cards, size: Family(template, cards, scheme, encoding_size=size or None)


def _cascading(template: GaussianRandomEffects, cards: Mapping[str, int], size: int) -> Approximation:
    return CascadingFlows(template, cards)


def _cascading_sa(template: GaussianRandomEffects, cards: Mapping[str, int], size: int) -> Approximation:
    return AmortizedCascadingFlows(template, cards, template.dimensions)


def _adavi(template: GaussianRandomEffects, cards: Mapping[str, int], size: int) -> Approximation:
    return Adavi(template, cards, template.dimensions)


METHODS = {
    "pavi_f": Method(_pavi("free"), rows=True),
    "pavi_e": Method(_pavi("encoded")),
    "hybrid": Method(_pavi("hybrid")),
    "pavi_e_sa": Method(_pavi("encoded"), whole=True, many=True, sizeless=True),
    "baseline": Method(lambda template, cards, size: PerVariable(template, cards), rows=True),
    "cf": Method(_cascading, augmented=True, rows=True),
    "cf_sa": Method(_cascading_sa, whole=True, many=True, augmented=True, rows=True),
    "adavi": Method(_adavi, whole=True),
    "adavi_sa": Method(_adavi, whole=True, many=True),
}


@dataclass
class Drawn:
    """Many data sets as one source, whose every batch is the next of them, whole.

    For rivals with parameters of single groups: they stay a group's own, whatever the data set.
    """

    sets: PriorDataSets
    drawn: int = 0

    @property
    def cards(self) -> dict[str, int]:
        """Cardinalities of each."""
        return self.sets.cards

    def batch(self, index: Tensor) -> Batch:
        """The next data set."""
        self.drawn += 1
        return self.sets.at(self.drawn).full


def data_sets(method: Method, template: GaussianRandomEffects, groups: int, seed: int) -> PriorDataSets | Drawn:
    """What a method is trained on that is trained over many: of 2 to so many groups, or of so many, where it must be.

    PAVI-E(sa) draws no more than 200 groups a data set, and is applied to larger ones.
    """
    most = min(groups, MOST_DRAWN) if method.sizeless else groups
    least = min(2, most) if method.sizeless else most
    sets = PriorDataSets(template, {"group": (least, most), "sample": (SAMPLES, SAMPLES)}, seed)
    return Drawn(sets) if method.rows else sets
