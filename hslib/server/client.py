"""HTTP to one SGLang server: prefill, log probabilities, tokenization, settings, health.

A failed request is a :class:`RequestError` with ``retry`` (another try may help) and ``down`` (the
server does not answer). The caller decides what to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import orjson
import pydantic

from hslib.errors import RequestError, ServerError


class ServerSettings(pydantic.BaseModel):
    """The part of ``/server_info`` that a job needs; the rest, which holds secrets, is not kept."""

    model_config = pydantic.ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    version: str
    model_path: str
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    attention_backend: str | None
    tp_size: int
    dp_size: int
    chunked_prefill_size: int | None
    disable_radix_cache: bool
    speculative_algorithm: str | None
    allow_auto_truncate: bool
    enable_two_batch_overlap: bool = False
    max_req_input_len: int

    def problems(self) -> list[str]:
        """Settings with which dumps would be wrong, each with its cure."""
        found = []
        if not self.disable_radix_cache:
            found.append(
                "the prefix cache is on, so cached tokens never pass the model: "
                "start the server with --disable-radix-cache"
            )
        if self.speculative_algorithm:
            found.append(
                f"speculative decoding ({self.speculative_algorithm}) is on: start without a draft"
            )
        if self.allow_auto_truncate:
            found.append("long rows would be cut: start without --allow-auto-truncate")
        if self.enable_two_batch_overlap:
            found.append(
                "batches are split in two: start the server without --enable-two-batch-overlap"
            )
        return found


@dataclass(frozen=True)
class Completion:
    """What a model generated. ``ids`` include the token that ended it.

    ``matched``: that token's id, or the text that ended it; None when it was cut.
    """

    ids: tuple[int, ...]
    is_cut: bool  # it came to its longest length
    matched: int | str | None


class ServerClient:
    """One server. Thread-safe; close it, or use it as a context manager.

    Args:
        api_key: sent as a bearer token; never logged.
        timeout_s: longest wait for one answer.
    """

    def __init__(self, url: str, api_key: str = "", timeout_s: float = 600.0) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(timeout_s, connect=10.0)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # trust_env=False: a proxy for the internet must not see requests to a local server
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False
        )

    def __enter__(self) -> "ServerClient":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def prefill(
        self,
        rows: Sequence[np.ndarray],
        rids: Sequence[str] | None = None,
        replica: int | None = None,
    ) -> None:
        """Prefill token rows and generate nothing; returns when the server has answered.

        Args:
            rows: int arrays [T].
            rids: a request id each; None lets the server choose.
            replica: the data-parallel replica; None lets the server choose.

        Raises:
            RequestError: refused, failed, not answered, or some tokens came from the cache.
        """
        body: dict[str, Any] = {"input_ids": list(rows)}
        if rids is not None:
            body["rid"] = list(rids)
        if replica is not None:
            body["routed_dp_rank"] = replica
        _check_answer(self._generate(body), [len(row) for row in rows])

    def generate(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int,
        temperature: float,
        stop_token_ids: Sequence[int] = (),
    ) -> Completion:
        """Let the model go on after a prompt, as ids: nothing is tokenized on the way.

        Args:
            stop_token_ids: what ends the answer, beside the ids that the model's own files name.

        Raises:
            RequestError: refused, failed, not answered, or ended by the server.
        """
        sampling = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "stop_token_ids": list(stop_token_ids),
        }
        answer = self._generate({"input_ids": list(input_ids), "sampling_params": sampling})
        end = answer["meta_info"]["finish_reason"]
        if end["type"] not in ("stop", "length"):
            raise RequestError(
                f"the server ended the answer: {end.get('message') or end['type']}",
                retry=True,
                down=False,
            )
        return Completion(tuple(answer["output_ids"]), end["type"] == "length", end.get("matched"))

    def logprobs(self, input_ids: np.ndarray, vocab_size: int) -> list[float]:
        """The model's log probability (nats) of each token but the first, given those before it.

        Args:
            input_ids: int [T]; the answer has T - 1 numbers.
            vocab_size: the model's.

        Raises:
            RequestError: refused or not answered, or answered for other tokens.
        """
        body = {"input_ids": input_ids, "return_logprob": True, "logprob_start_len": 0}
        answer = self._generate(body)
        found = answer.get("meta_info", {}).get("input_token_logprobs", [])[1:]
        # SGLang 0.5.23 names the vocabulary's last id as 0 (logprob_result_processor.py takes it
        # for an image's placeholder); the number beside it is that of the id that was sent
        following = input_ids[1:]
        named = np.where(following == vocab_size - 1, 0, following).tolist()
        if [entry[1] for entry in found] not in (named, following.tolist()):
            raise RequestError(
                "the server gave log probabilities of other tokens than it was sent",
                retry=False,
                down=False,
                expected=len(input_ids) - 1,
                got=len(found),
            )
        return [float(entry[0]) for entry in found]

    def settings(self) -> ServerSettings:
        """The server's settings; raises :class:`ServerError` if the answer lacks one of them."""
        raw = self._request("GET", "/server_info")
        try:
            return ServerSettings.model_validate(raw)
        except pydantic.ValidationError as error:
            names = ", ".join(str(e["loc"][0]) for e in error.errors())
            raise ServerError(
                f"/server_info of {self.url} lacks {names}", fix="is it SGLang 0.5.23?"
            ) from error

    def tokenize(self, text: str, add_special_tokens: bool) -> list[int]:
        """The server's token ids of a text."""
        return self._tokenize({"prompt": text, "add_special_tokens": add_special_tokens})

    def tokenize_chat(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool,
        template: dict[str, Any] | None = None,
    ) -> list[int]:
        """The server's token ids of a conversation, through its chat template.

        Args:
            template: further variables of the template, such as ``enable_thinking``.
        """
        body: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        if template:
            body["chat_template_kwargs"] = template
        return self._tokenize(body)

    def _tokenize(self, body: dict[str, Any]) -> list[int]:
        answer = self._request("POST", "/tokenize", orjson.dumps(body))
        return [int(number) for number in answer["tokens"]]

    def _generate(self, body: dict[str, Any]) -> Any:
        body = {"sampling_params": {"max_new_tokens": 0, "temperature": 0}, **body}
        content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        return self._request("POST", "/generate", content)

    def is_up(self) -> bool:
        """Whether the server answers ``/health``; does not raise when it does not."""
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _request(self, method: str, path: str, content: bytes | None = None) -> Any:
        headers = {"content-type": "application/json"} if content else None
        try:
            answer = self._http.request(method, path, content=content, headers=headers)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise RequestError(
                f"no answer from {self.url} in time ({type(error).__name__})",
                retry=True,
                down=False,
            ) from error
        except httpx.HTTPError as error:
            raise RequestError(
                f"{self.url} does not answer: {error or type(error).__name__}",
                retry=True,
                down=True,
            ) from error
        if answer.status_code in (401, 403):
            raise ServerError(
                f"{self.url} refuses the API key",
                fix="name the environment variable that holds it in api_key_env",
            )
        if answer.status_code >= 400:
            raise RequestError(
                f"the server answered {answer.status_code}: {answer.text[:300]}",
                retry=answer.status_code >= 500 or answer.status_code in (408, 429),
                down=answer.status_code in (502, 503, 504),
                status=answer.status_code,
            )
        return orjson.loads(answer.content)


def _check_answer(answers: Any, lengths: list[int]) -> None:
    """Raise unless the answer says that all tokens were prefilled and none was cached."""
    metas = [answer.get("meta_info", {}) for answer in answers]
    prompts = [meta.get("prompt_tokens") for meta in metas]
    cached = [meta.get("cached_tokens") or 0 for meta in metas]
    if prompts != lengths or any(cached):
        raise RequestError(
            "the server did not prefill all tokens",
            retry=True,
            down=False,
            expected=lengths,
            got=prompts,
            cached_tokens=cached,
            fix="start the server with --disable-radix-cache",
        )
