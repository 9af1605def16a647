"""Which vertices of which mesh: the identity of a region, of targets and of the rows of a file."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

HEMISPHERES = ("left", "right")


@dataclass(frozen=True)
class Mesh:
    """A standard surface mesh: template space (`fsLR` or `fsaverage`) and vertices per hemisphere (left, right)."""

    space: str
    counts: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Vertices:
    """An ordered list of vertices of one mesh.

    hemisphere: 0 left, 1 right, uint8, shape (vertex,); number: index within that hemisphere's mesh, int32, shape (vertex,).
    """

    mesh: Mesh
    hemisphere: np.ndarray
    number: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def to_json(self) -> dict:
        """Plain values that `from_json` restores exactly."""
        return {
            "space": self.mesh.space,
            "counts": list(self.mesh.counts),
            "left": self.number[self.hemisphere == 0].tolist(),
            "right": self.number[self.hemisphere == 1].tolist(),
        }

    @classmethod
    def from_json(cls, content: dict) -> "Vertices":
        """The inverse of `to_json`; the left hemisphere's vertices come first."""
        left, right = content["left"], content["right"]
        hemisphere = np.repeat(np.array([0, 1], np.uint8), [len(left), len(right)])
        return cls(Mesh(content["space"], tuple(content["counts"])), hemisphere, np.array(left + right, np.int32))

    def digest(self) -> str:
        """SHA-256 of the identity: equal for equal vertices in equal order on the same mesh."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Targets:
    """What connectivity is measured with: each target is the mean series of its member vertices.

    names: unique, length target; members: all member vertices; target: index of each member's target, shape (member,).
    """

    names: tuple[str, ...]
    members: Vertices
    target: np.ndarray
