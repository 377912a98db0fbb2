"""Arguments that several commands have."""

from typing import Annotated

import typer

StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="a directory, or s3://bucket/prefix")
]
