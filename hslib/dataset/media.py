"""Whether a row holds more than text: only ids are sent, images and sound would be lost. Pure."""

from collections.abc import Mapping
from typing import Any

# What data sets and processors call them
MEDIA_COLUMNS = frozenset(
    {
        *("image", "images", "image_url", "image_urls", "image_path", "image_paths"),
        *("video", "videos", "video_url", "video_urls", "video_path", "video_paths"),
        *("audio", "audios", "audio_url", "audio_urls", "audio_path", "audio_paths"),
        *("pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw"),
        *("input_features", "input_audio", "audio_values"),
    }
)


def find_media(row: Mapping[str, Any]) -> str:
    """Where a row holds an image, video or sound: ``"images"``; "" if nowhere."""
    for name in row.keys() & MEDIA_COLUMNS:
        if _holds(row[name]):
            return name
    for name in ("messages", "conversations"):
        turns = row.get(name)
        for turn in turns if isinstance(turns, list) else ():
            parts = turn.get("content") if isinstance(turn, dict) else None
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict) and _is_media(part):
                    return f"{name} with a part of type {str(part.get('type'))[:40]!r}"
    return ""


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = str(part.get("type") or "").removeprefix("input_")
    return kind.startswith(("image", "video", "audio")) or any(
        _holds(part[name]) for name in part.keys() & MEDIA_COLUMNS
    )


def _holds(value: Any) -> bool:
    """Whether anything is there: Arrow writes an absent image as a struct of nulls."""
    if isinstance(value, dict):
        return any(_holds(part) for name, part in value.items() if name != "sampling_rate")
    if isinstance(value, list):
        return any(map(_holds, value))
    is_nan = value != value  # pandas' nothing
    return not is_nan and value not in (None, False, "", b"")
