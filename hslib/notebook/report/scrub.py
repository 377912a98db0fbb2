"""Takes secrets, host names and home paths out of a text.

Recognised are: values of environment variables with a secret's name; values beside a secret's
name in JSON, Python, command lines and tables; bearer tokens and private keys; this machine's
names, addresses, hosts of URLs, names in private domains; home directories. Other secrets look
like words and stay, and so does what an image shows.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

SECRET, HOST = "[secret]", "[host]"

_SECRET_NAME = re.compile(
    r"(?i)(api|access|private|secret|auth|signing|admin)_?(key|token)|secret|passw|credential|_token$"
    r"|^token$|_key$"
)
# Names that are followed by their value. A lone "token" or "tokens" counts things here.
_IDENTIFIER = (
    r"[\w.-]*(?:api[_-]?key|admin[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key"
    r"|auth[_-]?token|api[_-]?token|access[_-]?token|hf[_-]?token|refresh[_-]?token|client[_-]?secret)"
)
_WORD = r"(?:[\w.-]*[_.-])?(?:secret|passwd|password|passphrase|credentials?)"
_NAMED = rf"(?:{_IDENTIFIER}|{_WORD})"
_QUOTE = r"(?:[\"']|&quot;|&#39;|&#x27;|\\\")"
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}")
_QUOTED = re.compile(rf"(?i)(?<![\w-])({_NAMED}{_QUOTE}?\s*[:=]\s*)({_QUOTE})(?!\2).+?\2")
_VALUE = r"(?!None\b|null\b|true\b|false\b|&lt;|<|\[)([^\s\"'&<>,;]{3,})"
_ASSIGNED = (
    re.compile(
        rf"(?i)(?<![\w-])((?:--)?{_NAMED}{_QUOTE}?(?:\s*[:=]\s*|\s{{2,}}))({_QUOTE})?{_VALUE}"
    ),
    re.compile(rf"(?i)(?<![\w-])((?:--{_NAMED}|{_IDENTIFIER})\s)({_QUOTE})?{_VALUE}"),
)
# a command line as a list: the flag, and its value as the next item
_LISTED = re.compile(rf"(?i)(--{_NAMED}{_QUOTE}\s*,\s*)({_QUOTE})(?!\2).+?\2")
_IN_TABLE = re.compile(
    rf"(?i)(<t[hd][^>]*>\s*{_NAMED}\s*</t[hd]>\s*<td[^>]*>)\s*(?!None|</td>)[^<]+(</td>)"
)
_USER_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@\"'<>]+(?::[^/\s@\"'<>]*)?@")
_URL_HOST = re.compile(
    r"(\b(?:https?|wss?|ssh|tcp|grpc|ray|s3|ftp|nfs)://)(\[[0-9a-fA-F:]+\]|[^/\s:\"'<>&)\]]+)"
)
_RAY_HOST = re.compile(r"\bray_address\b\W{1,10}([A-Za-z][\w.-]*):\d{2,5}\b")
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|\d{1,2})"
_IPV4 = re.compile(rf"(?<![\w.])(?:{_BYTE}\.){{3}}{_BYTE}(?![\w.]*\d)")
_IPV6 = re.compile(
    r"(?i)(?<![\w:])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
    r"|[0-9a-f]{3,4}:(?:[0-9a-f]{1,4}:)*(?::[0-9a-f]{1,4})+)(?![\w:])"
)
_PRIVATE_NAME = re.compile(
    r"\b(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+"
    r"(?:internal|local|localdomain|lan|corp|intranet|home|private|cluster|svc|compute)\b",
    re.I,
)
_LOGIN = re.compile(rf"[\w.-]+@(?={re.escape(HOST)})")
_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s\"'<>&:,;)]+|(?<![\w./])/root(?![\w-])")
# public sites that notebooks name
_PUBLIC = re.compile(
    r"(?i)(?:[\w-]+\.)*(?:arxiv\.org|github\.com|github\.io|huggingface\.co|pypi\.org|python\.org"
    r"|pytorch\.org|readthedocs\.io|jupyter\.org|wikipedia\.org|doi\.org|w3\.org)"
)


@dataclass(frozen=True)
class Scrubber:
    """Replaces what it knows and what it recognises; all other text stays.

    ``secrets`` and ``hosts``: words to take out wherever they stand; ``homes``: paths;
    ``folder``: paths below it become relative, as a command there takes them.
    """

    secrets: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    folder: str = ""

    @classmethod
    def of_this_machine(cls, environment: Mapping[str, str] | None = None) -> "Scrubber":
        """Knows this process's environment, host names and home."""
        variables = os.environ if environment is None else environment
        secrets = [v for k, v in variables.items() if _SECRET_NAME.search(k) and len(v) >= 6]
        names = {socket.gethostname(), socket.getfqdn(), os.uname().nodename}
        names |= {variables.get(name, "") for name in ("HOSTNAME", "HOST", "SLURMD_NODENAME")}
        hosts = [name for name in names if len(name) > 2 and name != "localhost"]
        homes = {str(Path.home()), variables.get("HOME", "")}
        return cls(
            tuple(sorted(secrets, key=len, reverse=True)),
            tuple(sorted(hosts, key=len, reverse=True)),
            tuple(home for home in homes if len(home) > 1),
            str(Path.cwd()),
        )

    def knowing(self, hosts: tuple[str, ...]) -> "Scrubber":
        """The same with more hosts to take out."""
        return replace(self, hosts=self.hosts + hosts)

    def clean(self, text: str) -> str:
        """Plain text or HTML without them."""
        for secret in self.secrets:
            text = text.replace(secret, SECRET)
        if len(self.folder) > 1:
            text = re.sub(rf"(?<![\w./-]){re.escape(self.folder)}/(?=\w)", "", text)
        text = _PRIVATE_KEY.sub(SECRET, text)
        text = _BEARER.sub(rf"\1\2{SECRET}", text)
        text = _IN_TABLE.sub(rf"\1{SECRET}\2", text)
        text = _QUOTED.sub(rf"\1\2{SECRET}\2", text)
        text = _LISTED.sub(rf"\1\2{SECRET}\2", text)
        for assigned in _ASSIGNED:
            text = assigned.sub(_hide_value, text)
        text = _USER_IN_URL.sub(r"\1", text)
        text = _URL_HOST.sub(_hide_url_host, text)
        for host in self.hosts:
            text = re.sub(rf"(?i)(?<![\w-]){re.escape(host)}(?![\w-])", HOST, text)
        text = _IPV4.sub(HOST, _IPV6.sub(HOST, _PRIVATE_NAME.sub(HOST, text)))
        text = _LOGIN.sub("", text)
        for home in self.homes:
            text = re.sub(rf"(?<![\w.]){re.escape(home)}(?![\w-])", "~", text)
        return _HOME.sub("~", text)


def _hide_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2] or ''}{SECRET}"


def _hide_url_host(found: re.Match[str]) -> str:
    return found[0] if _PUBLIC.fullmatch(found[2]) else found[1] + HOST


def hosts_in_urls(text: str) -> tuple[str, ...]:
    """Hosts in a text's URLs that do not look like a plain word, and of a ``ray_address``."""
    found = {match[2] for match in _URL_HOST.finditer(_USER_IN_URL.sub(r"\1", text))}
    hosts = {h for h in found if re.search(r"[\d.-]", h) and not _PUBLIC.fullmatch(h)}
    cluster = {match[1] for match in _RAY_HOST.finditer(text)} - {"localhost"}
    return tuple(sorted(hosts | cluster))
