"""Ollama: a preset."""

import pytest

from agent_os.drivers.models.chat import Chat
from agent_os.drivers.models.ollama import BASE, Ollama
from agent_os.drivers.models.wire import Endpoint
from models.asking import ask, request, run
from models.provider import MockProvider


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_it_talks_chat_without_a_key_and_lists_its_own_models(path: str) -> None:
    with MockProvider(keys=(), models=["llama3:8b", "mock-small"]) as mock:
        provider = Ollama(Endpoint(mock.url + path))
        assert ask(provider, request(), key=None).text == "ok"
        assert mock.seen[-1].path == "/v1/chat/completions"
        assert run(provider, lambda: provider.models(None)) == ["llama3:8b", "mock-small"]
        assert mock.seen[-1].path == "/api/tags"


def test_it_is_local_and_free() -> None:
    info = Ollama().info("llama3")
    assert (info.local, info.free, info.context) == (True, True, None)
    assert Ollama().endpoint.base == f"{BASE}/v1"
    assert Ollama().dialect(request()) == Chat()


@pytest.mark.parametrize("model", ["gpt-oss:120b-cloud", "deepseek-v3.1:671b-cloud", "kimi-k2:cloud", "x:CLOUD"])
def test_a_model_in_the_cloud_is_not_local_though_it_is_reached_here(model: str) -> None:
    """Or whoever carries a secret could tell it to a server far away."""
    info = Ollama().info(model)
    assert (info.local, info.free) == (False, False)
