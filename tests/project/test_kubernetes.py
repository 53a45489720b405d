"""The manifests of the page about Kubernetes, against the schemas that Kubernetes publishes. Nothing is run there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "kubernetes.md"
#: The oldest and the newest release of Kubernetes that the page is checked for.
_RELEASES = ("1.30", "1.37")


def _manifests() -> Iterator[dict[str, Any]]:
    """Those of the page, and a pod with what the launcher of Dagster is told for its pods."""
    for block in re.findall(r"^```yaml\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for document in yaml.safe_load_all(block):
            if "kind" in document:
                yield document
                continue
            told = document["run_launcher"]["config"]["run_k8s_config"]
            container = {"name": "dagster", "image": "shop", **told.pop("container_config")}
            spec = {**told.pop("pod_spec_config"), "containers": [container]}
            assert not told, "nothing is told that is not checked"
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "run"}, "spec": spec}


def _kinds() -> dict[str, dict[str, Any]]:
    return {manifest["kind"]: manifest for manifest in _manifests()}


def _misspelt(value: Any) -> Iterator[Any]:
    """The value with one key misspelt, for each key in turn."""
    if isinstance(value, dict):
        for key, inner in value.items():
            rest = {other: each for other, each in value.items() if other != key}
            yield {**rest, f"{key}s": inner}
            if key not in {"requests", "limits"}:  # whose keys are the names of resources
                yield from ({**rest, key: changed} for changed in _misspelt(inner))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from ([*value[:number], changed, *value[number + 1 :]] for changed in _misspelt(inner))


@pytest.mark.parametrize("release", _RELEASES)
def test_the_manifests_are_valid(release: str) -> None:
    kinds = _kinds()
    assert set(kinds) == {"ServiceAccount", "Role", "RoleBinding", "PersistentVolumeClaim", "Pod"}
    for manifest in kinds.values():
        kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("kind", sorted(_kinds()))
def test_a_misspelt_field_is_found(kind: str) -> None:
    changed = list(_misspelt(_kinds()[kind]))
    assert len(changed) > 3
    for manifest in changed:
        with pytest.raises((kubernetes_validate.ValidationError, kubernetes_validate.InvalidSchemaError, KeyError)):
            kubernetes_validate.validate(manifest, _RELEASES[-1], strict=True)


def test_the_manifests_name_each_other() -> None:
    """What no schema sees: the account, the claim, and the time that a canceled run may take."""
    kinds = _kinds()
    account = kinds["ServiceAccount"]["metadata"]
    binding = kinds["RoleBinding"]
    assert binding["roleRef"]["name"] == kinds["Role"]["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    claims = [volume["persistentVolumeClaim"]["claimName"] for volume in kinds["Pod"]["spec"]["volumes"]]
    assert claims == [kinds["PersistentVolumeClaim"]["metadata"]["name"]]
    page = _PAGE.read_text(encoding="utf-8")
    assert f"service_account_name: {account['name']}" in page
    assert f'"{claims[0]}"' in page
    assert f"hence the {kinds['Pod']['spec']['terminationGracePeriodSeconds']} s above" in page
