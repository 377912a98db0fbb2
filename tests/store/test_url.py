"""Where a store may lie: a path, or an s3 URL that holds nothing else."""

from pathlib import Path
from typing import Any

import pytest
from make.stores import manifest

from hslib.errors import ParameterError
from hslib.parameters import ExtractionParameters, StoreParameters
from hslib.store import Store, StoreWriter, read_store_url


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("runs/demo/store", Path("runs/demo/store")),
        ("/data/a:b/c", Path("/data/a:b/c")),
        ("s3://my-bucket/a/b/", "s3://my-bucket/a/b"),
        ("s3://my-bucket", "s3://my-bucket"),
        (Path("s3://my-bucket/a"), "s3://my-bucket/a"),
    ],
)
def test_a_place_is_a_path_or_a_url_in_its_one_form(text: Any, place: Any) -> None:
    assert read_store_url(text) == place


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIASECRET:hush@my-bucket/a",
        "s3://hush@my-bucket/a",
        "s3://my-bucket/a?X-Amz-Signature=hush",
        "s3://my-bucket/a#hush",
        "s3://my-bucket/../hush",
        "s3://my-bucket//hush",
        "s3://my_bucket:9000/hush",
        "https://hush:hush@host/my-bucket",
        "gs://my-bucket/hush",
    ],
)
def test_a_url_with_anything_else_in_it_is_refused_and_not_repeated(url: str) -> None:
    for refused in (
        lambda: ExtractionParameters.from_values({"store_dir": url}),
        lambda: StoreParameters.from_values({"store_dir": url}),
        lambda: Store(url),
        lambda: StoreWriter(url, manifest()),
    ):
        with pytest.raises(ParameterError, match="AWS_ACCESS_KEY_ID") as caught:
            refused()
        assert "hush" not in f"{caught.value!r} {caught.value} {caught.value.fields}"
