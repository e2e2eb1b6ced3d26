"""The software of a site file: its model and the executor agree."""

from __future__ import annotations

import pytest

from scalestudy.spec.base import parse
from scalestudy.spec.config import Container as SiteContainer
from scalestudy.spec.config import Site
from snakemake_executor_plugin_multinode.software import (
    CONTAINER_KEYS,
    KEYS,
    Container,
    Software,
    read_software,
)


@pytest.mark.parametrize(
    "site",
    [
        {"modules": "cuda"},
        {"conda": ["x"]},
        {"container": "a.sif"},
        {"container": {"image": "a.sif", "binds": []}},
        {"container": {"image": "a.sif", "bind": "/data"}},
    ],
)
def test_what_the_executor_refuses_the_model_refuses_too(site: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        read_software(site)
    assert parse(Site, site)[1]


def test_site_file_and_executor_have_the_same_keys_and_defaults() -> None:
    assert set(KEYS) <= set(Site.model_fields)
    assert set(CONTAINER_KEYS) == set(SiteContainer.model_fields)
    assert vars(Container("a.sif")) == SiteContainer(image="a.sif").model_dump()
    plain = Site(modules=("a",), conda="b", container=SiteContainer(image="c", bind=("/d",))).plain()
    assert read_software(plain) == Software(("a",), "b", Container("c", bind=("/d",)))
