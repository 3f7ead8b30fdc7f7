import subprocess
import sys
from datetime import UTC, datetime

import pytest

from agent_os.drivers.models.pricetable import look_up, version

pytestmark = pytest.mark.uid_free("asks for modules and HTTP, nothing of a user")

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def test_a_known_model_has_its_prices_and_the_tables_version():
    found = look_up("anthropic", "claude-sonnet-4-5", NOW)
    assert found is not None
    assert found.version == version()
    assert version().startswith("genai-prices ")
    assert found.per_million["output"].base > found.per_million["input"].base > 0
    assert found.per_million["cache_read"].base < found.per_million["input"].base


def test_a_model_or_provider_that_is_not_in_it_has_none():
    assert look_up("anthropic", "no-such-model", NOW) is None
    assert look_up("my-openai-server", "gpt-4o", NOW) is None  # not OpenAI, whatever its name contains
    assert look_up("", "", NOW) is None


def test_a_model_that_makes_no_text_has_none():
    assert look_up("openai", "whisper-1", NOW) is None


@pytest.mark.integration
def test_the_table_is_loaded_at_the_first_question_only():
    program = (
        "import sys; from datetime import UTC, datetime; from agent_os.drivers.models import pricetable\n"
        "import agent_os.kernel.models.tabled\n"
        "assert not {'pydantic', 'genai_prices'} & sys.modules.keys()\n"
        "assert pricetable.look_up('openai', 'gpt-4o', datetime.now(UTC))\n"
        "assert 'genai_prices' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
