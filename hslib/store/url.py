"""A store's URL: a directory, or a prefix in a bucket of an object store."""

import re
from pathlib import Path

from hslib.errors import ParameterError

StoreUrl = Path | str  # a str is a URL such as "s3://bucket/states/kimi"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|s3:/")  # Path turns "s3://b" into "s3:/b"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_S3 = re.compile(rf"s3:/+({_BUCKET}(?:/[\w!.*'()=+@,:-]+)*)/*", re.ASCII)


def read_store_url(text: str | Path) -> StoreUrl:
    """A path as it is, or an S3 URL in its normal form. Pure.

    Raises:
        ParameterError: a URL of another kind, or with more than bucket and prefix. The error does
            not repeat the text, which may hold a secret.
    """
    if not _URL.match(str(text)):
        return Path(text)
    found = _S3.fullmatch(str(text))
    if found and not {".", ".."} & set(found[1].split("/")):
        return f"s3://{found[1]}"
    raise ParameterError(
        "a store's URL is s3://BUCKET/PREFIX and nothing else: no user, password, host or query",
        fix="credentials, region and endpoint are read from the environment: AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), AWS_DEFAULT_REGION, AWS_ENDPOINT_URL",
    )
