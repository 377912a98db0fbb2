"""What a store says of itself, and what a resume compares."""

from make.stores import manifest

from hslib.store.manifest import differing_fields


def test_a_resume_with_other_layers_or_model_names_the_fields() -> None:
    changed = manifest(boundaries=(2, 3, 5), model_config_hash="c1", dataset_digest="d1")
    assert differing_fields(manifest(), changed) == {
        "boundaries": ((1, 3, 5), (2, 3, 5)),
        "model_config_hash": ("c0", "c1"),
    }
