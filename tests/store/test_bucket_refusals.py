"""What an object store refuses, or can't do, is told with the cure before a server is started."""

import pytest
from fakes.bucket import CREDENTIALS, Bucket, Fate, Meddler
from make.stores import manifest

from hslib.errors import StoreError
from hslib.store import Store, StoreWriter, open_storage, probe_write
from hslib.terminal import main


def test_missing_credentials_name_the_variables(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    for use in (
        lambda: probe_write(bucket.url),
        lambda: Store(bucket.url),
        lambda: StoreWriter(bucket.url, manifest()),
    ):
        with pytest.raises(StoreError, match="AWS_SECRET_ACCESS_KEY") as caught:
            use()
        assert caught.value.fields["code"] == "NoCredentials"


def test_a_missing_bucket_is_told_from_a_missing_store(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    for use in (
        lambda: probe_write("s3://no-such-bucket/x"),
        lambda: Store("s3://no-such-bucket/x"),
        lambda: StoreWriter("s3://no-such-bucket/x", manifest()),
    ):
        with pytest.raises(StoreError, match="create the bucket") as caught:
            use()
        assert caught.value.fields["code"] == "NoSuchBucket"
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        Store(bucket.url)
    assert main(["verify", "s3://no-such-bucket/x"]) == 1
    assert "create the bucket" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fate", "advice"),
    [
        ((403, "AccessDenied"), "s3:ListBucket"),
        ((403, "InvalidAccessKeyId"), "AWS_PROFILE"),
        ((403, "ExpiredToken"), "valid now"),
        ((301, "PermanentRedirect"), "AWS_DEFAULT_REGION"),
        ((503, "SlowDown"), "resume"),
        ((501, "NotImplemented"), "use another"),
    ],
)
def test_what_the_object_store_refuses_is_told_with_the_cure(
    bucket: Bucket, meddler: Meddler, fate: Fate, advice: str
) -> None:
    meddler.judge = lambda method, *_: fate if method == "PUT" else "pass"
    with pytest.raises(StoreError, match=advice) as caught:
        probe_write(bucket.url)
    assert caught.value.fields["bucket"] == bucket.name
    assert caught.value.fields["code"] == fate[1]


def test_an_object_store_that_is_not_there_is_an_error(bucket: Bucket, meddler: Meddler) -> None:
    meddler.stop()
    for url in (meddler.url, meddler.url.replace("http://", "http://user:hush@")):
        bucket.through(url)
        with pytest.raises(StoreError, match="AWS_ENDPOINT_URL") as caught:
            probe_write(bucket.url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
def test_an_object_store_that_ignores_conditions_is_refused(
    bucket: Bucket, meddler: Meddler, header: str
) -> None:
    meddler.without = (header,)
    with pytest.raises(StoreError, match="knows no conditional writes"):
        probe_write(bucket.url)
    assert bucket.names() == []


def test_the_preflight_leaves_nothing_behind(bucket: Bucket) -> None:
    probe_write(bucket.url)
    assert bucket.names() == []


def test_an_object_store_bounds_nothing(bucket: Bucket) -> None:
    assert open_storage(bucket.url).free_bytes() is None
