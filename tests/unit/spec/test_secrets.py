"""Passwords and keys in addresses are refused, and not repeated in the message."""

from __future__ import annotations

import pytest

from scalestudy.commands.one_run import checked_run
from scalestudy.errors import UserError

JPEG = {"source": "synthetic_jpeg", "shard": {"format": "tar"}}
SECRETS = [
    "https://user:hunter2@example.org/data",
    "http://hunter2@example.org/data",
    "s3://AKIA:hunter2@bucket/data",
    "abfss://user:hunter2@account.dfs.core.windows.net/data",
    "https://account.blob.core.windows.net/data?sv=2024&sig=hunter2",
    "https://bucket.s3.amazonaws.com/data?X-Amz-Credential=hunter2",
    "https://example.org/data?access_token=hunter2",
]
PLAIN = ["https://example.org:8080/data", "s3://bucket/data", "abfss://container@account.dfs.core.windows.net/data",
         "https://example.org/data?versionId=5", "/home/user@host/data", "https://example.org/key=1/data"]  # fmt: skip
KEYS = ["loader.origin", "stage.from"]


def spec(key: str, address: str) -> dict[str, object]:
    part, name = key.split(".")
    more = {"to": "scratch"} if part == "stage" else {}
    return {"data": JPEG, part: {name: address, **more}}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("address", SECRETS)
def test_an_address_with_a_secret_is_refused_without_repeating_it(key: str, address: str) -> None:
    with pytest.raises(UserError, match=f"try: {key}: the address holds a login or a key") as raised:
        checked_run(spec(key, address), "try")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("address", PLAIN)
def test_an_address_without_one_is_accepted(key: str, address: str) -> None:
    checked_run(spec(key, address), "try")
