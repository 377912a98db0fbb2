"""Rows that hold more than text are rejected: only ids are sent."""

from typing import Any

import pytest

from hslib.dataset import Limits, Rejection, Sample, check_row


def check(row: dict[str, Any]) -> Sample | Rejection:
    return check_row(0, {"input_ids": [1, 2], **row}, Limits(100, 8))


@pytest.mark.parametrize(
    "row",
    [
        {"images": ["x.jpg"]},
        {"image": {"bytes": b"\xff\xd8", "path": None}},
        {"videos": [{"path": "x.mp4"}]},
        {"audio": "x.wav"},
        {"pixel_values": [[0.0, 0.5]]},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "user", "content": ["hi", {"type": "input_audio"}]}]},
        {"messages": [{"role": "user", "content": [{"image": "file:x.png"}, {"text": "hi"}]}]},
        {"conversations": [{"role": "user", "content": [{"type": "video_url"}]}]},
    ],
)
def test_a_row_with_media_is_rejected(row: dict[str, Any]) -> None:
    found = check(row)
    assert isinstance(found, Rejection)
    assert found.reason == "media"
    assert "only ids are sent" in found.fix


@pytest.mark.parametrize(
    "row",
    [
        {"images": []},
        {"images": None, "videos": [None], "audio": ""},
        {"image": {"bytes": None, "path": None}},
        {"image": float("nan"), "id": float("nan")},
        {"audio": {"bytes": None, "path": None, "sampling_rate": 16000}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "an image"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "image_url": None}]}]},
        {"messages": "user: image", "conversations": [{"from": "human", "value": "<image>"}]},
        {"messages": [None, {"role": "assistant", "content": None}]},
    ],
)
def test_a_row_of_text_is_none_of_that(row: dict[str, Any]) -> None:
    assert isinstance(check(row), Sample)
