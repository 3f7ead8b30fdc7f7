"""Names that others gave to what we export: the GenAI conventions of OpenTelemetry, and our own beside them.

The only place where they are written. The conventions are still in development: when they move, this file does.
"""

# https://opentelemetry.io/docs/specs/semconv/gen-ai/, as of version 1.38 of the conventions
OPERATION = "gen_ai.operation.name"
INVOKE_AGENT, CHAT, EXECUTE_TOOL = "invoke_agent", "chat", "execute_tool"
PROVIDER = "gen_ai.provider.name"
AGENT_ID, AGENT_NAME = "gen_ai.agent.id", "gen_ai.agent.name"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
MAX_TOKENS, STREAM = "gen_ai.request.max_tokens", "gen_ai.request.stream"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
TOOL_NAME = "gen_ai.tool.name"
ERROR_TYPE = "error.type"
# Only where somebody switched it on.
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
CONTENT_SWITCH = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

# Ours.
AGENT = "agent_os.agent"
INCARNATION = "agent_os.incarnation"
CALL = "agent_os.call"
CAPABILITY = "agent_os.capability"  # the handle that it rested on
DECISION = "agent_os.decision"  # allow, ask, forbid, refuse
RULE = "agent_os.rule"
MODE = "agent_os.mode"
ISOLATION = "agent_os.isolation"
LABEL = "agent_os.label"
SEQUENCE = "agent_os.audit.sequence"
COST = "agent_os.cost_usd"
QUEUED = "agent_os.queued_ms"
APPROVAL = "agent_os.approval"
EXIT = "agent_os.exit"
BUDGET_LEFT = "agent_os.budget.left."  # and the resource, of those that it spent and somebody limits
