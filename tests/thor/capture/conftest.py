"""Fixtures of the tests of thor/capture/."""

import pytest

from thor.capture import layer_classes


@pytest.fixture(autouse=True)
def _declarations(monkeypatch):
    """Declarations of one test are not the next one's."""
    monkeypatch.setattr(layer_classes, "_CLASSES", list(layer_classes._CLASSES))
