"""SGLang servers that capture: started, checked, asked, and what they wrote."""

from hslib.server.check import ServerCheck, require_same
from hslib.server.client import Completion, ServerClient
from hslib.server.dumps import DUMP_SHARE, DUMP_TOKEN_BYTES, Dump, DumpDir, dump_bytes, request_id
from hslib.server.endpoint import Answer, Endpoint
from hslib.server.endpoints import Endpoints, Servers, open_endpoints, store_lock
from hslib.server.guard import Guard
from hslib.server.job_lock import JobLock, job_since, run_lock
from hslib.server.launch import act

__all__ = [
    "act",
    "Answer",
    "Completion",
    "Dump",
    "dump_bytes",
    "DUMP_SHARE",
    "DUMP_TOKEN_BYTES",
    "DumpDir",
    "Endpoint",
    "Endpoints",
    "Guard",
    "job_since",
    "JobLock",
    "open_endpoints",
    "request_id",
    "require_same",
    "run_lock",
    "ServerCheck",
    "ServerClient",
    "Servers",
    "store_lock",
]
