"""Objects below a prefix of a bucket: S3's API through s3fs, with errors that name the cure.

botocore reads region, endpoint and credentials from its own environment variables and files; they
do not pass through this module. It knows nothing of stores.
"""

import contextlib
import email.utils
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tenacity

from hslib.errors import StoreError

PART_BYTES = 32 << 20  # what one request carries; larger objects are uploaded in parts

_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or AWS_PROFILE, in "
    "the environment of this process to ones that are valid now"
)
_ALLOW = "allow these credentials s3:GetObject, PutObject, DeleteObject there, and s3:ListBucket"
_REGION = "set AWS_DEFAULT_REGION to the bucket's region, and AWS_ENDPOINT_URL if it is not at AWS"
_LATER = "is AWS_ENDPOINT_URL right, and the object store up? Run again to resume"
_CURES = {
    "NoCredentials": _CREDENTIALS,
    "PartialCredentials": _CREDENTIALS,
    "CredentialRetrieval": _CREDENTIALS,
    "ProfileNotFound": _CREDENTIALS,
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "TokenRefreshRequired": _CREDENTIALS,
    "NoSuchBucket": "create the bucket, or correct store_dir; is AWS_ENDPOINT_URL the right one?",
    "AccessDenied": _ALLOW,
    "Forbidden": _ALLOW,
    "403": _ALLOW,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "301": _REGION,
    "NoRegion": _REGION,
    "RequestTimeTooSkewed": "set this machine's clock",
    "NotImplemented": "this object store lacks what a store needs: conditional writes "
    "(If-None-Match, If-Match) and uploads in parts; use another",
}
_CONDITION_FAILED = {"PreconditionFailed", "412"}


class ObjectHead(NamedTuple):
    """An object's size, ETag, and age since it was written, by the object store's clock."""

    size_bytes: int
    etag: str
    age_s: float


class Listed(NamedTuple):
    """An object of a listing, its name below the prefix."""

    name: str
    size_bytes: int
    etag: str


def _is_conflict(error: BaseException) -> bool:
    """Whether S3 wants the request again, since one for the same object was under way."""
    return isinstance(error, StoreError) and error.fields["code"] == "ConditionalRequestConflict"


class Objects:
    """The objects below a URL. Threads may share it; a child process or a pickled copy works too.

    Every method raises :class:`StoreError` with ``bucket, key, code`` when the object store refuses
    or can't be reached, after botocore's own retries. A missing object is a ``FileNotFoundError``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.bucket, self._prefix = split_url(url)
        self._opened: tuple[int, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Objects, (self.url,)

    def put(self, name: str, data: bytes) -> str:
        """Write an object, which appears whole or not at all; returns its ETag."""
        return self._etag(name, self._call("put_object", name, Body=data), len(data))

    @tenacity.retry(
        retry=tenacity.retry_if_exception(_is_conflict),
        stop=tenacity.stop_after_attempt(5),
        wait=tenacity.wait_exponential_jitter(multiplier=0.2),
        reraise=True,
    )
    def put_if(self, name: str, data: bytes, etag: str) -> str | None:
        """Write only if the object has this ETag ("" = if there is none); returns the new ETag.

        None: the condition does not hold. Libraries send a request again when its answer is lost,
        and a copy may arrive late; a conditional write takes effect only once.
        """
        condition = {"IfMatch": f'"{etag}"'} if etag else {"IfNoneMatch": "*"}
        try:
            answer = self._call("put_object", name, Body=data, **condition)
        except FileNotFoundError:
            return None
        except StoreError as error:
            if error.fields["code"] not in _CONDITION_FAILED:
                raise
            return self._etag_of(name, data)
        return self._etag(name, answer, len(data))

    def _etag_of(self, name: str, data: bytes) -> str | None:
        """The object's ETag if it has this content: the answer to the write was lost. Else None."""
        try:
            return self.head(name).etag if self.get(name) == data else None
        except FileNotFoundError:
            return None

    def put_parts(self, name: str, parts: Sequence[bytes | memoryview]) -> str:
        """Write an object of any size, copying ``PART_BYTES`` at a time; returns its ETag."""
        size = sum(map(len, parts))
        if size <= PART_BYTES:
            return self.put(name, b"".join(parts))
        upload = {"UploadId": self._call("create_multipart_upload", name)["UploadId"]}
        done = []
        try:
            for number, data in enumerate(blocks(parts, PART_BYTES), start=1):
                part = self._call("upload_part", name, Body=data, PartNumber=number, **upload)
                done.append({"PartNumber": number, "ETag": part["ETag"]})
            whole = self._call(
                "complete_multipart_upload", name, MultipartUpload={"Parts": done}, **upload
            )
        except BaseException:
            with contextlib.suppress(StoreError, FileNotFoundError):  # the first error is the cause
                self._call("abort_multipart_upload", name, **upload)
            raise
        return self._etag(name, whole, size)

    def _etag(self, name: str, answer: dict[str, Any], size_bytes: int) -> str:
        """The ETag in an upload's answer; the object store is asked only where it has none.

        botocore sends a CRC-32 with each upload, by which S3 refuses other bytes than were sent.
        """
        if answer.get("ETag"):
            return _bare(answer["ETag"])
        found = self.head(name)
        if found.size_bytes != size_bytes or not found.etag:
            raise StoreError(
                "the object store holds something else than was sent",
                bucket=self.bucket,
                key=self._prefix + name,
                code="",
                expected=size_bytes,
                got=found,
                fix="does anybody else write there? Run again to resume",
            )
        return found.etag

    def get(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """An object, or its bytes ``start:end``; a large one over several connections."""
        key = self._prefix + name
        with self._explained(key):
            return bytes(self._filesystem().cat_file(f"{self.bucket}/{key}", start=start, end=end))

    def head(self, name: str) -> ObjectHead:
        found = self._call("head_object", name)
        now = found["ResponseMetadata"]["HTTPHeaders"].get("date")
        written = found["LastModified"]
        age_s = (email.utils.parsedate_to_datetime(now) - written).total_seconds() if now else 0.0
        return ObjectHead(found["ContentLength"], _bare(found["ETag"]), age_s)

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects whose names begin with ``prefix``, in order."""
        token: dict[str, str] = {}
        while True:
            key = self._prefix + prefix
            with self._explained(key):
                page = self._filesystem().call_s3(
                    "list_objects_v2", Bucket=self.bucket, Prefix=key, **token
                )
            for found in page.get("Contents", []):
                name = found["Key"].removeprefix(self._prefix)
                yield Listed(name, found["Size"], _bare(found["ETag"]))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def move(self, name: str, target: str) -> None:
        """Copy within the bucket, then delete."""
        key = self._prefix + name
        with self._explained(key):
            self._filesystem().cp_file(
                f"{self.bucket}/{key}", f"{self.bucket}/{self._prefix}{target}"
            )
        self.delete(name)

    def delete(self, name: str) -> None:
        """An object that is gone already is no error."""
        self._call("delete_object", name)

    def probe_write(self) -> None:
        """Write, read and delete a small object; raises when that does not work here.

        Also tries writes whose condition does not hold: not every object store refuses them.
        """
        name, data = f".hslib-check-{secrets.token_hex(8)}", b"may this process write here?"
        self.put(name, data)
        try:
            for etag in ("", "0" * 32):
                self.put_if(name, b"not this", etag)
            if self.get(name) != data:
                raise StoreError(
                    "the object store gives back other bytes than were written, or knows no "
                    "conditional writes",
                    bucket=self.bucket,
                    key=self._prefix + name,
                    fix=_CURES["NotImplemented"],
                )
        finally:
            self.delete(name)

    def _call(self, method: str, name: str, **arguments: Any) -> dict[str, Any]:
        key = self._prefix + name
        with self._explained(key):
            found = self._filesystem().call_s3(method, Bucket=self.bucket, Key=key, **arguments)
            return dict(found)

    def _filesystem(self) -> Any:
        """The s3fs file system; a new one in a child process, as connections can't be shared."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), _open_s3())
        return self._opened[1]

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        import aiohttp
        import botocore.exceptions as boto

        try:
            yield
        except (
            OSError,
            boto.BotoCoreError,
            boto.ClientError,
            aiohttp.ClientError,
        ) as error:
            raise explain(error, self.bucket, key) from error


def _open_s3() -> Any:
    import s3fs

    return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)


def explain(error: BaseException, bucket: str, key: str) -> Exception:
    """An error of s3fs, botocore or the network as this kit's."""
    response = _response_of(error)
    if response is None:
        code, said = type(error).__name__.removesuffix("Error"), str(error)
    else:
        code, said = (str(response["Error"].get(name) or "") for name in ("Code", "Message"))
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return FileNotFoundError(f"s3://{bucket}/{key}")
    return StoreError(
        f"the object store refused the request: {said or code}",
        bucket=bucket,
        key=key,
        code=code,
        fix=_CURES.get(code, _LATER),
    )


def _response_of(error: BaseException | None) -> dict[str, Any] | None:
    """S3's error answer, which is a cause of s3fs's OSError; None if there is none."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and "Error" in response:
            return response
        error = error.__cause__
    return None


def blocks(parts: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """The parts' bytes in blocks of ``size``, the last one shorter; each byte is copied once."""
    held: list[bytes | memoryview] = []
    room = size
    for part in parts:
        view = memoryview(part)
        while view:
            held.append(view[:room])
            view = view[room:]
            room -= len(held[-1])
            if not room:
                yield b"".join(held)
                held, room = [], size
    if held:
        yield b"".join(held)


def _bare(etag: Any) -> str:
    return str(etag).strip('"')


def split_url(url: str) -> tuple[str, str]:
    """``(bucket, prefix)``; the prefix is empty or ends with a slash."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix and f"{prefix}/"
