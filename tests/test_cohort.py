"""Features of fingerprints, and batches: known answers, laws, and refusals."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parcellation.cohort import (
    AUTOMATIC_COMPONENTS,
    MOST_TARGETS,
    FeatureMap,
    Store,
    fit_features,
    normalised,
    open_cohort,
    write_unit,
)
from parcellation.config import Features
from parcellation.errors import BadData, InputMissing
from parcellation.meshes import Mesh
from parcellation.surfaces import Vertices

RAW = Features(remove_region_mean=False, center=False, unit_norm=False, components="none", precision="float32")
# Sums of a hundred float32 numbers of size 1.
FLOAT32 = 1e-5


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def whole(z: np.ndarray) -> np.ndarray:
    return np.ones(len(z), bool)


def units_of(rng, count=4, vertices=30, targets=12) -> list[tuple[np.ndarray, np.ndarray]]:
    mixing = rng.normal(size=(targets, targets))
    masks = rng.random((count, vertices)) > 0.2
    return [(rng.normal(size=(vertices, targets)) @ mixing, mask) for mask in masks]


def filled(folder, rng, sessions: dict[str, list[str]], vertices=20, targets=6, **known) -> Store:
    store = Store(folder)
    for subject, names in sessions.items():
        for i, session in enumerate(names):
            z = rng.normal(size=(vertices, targets)).astype(np.float32)
            write_unit(store, subject, session, z, frames=100 + i, **{"features": RAW} | known)
    return store


# Normalising one unit


def test_the_region_mean_is_of_live_vertices_only():
    z = np.array([[1.0, 5.0], [3.0, 1.0], [np.nan, 100.0]])
    mask = np.array([True, True, False])
    got = normalised(z, mask, RAW.model_copy(update={"remove_region_mean": True}))
    np.testing.assert_allclose(got, [[-1, 2], [1, -2], [0, 0]])


def test_centring_and_norm_are_over_live_targets_only():
    z = np.array([[1.0, 3.0, np.nan], [0.0, -4.0, 7.0]])
    live = np.array([True, True, False])
    centred = normalised(z, whole(z), RAW.model_copy(update={"center": True}), live)
    np.testing.assert_allclose(centred, [[-1, 1, 0], [2, -2, 0]])
    unit = normalised(z, whole(z), RAW.model_copy(update={"center": True, "unit_norm": True}), live)
    np.testing.assert_allclose(unit, np.array([[-1, 1, 0], [1, -1, 0]]) / np.sqrt(2), rtol=1e-6)


def test_everything_off_gives_the_fingerprints(rng):
    z = rng.normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(normalised(z, whole(z), RAW), z)


def test_a_fingerprint_without_direction_is_zero_and_not_rounding():
    flat = np.full((4, 50), 0.3, np.float32)
    alone = np.zeros((3, 50), np.float32)
    alone[1] = np.linspace(0, 1, 50)
    np.testing.assert_array_equal(normalised(flat, whole(flat), Features(remove_region_mean=False)), 0)
    np.testing.assert_array_equal(normalised(alone, np.array([False, True, False]), Features()), 0)
    same = np.tile(np.float32(np.random.default_rng(0).normal(size=50)), (7, 1))
    np.testing.assert_array_equal(normalised(same, whole(same), Features()), 0)
    np.testing.assert_array_equal(normalised(flat, np.zeros(4, bool), Features()), 0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), vertices=st.integers(1, 12), targets=st.integers(2, 12), off=st.floats(0, 0.9))
def test_laws_of_normalised_fingerprints(seed, vertices, targets, off):
    rng = np.random.default_rng(seed)
    z, mask, live = rng.normal(size=(vertices, targets)), rng.random(vertices) >= off, rng.random(targets) >= off / 2
    u = normalised(z, mask, Features(), live)
    assert u.dtype == np.float32
    assert np.isfinite(u).all()
    assert (u[~mask] == 0).all()
    assert (u[:, ~live] == 0).all()
    # What is left after the means carries the rounding of what was there before them.
    before = np.linalg.norm(np.where(live, z, 0), axis=1)
    left = np.linalg.norm(normalised(z, mask, Features(unit_norm=False), live), axis=1)
    assert np.all(np.abs(u.sum(1)) <= FLOAT32 * np.where(left > 0, before / np.maximum(left, 1e-30), 1).clip(1))
    norm = np.linalg.norm(u, axis=1)
    assert np.all((norm == 0) | (np.abs(norm - 1) < FLOAT32))
    other = np.where(mask[:, None] & live, z, np.nan)
    np.testing.assert_array_equal(normalised(other, mask, Features(), live), u)


# The feature map


def test_few_targets_are_used_as_they_are_with_mean_square_one(rng):
    units = units_of(rng)
    features = FeatureMap.fit(units, Features())
    assert features.components is None
    assert features.features == 12
    x = np.concatenate([features.apply(*unit)[unit[1]] for unit in units])
    assert np.mean(x.astype(float) ** 2) == pytest.approx(1, rel=FLOAT32)
    for unit in units:
        np.testing.assert_allclose(features.apply(*unit), features.scale * normalised(*unit, Features()), rtol=1e-6)


@pytest.mark.parametrize("count", [1, 5, 10])
def test_components_are_those_of_a_full_decomposition(rng, count):
    units = units_of(rng)
    features = FeatureMap.fit(units, Features(components=count))
    rows = np.concatenate([normalised(*unit, Features())[unit[1]] for unit in units]).astype(float)
    _, singular, right = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    np.testing.assert_allclose(features.mean, rows.mean(0), atol=1e-6)
    np.testing.assert_allclose(np.abs(np.sum(features.components * right[:count], axis=1)), 1, atol=FLOAT32)
    scale = 1 / np.sqrt(np.mean(singular[:count] ** 2 / len(rows)))
    assert features.scale == pytest.approx(scale, rel=FLOAT32)
    x = np.concatenate([features.apply(*unit)[unit[1]] for unit in units])
    np.testing.assert_allclose(np.abs(x), np.abs(scale * (rows - rows.mean(0)) @ right[:count].T), atol=1e-4)
    assert np.mean(x.astype(float) ** 2) == pytest.approx(1, rel=1e-4)


def test_masked_vertices_are_zero_after_projection(rng):
    units = units_of(rng)
    features = FeatureMap.fit(units, Features(components=4, remove_region_mean=False))
    assert np.abs(features.mean).max() > 0.01
    for z, mask in units:
        x = features.apply(z, mask)
        assert (x[~mask] == 0).all()
        assert (x[mask] != 0).any(1).all()


def test_components_end_at_the_rank(rng):
    # Centring takes one direction, the region's mean does not: 12 targets have rank 11.
    assert FeatureMap.fit(units_of(rng), Features(components=12)).features == 11
    plane = [(rng.normal(size=(30, 2)) @ rng.normal(size=(2, 12)), np.ones(30, bool))]
    raw = RAW.model_copy(update={"components": 8})
    assert FeatureMap.fit(plane, raw).features == 2


def test_automatic_projection_begins_above_the_most_targets(rng):
    for targets, expected in [(MOST_TARGETS, MOST_TARGETS), (MOST_TARGETS + 1, AUTOMATIC_COMPONENTS)]:
        z = rng.normal(size=(300, targets))
        assert FeatureMap.fit([(z, whole(z))], Features()).features == expected
        assert FeatureMap.fit([(z, whole(z))], Features(components="none")).features == targets


def test_back_undoes_the_map_where_no_component_is_dropped(rng):
    units = units_of(rng)
    for settings_ in (Features(), Features(components=11), Features(components=12, unit_norm=False)):
        features = FeatureMap.fit(units, settings_)
        z, mask = units[0]
        u = normalised(z, mask, settings_)
        np.testing.assert_allclose(
            features.back(features.apply(z, mask))[mask], u[mask], atol=FLOAT32 * np.abs(u).max()
        )


def test_back_is_affine_and_gives_the_nearest_profile_otherwise(rng):
    units = units_of(rng)
    features = FeatureMap.fit(units, Features(components=3))
    a, b = rng.normal(size=(2, 5, 3))
    np.testing.assert_allclose(
        features.back(0.3 * a + 0.7 * b), 0.3 * features.back(a) + 0.7 * features.back(b), atol=1e-6
    )
    z, mask = units[0]
    residual = features.back(features.apply(z, mask))[mask] - normalised(z, mask, Features())[mask]
    np.testing.assert_allclose(residual @ features.components.T, 0, atol=FLOAT32)


def test_save_and_load_is_exact(rng):
    units = units_of(rng)
    for components in ("auto", 4):
        features = FeatureMap.fit(units, Features(components=components))
        again = FeatureMap.from_arrays(features.to_arrays(), features.settings)
        for z, mask in units:
            np.testing.assert_array_equal(again.apply(z, mask), features.apply(z, mask))
        assert (again.scale, again.targets) == (features.scale, features.targets)


def test_the_fit_is_of_the_same_bits_each_time(rng):
    units = units_of(rng)
    first, second = (FeatureMap.fit(iter(units), Features(components=5)) for _ in range(2))
    np.testing.assert_array_equal(first.components, second.components)
    assert first.scale == second.scale


def test_a_unit_of_other_targets_or_without_any_signal_is_refused(rng):
    z = rng.normal(size=(5, 4))
    features = FeatureMap.fit([(z, whole(z))], Features())
    with pytest.raises(BadData, match="expected fingerprints with 4 targets, got 3"):
        features.apply(z[:, :3], whole(z))
    with pytest.raises(BadData, match="expected fingerprints with 4 targets, got 3"):
        FeatureMap.fit([(z, whole(z)), (z[:, :3], whole(z))], Features())
    for units in ([], [(z, ~whole(z))], [(np.ones((5, 4)), whole(z))]):
        with pytest.raises(BadData, match="expected training fingerprints that vary"):
            FeatureMap.fit(units, Features())
    with pytest.raises(BadData, match="equal ones at all vertices"):
        FeatureMap.fit([(np.ones((5, 4)), whole(z))], RAW.model_copy(update={"components": 2}))


# Cohorts


def test_a_batch_is_what_was_written(tmp_path, rng):
    store = filled(tmp_path, rng, {"1": ["1", "2"], "2": ["1", "2"], "10": ["1", "2"]})
    features = fit_features(store, None, RAW)
    cohort = open_cohort(store, features)
    assert cohort.subjects == ["1", "2", "10"]
    batch = cohort.read([2, 0])
    assert (batch.x.shape, batch.mask.shape, batch.frames.shape) == ((2, 2, 20, 6), (2, 2, 20), (2, 2))
    assert (batch.x.dtype, batch.mask.dtype, batch.frames.dtype) == (np.float32, bool, np.float32)
    for s, subject in enumerate(["10", "1"]):
        for t, session in enumerate("12"):
            z = store.read(subject, session).fingerprint
            np.testing.assert_array_equal(batch.x[s, t], z * np.float32(features.scale))
    np.testing.assert_array_equal(batch.frames, [[100, 101], [100, 101]])
    assert batch.mask.all()


def test_missing_sessions_and_masked_vertices_are_zero_and_masked(tmp_path, rng):
    mask = rng.random(20) > 0.3
    store = filled(tmp_path, rng, {"1": ["1"], "2": ["2", "10", "1"]}, mask=mask, features=Features())
    cohort = open_cohort(tmp_path, fit_features(store, ["2"], Features()))
    assert cohort.sessions("2") == ["1", "2", "10"]
    batch = cohort.read([0, 1])
    assert batch.x.shape[:2] == (2, 3)
    np.testing.assert_array_equal(batch.mask[0], [mask, np.zeros(20, bool), np.zeros(20, bool)])
    np.testing.assert_array_equal(batch.mask[1], [mask] * 3)
    assert (batch.x[~batch.mask] == 0).all()
    np.testing.assert_array_equal(batch.frames[0], [100, 0, 0])
    assert open_cohort(store, cohort.feature_map, ["1"]).read([0]).x.shape[:2] == (1, 1)


def test_a_subjects_data_do_not_depend_on_who_is_read_with_it(tmp_path, rng):
    store = filled(tmp_path, rng, {str(i): ["1", "2"] for i in range(4)}, vertices=33, targets=17)
    cohort = open_cohort(store, fit_features(store, None, Features(components=7)))
    together = cohort.read([0, 1, 2, 3])
    for i in range(4):
        np.testing.assert_array_equal(cohort.read([i]).x[0], together.x[i])


def test_features_are_fitted_to_training_subjects_only(tmp_path, rng):
    store = filled(tmp_path, rng, {"1": ["1"], "2": ["1"], "3": ["1"]})
    alone = filled(tmp_path / "train", np.random.default_rng(0), {"1": ["1"], "2": ["1"]})
    with_others = fit_features(store, ["2", "1"], Features(components=3))
    np.testing.assert_array_equal(with_others.components, fit_features(alone, None, Features(components=3)).components)
    assert not np.array_equal(with_others.components, fit_features(store, None, Features(components=3)).components)


def test_targets_without_signal_are_zero_columns(tmp_path, rng):
    live = np.array([True, True, False, True, True, True])
    store = filled(tmp_path, rng, {"1": ["1"]}, target_mask=live)
    cohort = open_cohort(store, fit_features(store, None, Features()))
    x = cohort.read([0]).x[0, 0]
    assert (x[:, 2] == 0).all()
    np.testing.assert_allclose(x[:, live].sum(1), 0, atol=FLOAT32)


def test_subjects_that_are_not_there(tmp_path, rng):
    store = filled(tmp_path, rng, {"1": ["1"]})
    features = fit_features(store, None, RAW)
    with pytest.raises(InputMissing, match="no prepared fingerprints of 2, 3"):
        open_cohort(store, features, ["1", "2", "3"])
    with pytest.raises(BadData, match="every subject once"):
        open_cohort(store, features, ["1", "1"])
    with pytest.raises(InputMissing, match="no prepared fingerprints of any subject"):
        fit_features(Store(tmp_path / "none"), None, RAW)


def test_units_of_unequal_kind_are_refused(tmp_path, rng):
    store = filled(tmp_path / "a", rng, {"1": ["1"]})
    features = fit_features(store, None, RAW)
    with pytest.raises(BadData, match="expected connectivity binarized as the model has, got correlation"):
        open_cohort(store, fit_features(store, None, RAW.model_copy(update={"connectivity": "binarized"})))
    wide = filled(tmp_path / "b", rng, {"1": ["1"]}, targets=7)
    with pytest.raises(BadData, match="expected 6 targets as the model has, got 7"):
        open_cohort(wide, features)
    write_unit(store, "2", "1", np.eye(20, 6), frames=9, features=RAW.model_copy(update={"connectivity": "binarized"}))
    with pytest.raises(BadData, match=r"sub-2_ses-1.*expected connectivity correlation as the first unit's, got binar"):
        open_cohort(store, features)


def test_units_of_other_vertices_that_came_from_elsewhere_are_refused(tmp_path, rng):
    store = filled(tmp_path / "a", rng, {"1": ["1"]})
    moved = Vertices(Mesh("none", (20, 0)), np.zeros(20, np.uint8), np.arange(20, dtype=np.int32)[::-1])
    other = Store(tmp_path / "d")
    write_unit(other, "2", "1", np.zeros((20, 6)), frames=9, vertices=moved)
    for path in other.folder.glob("*.*"):
        path.rename(store.folder / path.name)
    with pytest.raises(BadData, match=r"sub-2_ses-1.*expected 20 vertices .* as the cohort's first unit has, got 20 "):
        open_cohort(store, fit_features(store, ["1"], RAW))


def test_an_identity_differs_by_name_in_what_a_model_depends_on(tmp_path, rng):
    store = filled(tmp_path / "a", rng, {"1": ["1"], "2": ["1"]})
    wide = filled(tmp_path / "b", rng, {"1": ["1"]}, targets=7)

    def identity(of: Store, subjects=None, **chosen) -> dict:
        return open_cohort(of, fit_features(of, None, Features(**chosen)), subjects).identity

    def differing(other: dict) -> set[str]:
        return {name for name in mine if other[name] != mine[name]}

    mine = identity(store, ["1"])
    assert mine == json.loads(json.dumps(mine))
    assert differing(identity(store, ["2"], precision="float32")) == set()
    assert differing(identity(store, center=False, components=2)) == {"features.center", "features.components"}
    assert differing(identity(wide)) == {"data", "targets"}
    assert mine["data"].startswith("20 vertices of none 20+0 (")


def test_a_damaged_unit_is_named_when_its_batch_is_read(tmp_path, rng):
    store = filled(tmp_path, rng, {"1": ["1"], "2": ["1"]})
    cohort = open_cohort(Store(tmp_path), fit_features(store, None, RAW))
    content = bytearray(store.path("2", "1").read_bytes())
    content[-1] ^= 1
    store.path("2", "1").write_bytes(content)
    cohort.read([0])
    with pytest.raises(BadData, match=r"sub-2_ses-1_fingerprint\.safetensors: damaged"):
        cohort.read([0, 1])


def test_reading_a_batch_is_quick(tmp_path, rng):
    known = {"vertices": 1200, "targets": 100, "features": Features()}
    store = filled(tmp_path, rng, {str(i): ["1", "2"] for i in range(8)}, **known)
    cohort = open_cohort(store, fit_features(store, None, Features()))
    cohort.read(range(8))
    took = []
    for _ in range(5):
        start = time.perf_counter()
        cohort.read(range(8))
        took.append(time.perf_counter() - start)
    # About 15 ms on one core of a laptop; ten times that would make reading, not learning, the longest part of a step.
    assert min(took) < 0.15


def test_a_checksum_is_of_what_was_prepared_from_what_and_not_of_when(tmp_path, rng):
    def checksum(name: str, **known) -> str:
        store = Store(tmp_path / name)
        z = np.random.default_rng(0).standard_normal((20, 6))
        write_unit(store, "1", "1", z, frames=100, features=RAW, **known)
        return open_cohort(store, fit_features(store, ["1"], RAW)).checksums("1")[0]

    def at(time: int, content: str) -> dict:
        return {"inputs": {"files": [["run.nii", 9, time]]}, "sources": {"run.nii": content}}

    assert checksum("one", **at(1, "a")) == checksum("moved", **at(2, "a"))
    assert checksum("other", **at(1, "b")) != checksum("one again", **at(1, "a"))
    assert checksum("fewer frames", **at(1, "a"), cleaning={"censored": 3}) != checksum("all", **at(1, "a"))
    assert checksum("of no file") == checksum("of no file either") != checksum("x", **at(1, "a"))
