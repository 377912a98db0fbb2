"""SGLang plugin that writes the hidden states of named requests to a dump directory.

SGLang calls :func:`register` in each of its processes (entry-point group
``sglang.srt.plugins``). Without ``SGLANG_HS_DUMP_DIR`` it does nothing at all.

====================================  =======================================================
``SGLANG_HS_DUMP_DIR``                where dumps go; switches the plugin on
``SGLANG_HS_DUMP_BOUNDARIES``         ``3,31,59``: indices into transformers' ``hidden_states``,
                                      1 to the number of layers; empty: none
``SGLANG_HS_DUMP_FINAL``              ``0``: leave the final state out
``SGLANG_HS_DUMP_ACCEPT_UNWITNESSED`` ``1``: dump states that no layer confirms, too
``SGLANG_HS_DUMP_ACCEPT_MISSING``     ``model.layers.*.bias,...``: parameters, by name or
                                      pattern, that the checkpoint may lack
``SGLANG_HS_DUMP_BUDGET_BYTES``       most bytes of dumps that no client has removed (default:
                                      half of what the file system has free at start)
``SGLANG_HS_DUMP_WAIT_S``             longest a forward waits for budget (default 120)
``SGLANG_HS_DUMP_ALL``                ``1``: dump every prefill; other requests as ``req_{n}``
``SGLANG_HS_DUMP_SEAM``               for trials: take this seam, even if the witness refuses
                                      it (``stage``, ``sum``, ``hidden``, SGLang's own ``aux``)
``SGLANG_HS_API_KEY``                 the server's API key, kept off its command line and log
====================================  =======================================================

No module here imports hslib: the two share only files.
"""

import os

__version__ = "2.0.0"


def register() -> None:
    """Install the hooks in this process; inert without ``SGLANG_HS_DUMP_DIR``.

    SGLang logs and swallows what a plugin raises, so a problem found here is also
    written to ``plugin.json``, where a launcher can read it.
    """
    if not os.environ.get("SGLANG_HS_DUMP_DIR"):
        return
    from hs_dump import hooks

    hooks.install()
