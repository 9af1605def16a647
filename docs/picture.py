"""The README's picture from the demo's output: python docs/picture.py build/demo docs/broca.png"""

import io
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from parcellation.config import load_study
from parcellation.figures import Stage, thumbnail
from parcellation.verbs.infer import Inference
from parcellation.verbs.report import surfaces
from parcellation.verbs.workspace import resolve

demo, target = Path(sys.argv[1]), sys.argv[2]
cohort = Inference.of(load_study(demo / "study.yaml"))
person = Inference.of(resolve(load_study(demo / "person.yaml")))
shape = surfaces(cohort)
stage = Stage.of(shape["geometry"], cohort.ground.region, shape["relief"], width=520).close_ups()
subjects = {answer.subject: answer.probability for answer in cohort.known()}
maps = {
    "population": cohort.population().probability,
    "an unseen simulated subject": subjects["sim18"],
    "the real person": next(person.known()).probability,
}
figure, axes = plt.subplots(1, 3, figsize=(12, 4.1), dpi=110)
for axis, (title, probability) in zip(axes, maps.items(), strict=True):
    axis.imshow(plt.imread(io.BytesIO(thumbnail(stage, probability, cohort.networks))))
    axis.set_title(title, fontsize=12)
    axis.axis("off")
text = "most probable network, grey where it is no better than chance (left, lateral view, anterior to the left)"
figure.text(0.5, 0.02, text, ha="center", fontsize=10, color="#444444")
figure.subplots_adjust(left=0.01, right=0.99, top=0.92, bottom=0.07, wspace=0.03)
figure.savefig(target, facecolor="white")
